"""R01, R03, R05: partitions move between two replicas while records of them are stuck in a bolt."""

import signal
from collections import Counter

import pytest

from tests.acceptance import processes
from tests.acceptance.harness import Run
from tests.acceptance.trial import Trial, places, rows_of

pytestmark = pytest.mark.faults

COUNTS = (200, 200, 200, 200)
STUCK = 50  # the offset in each partition that waits until the test opens it
SESSION_SECONDS = 4.0
HANDOVER_SECONDS = 2.0
SECONDS = 60.0
CONFIG = {
    "zookeeper": {"session_timeout_seconds": SESSION_SECONDS},
    "replicas": {
        "beat_seconds": 0.2, "handover_seconds": HANDOVER_SECONDS,
    },
    "pipeline": {"commit_interval_seconds": 0.05, "drain_seconds": 10.0},
}  # fmt: skip


def start(trial: Trial, name: str) -> Run:
    environment = {"HEADRACE_REPLICAS__NAME": name}
    return trial.start("waiting", config=CONFIG, environment=environment)


def stuck(trial: Trial) -> Run:
    """One replica that has all partitions, and in each a record that a bolt does not give back."""
    trial.publish(*COUNTS, trouble=[(number, STUCK) for number in range(len(COUNTS))])
    run = start(trial, "a")
    everywhere = dict.fromkeys(range(len(COUNTS)), STUCK)
    run.until("all but the stuck ones are stored", lambda: trial.stored() == everywhere)
    run.until("the others behind them are done", lambda: trial.written(run) == sum(COUNTS) - 4)
    return run


def partitions_of(run: Run, event: str) -> set[str]:
    return {each["partition"] for each in run.events(event)}


def ended_well(trial: Trial, *runs: Run) -> None:
    """Every record is stored, none is lost, and only what was not stored may be there twice."""
    ends = dict(enumerate(COUNTS))
    for run in runs:
        run.until("all is stored", lambda: trial.stored() == ends)
    for run in runs:
        run.send(signal.SIGTERM)
    for run in runs:
        assert run.wait(SECONDS) == 0, run.tail()
    wanted = rows_of(places(*COUNTS))
    assert set(trial.rows()) == set(wanted)
    repeated = trial.rows() - wanted
    assert not [row for row in repeated if int(row.split(":")[1]) < STUCK], "it was stored"
    assert trial.stored() == ends
    assert trial.letters() == []


def test_partition_is_given_up_at_the_handover_deadline(trial):
    """R01: it drains, and what is stuck then is the next owner's; R03: it comes back afresh."""
    a = stuck(trial)
    with trial.watch() as watch:
        b = start(trial, "b")
        a.until("two are given up", lambda: len(partitions_of(a, "partition_given_up")) == 2)
        given_up = partitions_of(a, "partition_given_up")
        assert partitions_of(a, "partition_leaving") == given_up
        assert partitions_of(a, "partition_released") == set()
        reasons = {each["reason"].partition(": ")[2] for each in a.events("partition_given_up")}
        assert reasons == {"not all of it was resolved in time"}, reasons
        b.until("b reads them", lambda: partitions_of(b, "partition_resumed") == given_up)
        b.until("b has done the others", lambda: trial.written(b) == 2 * (COUNTS[0] - STUCK - 1))

        b.kill()
        a.until(
            "a has them again",
            lambda: Counter(e["partition"] for e in a.events("partition_resumed"))
            >= Counter(given_up),
        )  # fmt: skip
        trial.open()  # calls of both ownerships of a's end now
        ended_well(trial, a)
    assert watch.wrong == []
    assert a.account()["unresolved"] == 0


def test_lost_partition_is_not_committed_by_its_former_owner(trial):
    """R05, promise 9: it was stopped past its session, and its bolts end when it goes on."""
    a = stuck(trial)
    b = start(trial, "b")
    a.until("two are given up", lambda: len(partitions_of(a, "partition_given_up")) == 2)
    with trial.watch() as watch:
        processes.freeze(a.pid)
        b.until("b has all", lambda: len(partitions_of(b, "partition_resumed")) == len(COUNTS))
        trial.open()
        ends = dict(enumerate(COUNTS))
        b.until("b has stored all", lambda: trial.stored() == ends)
        processes.thaw(a.pid)
        a.until("a hears of its session", lambda: a.events("zookeeper_session_ended"))
        ended_well(trial, a, b)
    assert watch.wrong == []
