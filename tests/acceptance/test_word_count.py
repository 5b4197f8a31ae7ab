"""Words are counted while Python and JVM are killed: the counts are those of a Counter.

`tests/unit/service/test_word_count.py` does it in memory, many times. CRASH_SEED draws the same
place again.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.embedded.kafka import EmbeddedKafka
from service.embedded.zookeeper import EmbeddedZooKeeper
from service.failpoints import VARIABLE
from tests.acceptance import evidence, sentences
from tests.acceptance.crashes import CONFIG
from tests.acceptance.harness import Run
from tests.acceptance.trial import Trial, places
from topology.state import LINE
from topology.transactional import Kind

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

RECORDS = (800, 800)
SECONDS = 120.0
CRASHES = [
    *(f"zk_{when}_write" for when in ("before", "after")),
    *(f"sink_{when}_commit" for when in ("before", "inside", "after")),
]
_MOST_PASSES = 2  # of a place: that often each is passed, however large the transactions get
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture
def trial(kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(kafka, zookeeper, tmp_path, topologies="tests.acceptance.counting")
    (tmp_path / "tmp").mkdir()
    trial.publish(*RECORDS)
    yield trial
    trial.end()


@pytest.fixture
def rng() -> random.Random:
    """Draws by a seed that is printed when the test fails."""
    seed = os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6)
    print(f"CRASH_SEED={seed}")  # noqa: T201
    return random.Random(f"{seed}")


def start(trial: Trial, kind: Kind, failpoint: str | None = None) -> Run:
    environment = {"TMPDIR": str(trial.folder / "tmp"), "JDK_JAVA_OPTIONS": _JAVA_OPTIONS}
    if failpoint is not None:
        environment[VARIABLE] = failpoint
    config = {**CONFIG, "spark": {"warehouse": str(trial.folder / "warehouse")}}
    return trial.start(kind, "--until-caught-up", config=config, environment=environment)


def counts(trial: Trial) -> tuple[Counter[str], int]:
    """How often each word was counted, by the table's files; and in how many rows."""
    table = evidence.read_table(trial.folder / "warehouse" / "words")
    found: Counter[str] = Counter()
    if not table.num_rows:  # perhaps there is no table yet
        return found, 0
    rows = set(zip(table["word"].to_pylist(), table[LINE].to_pylist(), strict=True))
    for word, n in zip(table["word"].to_pylist(), table["n"].to_pylist(), strict=True):
        found[word] += n
    return found, len(rows)


def test_every_word_is_counted_once_though_the_process_is_killed(
    trial: Trial, rng: random.Random
) -> None:
    """Promises 3, 14 and 16: a count is never too high, and what is below the offset is counted."""
    kind: Kind = rng.choice(["transactional", "opaque"])
    failpoint = f"{rng.choice(CRASHES)}:{rng.randint(1, _MOST_PASSES)}:kill"
    print(kind, failpoint)  # noqa: T201
    wanted = sentences.counted(places(*RECORDS))
    crashed = start(trial, kind, failpoint)
    assert crashed.wait(SECONDS) == -signal.SIGKILL, crashed.tail()
    stored = trial.stored()
    done = sentences.counted(
        place for place in places(*RECORDS) if place[1] < stored.get(place[0], 0)
    )
    found, _ = counts(trial)
    assert done <= found <= wanted
    last = start(trial, kind)
    assert last.wait(SECONDS) == 0, last.tail()
    assert trial.stored() == dict(enumerate(RECORDS))
    found, num_rows = counts(trial)
    assert found == wanted
    table = evidence.read_table(trial.folder / "warehouse" / "words")
    assert table.num_rows == num_rows, "one row for each word and line"
