"""kill -9 at random moments: nothing is lost, little is repeated, no offset moves back."""

import random
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from examples.flights.publish import publish
from tests.acceptance import evidence, processes
from tests.acceptance.conftest import MakeStage
from tests.acceptance.evidence import Place
from tests.acceptance.harness import Run, Stage
from tests.acceptance.stored import Offsets, Watch
from tests.oracles import flights as oracle
from tests.support.patience import until

pytestmark = pytest.mark.acceptance

FLIGHTS = 20_000
MALFORMED = 200
KILLS = 3
JVM_SECONDS = 30.0


@dataclass(frozen=True)
class Kill:
    """What was stored once the process was dead."""

    stored: Offsets
    written: int  # rows in the table by then

    def uncommitted(self, place: Place) -> bool:
        return place[1] >= self.stored.get(place[0], 0)


@pytest.mark.nightly
def test_kill_9_at_random_moments_loses_nothing_and_repeats_only_what_was_uncommitted(
    make_stage: MakeStage,
) -> None:
    """Promise 16: kill -9 at any instant loses nothing.

    Promise 2: the stored offset never moves back. Promise 3: at every kill, what lies below
    a stored offset is in the table or among the dead letters.
    """
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    rng = random.Random(seed)
    stage = make_stage(sink="spark")
    publish(stage.kafka.address, stage.topic, limit=FLIGHTS, malformed=MALFORMED)
    records = stage.records()
    kills = []
    with stage.watch() as watch:
        for number in range(KILLS):
            run = stage.start("--until-caught-up")
            if number == 0:
                _some_time_after_its_start(run, rng)
            else:
                _after_some_progress(run, watch, rng, records.total)
            kills.append(_kill(run, stage, records))
            print(f"kill {number + 1}: {kills[-1]}")  # noqa: T201
        last = stage.start("--until-caught-up")
        assert last.wait() == 0, last.tail()
    assert watch.steps_back == []
    assert watch.reads > 100
    assert stage.stored() == records.ends
    hit_midway = {sum(kill.stored.values()) for kill in kills if kill.stored}
    assert len(hit_midway - {0, records.total}) >= KILLS - 1, "the kills came at other moments"
    _only_repeats(stage, records, kills)


def _some_time_after_its_start(run: Run, rng: random.Random) -> None:
    """It may just be importing, starting Spark, storing first positions, or reading."""
    run.jvm()
    _goes_on_for(run, rng.uniform(0.0, 6.0))


def _after_some_progress(run: Run, watch: Watch, rng: random.Random, total: int) -> None:
    wanted = watch.total + rng.uniform(0.02, 0.12) * total
    until(f"{wanted:.0f} records are committed", lambda: watch.total >= wanted or not run.alive)
    _goes_on_for(run, rng.uniform(0.0, 0.6))


def _goes_on_for(run: Run, seconds: float) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run.process.wait(seconds)


def _kill(run: Run, stage: Stage, records: evidence.Topic) -> Kill:
    """Kill the process; its JVM goes by itself, and what is stored is durable."""
    children = processes.java_children(run.pid)
    run.kill()
    stored = stage.stored()
    # Nothing of ours ends the orphaned JVM: it ends when its standard input closes.
    until(
        "the orphaned JVM ends by itself",
        lambda: not any(processes.lives(pid) for pid in children),
        JVM_SECONDS,
    )
    assert run.descendants() == {}
    table = evidence.rows_of(evidence.read_table(stage.table))
    lost = [
        row
        for row, (partition, offset) in records.rows.items()
        if offset < stored.get(partition, 0) and row not in table
    ]
    assert not lost, f"{len(lost)} rows of committed records are not in the table: {lost[:3]}"
    committed = {place for place in records.malformed if place[1] < stored.get(place[0], 0)}
    if committed:
        assert committed <= set(stage.letters())
    return Kill(stored, table.total())


def _only_repeats(stage: Stage, records: evidence.Topic, kills: list[Kill]) -> None:
    table = evidence.read_table(stage.table)
    answer = oracle.expected(FLIGHTS, MALFORMED)
    difference = oracle.differences(table, answer.table)
    assert oracle.missing(difference) == 0
    assert oracle.unknown(difference) == 0
    rows = evidence.rows_of(table)
    _explained({records.rows[row]: count for row, count in rows.items()}, kills)
    print(f"{oracle.repeated(difference)} rows are repeated")  # noqa: T201
    letters = stage.letters()
    assert set(letters) == records.malformed
    _explained(letters, kills)


def _explained(counts: Mapping[Place, int] | Counter[Place], kills: list[Kill]) -> None:
    """Each copy after the first was uncommitted at a kill of its own."""
    for place, count in counts.items():
        allowed = 1 + sum(kill.uncommitted(place) for kill in kills)
        assert count <= allowed, f"{place} is there {count} times, {allowed} can be explained"
