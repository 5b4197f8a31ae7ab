"""kill -9 of Python and JVM at named places and at any moment: every row is there once.

Each process goes on where the one before it was killed, over one topic and two tables. By
default a few crashes are drawn from all of them; CRASH_POINTS=all takes every one.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.embedded.kafka import EmbeddedKafka
from service.embedded.zookeeper import EmbeddedZooKeeper
from service.failpoints import PLACES, VARIABLE
from tests.acceptance import evidence, processes, wanted
from tests.acceptance.harness import Run
from tests.acceptance.processes import until
from tests.acceptance.stored import Watch
from tests.acceptance.trial import Trial, places

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

ALL = os.environ.get("CRASH_POINTS") == "all"
RECORDS = (15_000 if ALL else 6_000,) * 3
MOST_PASSES = {"zk_before_write": 9, "zk_after_write": 9, "sink_before_fence": 2,
               "sink_after_fence": 2}  # fmt: skip
PASSES = 3  # of any other place
INSIDE = "sink_inside_commit"
CONFIG: Mapping[str, Mapping[str, object]] = {
    # Small transactions, so that there are many of them, and several open at every moment.
    "pipeline": {"max_pending": 3_000, "chunk_records": 200, "commit_interval_seconds": 0.05},
    "transactions": {"plan_records": 300},
}
SECONDS = 240.0  # for a process to reach its place, or the end


@dataclass(frozen=True)
class Crash:
    """How a process ends; at any moment if no place is named."""

    place: str = ""
    action: str = "kill"

    def at(self, rng: random.Random) -> str:
        """The variable's value."""
        most = MOST_PASSES.get(self.place, PASSES)
        return f"{self.place}:{rng.randint(1, most)}:{self.action}"


KILLS = [Crash(place) for place in PLACES]
INSIDES = [Crash(INSIDE, "kill-jvm"), Crash(INSIDE, "kill-python")]
ANY_MOMENT = Crash()


@pytest.fixture
def trial(kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[Trial]:
    """A pipeline of the test's own on the shared servers."""
    made = Trial(kafka, zookeeper, tmp_path, topologies="tests.acceptance.crashing")
    (tmp_path / "tmp").mkdir()
    yield made
    made.end()


@pytest.fixture
def rng() -> random.Random:
    """A seed that is printed when the test fails."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201
    return random.Random(seed)


@pytest.mark.timeout(2_400 if ALL else 600)
@pytest.mark.parametrize(("kind", "drawn"), [("transactional", 2), ("opaque", 1)])
def test_every_row_is_there_once_wherever_python_and_jvm_are_killed(
    trial: Trial, rng: random.Random, kind: str, drawn: int
) -> None:
    """Promise 14 and 16: kill -9 at any instant loses nothing, and repeats no row either.

    Before and after writes to ZooKeeper, before, inside and after a sink's commit, between two
    sinks' commits. Promise 2: the stored offset never moves back. Letters may repeat.
    """
    trial.publish(*RECORDS)
    with trial.watch() as watch:
        for crash in _drawn(rng, drawn):
            _crash(trial, kind, crash, watch, rng)
            _nothing_is_lost_or_twice(trial)
        last = _start(trial, kind)
        assert last.wait(SECONDS) == 0, last.tail()
    assert watch.steps_back == []
    _is_complete(trial)


def test_a_process_that_wakes_up_after_its_successor_began_commits_nothing(trial: Trial) -> None:
    """Promise 9: it stood still just before a commit, and others have gone on since.

    There is one table, so that it stands still with no table's lock in its hands.
    """
    trial.publish(*RECORDS)
    frozen = _start(trial, "single", "sink_before_commit:3:stop")
    until("it stands still", lambda: "failpoint" in frozen.errors or not frozen.alive, SECONDS)
    children = processes.java_children(frozen.pid)
    successor = _start(trial, "single")
    assert successor.wait(SECONDS) == 0, successor.tail()
    _is_complete(trial, with_others=False)
    for pid in (*children, frozen.pid):
        processes.thaw(pid)
    until(
        "it learns of its successor",
        lambda: "taken over" in frozen.errors or not frozen.alive,
        SECONDS,
    )
    if frozen.alive:
        frozen.send(signal.SIGTERM)
    frozen.wait()
    _is_complete(trial, with_others=False)


def test_a_sink_that_commits_its_rows_without_their_txid_repeats_some(trial: Trial) -> None:
    """The control: the same crash does harm where nothing prevents it."""
    trial.publish(*RECORDS)
    crashed = _start(trial, "control", "sink_after_commit:3:kill")
    assert crashed.wait(SECONDS) == -signal.SIGKILL, crashed.tail()
    last = _start(trial, "control")
    assert last.wait(SECONDS) == 0, last.tail()
    rows = _rows(trial)
    once = wanted.rows(places(*RECORDS))
    assert set(rows) == set(once)
    assert sum((rows - once).values()) > 0


def _drawn(rng: random.Random, count: int) -> list[Crash]:
    crashes = [*KILLS, *INSIDES, ANY_MOMENT]
    return rng.sample(crashes, len(crashes) if ALL else count)


def _start(trial: Trial, topology: str, failpoint: str | None = None) -> Run:
    environment = {"TMPDIR": str(trial.folder / "tmp")}
    if failpoint is not None:
        environment[VARIABLE] = failpoint
    config = {**CONFIG, "spark": {"warehouse": str(trial.folder / "warehouse")}}
    return trial.start(topology, "--until-caught-up", config=config, environment=environment)


def _crash(trial: Trial, topology: str, crash: Crash, watch: Watch, rng: random.Random) -> None:
    if not crash.place:
        print("crash at any moment")  # noqa: T201
        run = _start(trial, topology)
        before = watch.total
        more = rng.uniform(0.0, 0.05) * sum(RECORDS)
        until("it goes on", lambda: watch.total > before + more or not run.alive, SECONDS)
        with pytest.raises(AssertionError):
            until("it ends by itself", lambda: not run.alive, rng.uniform(0.0, 0.5))
        _kill(run)
        return
    failpoint = crash.at(rng)
    print(f"crash {failpoint}")  # noqa: T201
    run = _start(trial, topology, failpoint)
    if crash.action == "kill-jvm":  # the process heals, and goes on
        restarted = '"spark_restarted"'
        until("Spark is back", lambda: restarted in run.errors or not run.alive, SECONDS)
        if run.alive:
            _kill(run)
        return
    assert run.wait(SECONDS) == -signal.SIGKILL, run.tail()
    assert '"failpoint"' in run.errors, run.tail()


def _kill(run: Run) -> None:
    """Kill the JVM first, so that it finishes nothing, then Python."""
    for pid in processes.java_children(run.pid):
        os.kill(pid, signal.SIGKILL)
    run.kill()


def _rows(trial: Trial) -> Counter[tuple[str, int]]:
    table = evidence.read_table(trial.folder / "warehouse" / "rows")
    if "place" not in table.column_names:  # there is no table yet
        return Counter()
    return Counter(zip(table["place"].to_pylist(), table["copy"].to_pylist(), strict=True))


def _others(trial: Trial) -> Counter[str]:
    table = evidence.read_table(trial.folder / "warehouse" / "others")
    return Counter(table["place"].to_pylist() if "place" in table.column_names else ())


def _nothing_is_lost_or_twice(trial: Trial) -> None:
    """After a crash: what lies below a stored offset is there, and nothing is too much."""
    stored = trial.stored()  # before the tables, as an orphaned JVM may still commit
    done = [place for place in places(*RECORDS) if place[1] < stored.get(place[0], 0)]
    rows, others = _rows(trial), _others(trial)
    assert not rows - wanted.rows(places(*RECORDS))
    assert not others - wanted.others(places(*RECORDS))
    assert not wanted.rows(done) - rows
    assert not wanted.others(done) - others
    if done:
        assert wanted.letters(done) <= set(_letters(trial))


def _is_complete(trial: Trial, *, with_others: bool = True) -> None:
    """At the end: exactly the rows that were wanted, and a letter or more for each bad record."""
    assert trial.stored() == dict(enumerate(RECORDS))
    rows = _rows(trial)
    assert not rows - wanted.rows(places(*RECORDS)), "rows are there twice"
    assert not wanted.rows(places(*RECORDS)) - rows, "rows are missing"
    if with_others:
        assert _others(trial) == wanted.others(places(*RECORDS))
    assert set(_letters(trial)) == wanted.letters(places(*RECORDS))


def _letters(trial: Trial) -> Counter[evidence.Place]:
    return evidence.dead_letters(trial.kafka.address, f"{trial.name}.dead")
