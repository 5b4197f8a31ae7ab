"""Words are counted while Python and JVM are killed: the counts are those of a Counter.

`tests/unit/service/test_word_count.py` does it in memory, many times. CRASH_SEED draws the same
engine, store and place again.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError

from examples.support.postgres_server import EmbeddedPostgres
from service.config import EngineName
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from service.failpoints import VARIABLE
from tests.acceptance import evidence, sentences
from tests.acceptance.crashes import CONFIG
from tests.acceptance.harness import Run
from tests.acceptance.trial import Trial, places
from tests.worlds.postgres_table import rows_of
from topology.sink import Kind
from topology.state import LINE

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

RECORDS = (800, 800)
SECONDS = 120.0
CRASHES = [
    *(f"zk_{when}_write" for when in ("before", "after")),
    *(f"sink_{when}_commit" for when in ("before", "inside", "after")),
]
_OF_RANGES = ["range_after_plan", "range_before_seal", "range_after_seal"]  # of the spark engine
_MOST_PASSES = 2  # of a place: that often each is passed, however large the transactions get
_SPARK = {"transaction_records": 300, "transaction_seconds": 0.1, "poll_seconds": 0.05}
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Draw(NamedTuple):
    """What a seed draws: the kind of transactions, what runs them, and where it is killed.

    The counts are in the database, if there is one, or else in a Delta table.
    """

    kind: Kind
    engine: EngineName
    failpoint: str
    database: EmbeddedPostgres | None


@pytest.fixture
def trial(kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(kafka, zookeeper, tmp_path, topologies="tests.acceptance.counting")
    (tmp_path / "tmp").mkdir()
    trial.publish(*RECORDS)
    yield trial
    trial.end()


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> Draw:
    """One of all, by a seed that is printed when the test fails."""
    seed = os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6)
    rng = random.Random(f"{seed}")
    kind: Kind = rng.choice(["transactional", "opaque"])
    engine: EngineName = rng.choice(["local", "spark"])
    place = rng.choice([*CRASHES, *_OF_RANGES] if engine == "spark" else CRASHES)
    failpoint = f"{place}:{rng.randint(1, _MOST_PASSES)}:kill"
    store = rng.choice(["delta", "postgres"])
    print(f"CRASH_SEED={seed}", kind, engine, store, failpoint)  # noqa: T201
    database = request.getfixturevalue("postgres") if store == "postgres" else None
    return Draw(kind, engine, failpoint, database)


def start(trial: Trial, draw: Draw, failpoint: str | None = None) -> Run:
    environment = {"TMPDIR": str(trial.folder / "tmp"), "JDK_JAVA_OPTIONS": _JAVA_OPTIONS}
    if failpoint is not None:
        environment[VARIABLE] = failpoint
    if draw.database is not None:
        server = draw.database
        environment |= {"WORDS_DATABASE": server.url, "PGUSER": server.user}
        environment["PGPASSWORD"] = server.password
    storage = {"warehouse": str(trial.folder / "warehouse")}
    options = ("--until-caught-up", "--engine", draw.engine)
    config = {**CONFIG, "storage": storage, "spark": _SPARK if draw.engine == "spark" else {}}
    return trial.start(draw.kind, *options, config=config, environment=environment)


def rows(trial: Trial, database: EmbeddedPostgres | None) -> list[dict[str, Any]]:
    """The table's rows, by its files, or by what the database says."""
    if database is None:
        return evidence.read_table(trial.folder / "warehouse" / "words").to_pylist()
    try:
        return rows_of(database, f'SELECT * FROM "{trial.name}-words"')  # noqa: S608 - our own
    except Py4JJavaError as error:
        if "does not exist" in str(error):  # perhaps there is no table yet
            return []
        raise


def counts(found: list[dict[str, Any]]) -> Counter[str]:
    """How often each word was counted."""
    words: Counter[str] = Counter()
    for row in found:
        words[row["word"]] += row["n"]
    return words


def test_every_word_is_counted_once_though_the_process_is_killed(trial: Trial, draw: Draw) -> None:
    """Promises 3, 14 and 16: a count is never too high, and what is below the offset is counted."""
    wanted = sentences.counted(places(*RECORDS))
    crashed = start(trial, draw, draw.failpoint)
    assert crashed.wait(SECONDS) == -signal.SIGKILL, crashed.tail()
    stored = trial.stored()
    done = sentences.counted(
        place for place in places(*RECORDS) if place[1] < stored.get(place[0], 0)
    )
    assert done <= counts(rows(trial, draw.database)) <= wanted
    last = start(trial, draw)
    assert last.wait(SECONDS) == 0, last.tail()
    assert trial.stored() == dict(enumerate(RECORDS))
    found = rows(trial, draw.database)
    assert counts(found) == wanted
    assert len({(row["word"], row[LINE]) for row in found}) == len(found)
