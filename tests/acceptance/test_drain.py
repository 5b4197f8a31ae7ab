"""SIGTERM and SIGINT in the middle of a run: it drains, commits, and ends with exit code 0."""

import signal
import time
from collections import Counter

import pytest

from examples.flights.publish import publish
from tests.acceptance import evidence, processes
from tests.acceptance.conftest import MakeStage
from tests.acceptance.harness import Run, Stage
from tests.acceptance.stored import Watch
from tests.oracles import flights as oracle
from tests.support.patience import slack, until

pytestmark = pytest.mark.acceptance

FLIGHTS = 12_000
MALFORMED = 48
SLACK_SECONDS = 6.0  # for the process itself to begin and to end
SHORT_DRAIN_SECONDS = 4.0


def test_signals_drain_and_offsets_match_the_table(
    make_stage: MakeStage,
) -> None:
    """Promise 16: SIGTERM drains: in-flight records finish, offsets are stored, exit code 0."""
    stage = make_stage()
    publish(stage.kafka.address, stage.topic, limit=FLIGHTS, malformed=MALFORMED)
    records = stage.records()
    with stage.watch() as watch:
        for number in (signal.SIGTERM, signal.SIGINT):
            run = stage.start("--until-caught-up")
            midway(run, watch, records.total)
            sent = time.monotonic()
            run.send(number)
            assert run.wait() == 0, run.tail()
            assert time.monotonic() - sent < stage.drain_seconds + slack(SLACK_SECONDS)
            assert run.descendants() == {}
            assert list(stage.temporary.glob("headrace-spark-*")) == []
            assert not run.account()["caught_up"]
            stored_is_written(stage, run, records)
        run = stage.start("--until-caught-up")
        assert run.wait() == 0, run.tail()
    assert watch.steps_back == []
    assert stage.stored() == records.ends
    answer = oracle.expected(FLIGHTS, MALFORMED)
    difference = oracle.differences(evidence.read_table(stage.table), answer.table)
    assert difference.num_rows == 0, difference.slice(0, 5).to_pylist()
    assert stage.letters() == Counter(records.malformed)


@pytest.mark.nightly
def test_hanging_sink_does_not_delay_the_drain_deadline(
    make_stage: MakeStage,
) -> None:
    """Promise 16: all steps of the drain share one deadline; what is left stays uncommitted."""
    stage = make_stage(sink="spark", drain_seconds=SHORT_DRAIN_SECONDS)
    publish(stage.kafka.address, stage.topic, limit=FLIGHTS, malformed=MALFORMED)
    records = stage.records()
    with stage.watch() as watch:
        run = stage.start("--until-caught-up")
        midway(run, watch, records.total)
        jvm = run.jvm()
        frozen_while_it_writes(stage, run, jvm)
        sent = time.monotonic()
        run.send(signal.SIGTERM)
        assert run.wait() == 0, run.tail()
        seconds = time.monotonic() - sent
    assert run.events("drain_deadline_passed")
    assert run.descendants() == {}, "the frozen JVM must not be left behind"
    account = run.account()
    assert account["unresolved"] > 0
    assert stage.stored() == committed(run)
    nothing_committed_is_missing(stage, records)
    assert seconds < SHORT_DRAIN_SECONDS + slack(SLACK_SECONDS), f"it took {seconds:.1f} s"


def test_absent_servers_do_not_delay_the_drain_deadline(
    make_stage: MakeStage,
) -> None:
    """Promise 16: what cannot be committed by the deadline is left; no loss, exit code 0."""
    stage = make_stage(breakable=True, drain_seconds=SHORT_DRAIN_SECONDS)
    publish(stage.kafka.address, stage.topic, limit=FLIGHTS, malformed=MALFORMED)
    records = stage.records()
    with stage.watch() as watch:
        run = stage.start()
        midway(run, watch, records.total)
        processes.freeze(stage.kafka.pid)
        processes.freeze(stage.zookeeper.pid)
        sent = time.monotonic()
        run.send(signal.SIGTERM)
        assert run.wait() == 0, run.tail()
        seconds = time.monotonic() - sent
        processes.thaw(stage.zookeeper.pid)
        processes.thaw(stage.kafka.pid)
    assert run.descendants() == {}
    nothing_committed_is_missing(stage, records)
    assert seconds < SHORT_DRAIN_SECONDS + slack(SLACK_SECONDS), f"it took {seconds:.1f} s"


@pytest.mark.nightly
def test_a_second_ctrl_c_ends_a_drain_at_once(make_stage: MakeStage) -> None:
    """Promise 16: the operator has the last word; kill at any instant loses nothing."""
    stage = make_stage(sink="spark")
    publish(stage.kafka.address, stage.topic, limit=FLIGHTS, malformed=MALFORMED)
    records = stage.records()
    with stage.watch() as watch:
        run = stage.start("--until-caught-up")
        midway(run, watch, records.total)
        jvm = run.jvm()
        frozen_while_it_writes(stage, run, jvm)
        run.send(signal.SIGINT)
        until("it drains", lambda: run.events("service_draining"))
        run.send(signal.SIGINT)
        sent = time.monotonic()
        assert run.wait() != 0
        seconds = time.monotonic() - sent
    processes.thaw(jvm)
    until("the JVM ends by itself", lambda: not processes.lives(jvm))
    assert run.descendants() == {}
    nothing_committed_is_missing(stage, records)
    assert seconds < slack(SLACK_SECONDS), f"it took {seconds:.1f} s"


def midway(run: Run, watch: Watch, total: int) -> None:
    """Wait until a part of the rest is committed, and not all of it."""
    wanted = watch.total + total // 20
    until("some progress", lambda: watch.total >= wanted or not run.alive)
    assert run.alive, run.tail()
    assert watch.total < total


def frozen_while_it_writes(stage: Stage, run: Run, jvm: int) -> None:
    """Freeze Spark's JVM, and wait until a file of rows waits for it in the spool."""
    processes.freeze(jvm)
    spool = stage.folder / "warehouse" / ".spool"
    until("rows wait", lambda: any(spool.rglob("*.parquet")) or not run.alive)
    assert run.alive, run.tail()


def committed(run: Run) -> dict[int, int]:
    parts = run.account()["partitions"]
    return {int(name.rpartition("[")[2][:-1]): part["committed"] for name, part in parts.items()}


def stored_is_written(stage: Stage, run: Run, records: evidence.Topic) -> None:
    """Committed, last completed and stored agree, and the table has just the records below."""
    account = run.account()
    assert account["unresolved"] == 0
    assert account["read"] == account["written"] + account["filtered"] + account["dead_lettered"]
    for part in account["partitions"].values():
        assert part["committed"] == part["last_completed_offset"]
    stored = stage.stored()
    assert stored == committed(run)
    rows = evidence.rows_of(evidence.read_table(stage.table))
    assert rows == Counter(
        row for row, place in records.rows.items() if place[1] < stored[place[0]]
    )
    below = [place for place in records.malformed if place[1] < stored[place[0]]]
    assert stage.letters() == Counter(below)


def nothing_committed_is_missing(stage: Stage, records: evidence.Topic) -> None:
    """Promise 3: what lies below a stored offset is durable."""
    stored = stage.stored()
    rows = evidence.rows_of(evidence.read_table(stage.table))
    wanted = {row for row, place in records.rows.items() if place[1] < stored.get(place[0], 0)}
    assert wanted <= set(rows)
    below = {place for place in records.malformed if place[1] < stored.get(place[0], 0)}
    assert below <= set(stage.letters())
