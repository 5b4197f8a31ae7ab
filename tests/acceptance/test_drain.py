"""SIGTERM and SIGINT in the middle of a run: it drains, commits, and ends with exit code 0."""

import signal
import time
from collections import Counter

import pytest

from examples.flights.publish import publish
from tests.acceptance import evidence, processes
from tests.acceptance.harness import Run
from tests.acceptance.stored import Watch
from tests.acceptance.trial import Flights
from tests.oracles import flights as oracle
from tests.support.patience import slack, until

pytestmark = pytest.mark.acceptance

FLIGHTS, MALFORMED = 12_000, 48
SLACK_SECONDS = 6.0  # for the process itself to begin and to end
SHORT_DRAIN_SECONDS = 4.0


def published(flights: Flights) -> evidence.Topic:
    publish(flights.kafka.address, flights.name, limit=FLIGHTS, malformed=MALFORMED)
    return flights.records()


def midway(run: Run, watch: Watch, records: evidence.Topic) -> None:
    """Wait until a part of the rest is committed, and not all of it."""
    wanted = watch.total + records.total // 20
    run.until("some progress", lambda: watch.total >= wanted)
    assert watch.total < records.total


def test_signals_drain_and_offsets_match_the_table(make_flights):
    """Promise 16: SIGTERM drains: in-flight records finish, offsets are stored, exit code 0."""
    flights = make_flights()
    records = published(flights)
    with flights.watch() as watch:
        for number in (signal.SIGTERM, signal.SIGINT):
            run = flights.run("--until-caught-up")
            midway(run, watch, records)
            sent = time.monotonic()
            run.send(number)
            assert run.wait() == 0, run.tail()
            assert time.monotonic() - sent < flights.drain_seconds + slack(SLACK_SECONDS)
            assert run.descendants() == {}
            assert list(flights.temporary.glob("headrace-spark-*")) == []
            stored_is_written(flights, run, records)
        run = flights.run("--until-caught-up")
        assert run.wait() == 0, run.tail()
    assert watch.wrong == []
    assert flights.stored() == records.ends
    answer = oracle.expected(FLIGHTS, MALFORMED)
    difference = oracle.differences(evidence.read_table(flights.table), answer.table)
    assert difference.num_rows == 0, difference.slice(0, 5).to_pylist()
    assert flights.dead() == Counter(records.malformed)


@pytest.mark.nightly
def test_hanging_sink_does_not_delay_the_drain_deadline(make_flights):
    """Promise 16: all steps of the drain share one deadline; what is left stays uncommitted."""
    flights = make_flights(sink="spark", drain_seconds=SHORT_DRAIN_SECONDS)
    records = published(flights)
    with flights.watch() as watch:
        run = flights.run("--until-caught-up")
        midway(run, watch, records)
        frozen_while_it_writes(flights, run)
        sent = time.monotonic()
        run.send(signal.SIGTERM)
        assert run.wait() == 0, run.tail()
        assert time.monotonic() - sent < SHORT_DRAIN_SECONDS + slack(SLACK_SECONDS)
    assert run.events("drain_deadline_passed")
    assert run.descendants() == {}, "the frozen JVM must not be left behind"
    assert run.account()["unresolved"] > 0
    assert flights.stored() == committed(run)
    nothing_committed_is_missing(flights, records)


def test_absent_servers_do_not_delay_the_drain_deadline(make_flights):
    """Promise 16: what cannot be committed by the deadline is left; no loss, exit code 0."""
    flights = make_flights(breakable=True, drain_seconds=SHORT_DRAIN_SECONDS)
    records = published(flights)
    servers = (flights.kafka.pid, flights.zookeeper.pid)
    with flights.watch() as watch:
        run = flights.run()
        midway(run, watch, records)
        for pid in servers:
            processes.freeze(pid)
        sent = time.monotonic()
        run.send(signal.SIGTERM)
        assert run.wait() == 0, run.tail()
        assert time.monotonic() - sent < SHORT_DRAIN_SECONDS + slack(SLACK_SECONDS)
        for pid in servers:
            processes.thaw(pid)
    assert run.descendants() == {}
    nothing_committed_is_missing(flights, records)


@pytest.mark.nightly
def test_a_second_ctrl_c_ends_a_drain_at_once(make_flights):
    """Promise 16: the operator has the last word; kill at any instant loses nothing."""
    flights = make_flights(sink="spark")
    records = published(flights)
    with flights.watch() as watch:
        run = flights.run("--until-caught-up")
        midway(run, watch, records)
        jvm = frozen_while_it_writes(flights, run)
        run.send(signal.SIGINT)
        until("it drains", lambda: run.events("service_draining"))
        run.send(signal.SIGINT)
        sent = time.monotonic()
        assert run.wait() != 0
        assert time.monotonic() - sent < slack(SLACK_SECONDS)
    processes.thaw(jvm)
    until("the JVM ends by itself", lambda: not processes.lives(jvm))
    assert run.descendants() == {}
    nothing_committed_is_missing(flights, records)


def frozen_while_it_writes(flights: Flights, run: Run) -> int:
    """Freeze Spark's JVM, and wait until a file of rows waits for it in the spool; its pid."""
    jvm = run.jvm()
    processes.freeze(jvm)
    spool = flights.folder / "warehouse" / ".spool"
    run.until("rows wait", lambda: any(spool.rglob("*.parquet")))
    return jvm


def committed(run: Run) -> dict[int, int]:
    parts = run.account()["partitions"]
    return {int(name.rpartition("[")[2][:-1]): part["committed"] for name, part in parts.items()}


def stored_is_written(flights: Flights, run: Run, records: evidence.Topic) -> None:
    """Committed, last completed and stored agree, and the table has just the records below."""
    account = run.account()
    assert not account["caught_up"]
    assert account["unresolved"] == 0
    assert account["read"] == account["written"] + account["filtered"] + account["dead_lettered"]
    for part in account["partitions"].values():
        assert part["committed"] == part["last_completed_offset"]
    stored = flights.stored()
    assert stored == committed(run)
    rows, letters = records.below(stored)
    assert evidence.rows_of(evidence.read_table(flights.table)) == Counter(rows)
    assert flights.dead() == Counter(letters)


def nothing_committed_is_missing(flights: Flights, records: evidence.Topic) -> None:
    """Promise 3: what lies below a stored offset is durable."""
    rows, letters = records.below(flights.stored())
    assert rows <= set(evidence.rows_of(evidence.read_table(flights.table)))
    assert letters <= set(flights.dead())
