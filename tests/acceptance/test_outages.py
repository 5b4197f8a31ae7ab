"""Servers that go away in the middle of a run only pause it."""

import os
import signal
import threading

import pytest

from examples.flights.publish import publish
from tests.acceptance import evidence, processes
from tests.acceptance.harness import Run
from tests.acceptance.trial import SESSION_SECONDS, Flights
from tests.oracles import flights as oracle
from tests.support.patience import until

pytestmark = pytest.mark.acceptance

FLIGHTS, MALFORMED = 12_000, 40  # per wave
JVM_KILLS = 2


class Waves:
    def __init__(self, flights: Flights) -> None:
        self.flights = flights
        self.count = 0
        self.watch = flights.watch()
        self.publish()
        self.run = flights.run()

    @property
    def total(self) -> int:
        return self.count * (FLIGHTS + MALFORMED)

    def publish(self) -> None:
        flights = self.flights
        publish(flights.kafka.address, flights.name, limit=FLIGHTS, malformed=MALFORMED)
        self.count += 1

    def midway(self) -> None:
        """Wait until something of the newest wave is committed, and not all of it."""
        least = self.total - MALFORMED - 9 * FLIGHTS // 10
        self.run.until("something of the wave is committed", lambda: self.watch.total > least)
        assert self.watch.total < self.total

    def all_committed(self) -> None:
        self.run.until("all is committed", lambda: self.watch.total == self.total, 90)

    def ready(self) -> None:
        self.run.until("ready", lambda: self.flights.window.problems() == [], 15)

    def unready(self) -> None:
        self.run.until("not ready", self.flights.window.problems, 30)

    def end(self) -> None:
        self.run.send(signal.SIGTERM)
        assert self.run.wait() == 0, self.run.tail()
        account = self.run.account()
        answer = oracle.expected(FLIGHTS, MALFORMED, self.count)
        assert (account["read"], account["rows"]) == (answer.read, answer.rows)
        assert account["dead_lettered"] == answer.dead_lettered
        assert account["unresolved"] == 0
        assert all(part["committed"] == part["log_end"] for part in account["partitions"].values())
        difference = oracle.differences(evidence.read_table(self.flights.table), answer.table)
        assert difference.num_rows == 0, difference.slice(0, 5).to_pylist()
        letters, flights = self.flights.dead(), self.flights
        assert letters.total() == len(letters) == answer.dead_lettered
        assert set(letters) == evidence.malformed(flights.kafka.address, flights.name)


def test_zookeeper_outage_only_pauses_commits(make_flights):
    """Promise 15: with ZooKeeper away the service works on, and commits when it is back."""
    waves = Waves(make_flights(breakable=True))
    zookeeper = waves.flights.zookeeper
    with waves.watch as watch:
        waves.midway()
        waves.ready()
        zookeeper.close()
        waves.unready()
        committed = watch.total
        waves.publish()
        table_grows(waves.flights)
        zookeeper.open()
        waves.ready()
        waves.run.until("committed again", lambda: watch.total > committed, 30)
        waves.all_committed()

        waves.publish()
        waves.midway()
        processes.freeze(zookeeper.pid)
        pause(SESSION_SECONDS * 2)
        assert waves.flights.window.problems()
        processes.thaw(zookeeper.pid)
        waves.ready()
        waves.all_committed()

        waves.publish()
        waves.midway()
        zookeeper.kill()
        waves.unready()
        zookeeper.open()
        waves.all_committed()
        waves.ready()
        waves.end()
    assert watch.wrong == []


@pytest.mark.nightly
def test_killed_spark_repeats_at_most_one_batch(make_flights):
    """Promise 15: with Spark away the service restarts it and retries the micro-batch."""
    count = 15_000
    flights = make_flights(sink="spark")
    publish(flights.kafka.address, flights.name, limit=count, malformed=MALFORMED)
    records = flights.records()
    uncommitted_from = []
    with flights.watch() as watch:
        run = flights.run("--until-caught-up")
        for _ in range(JVM_KILLS):
            wanted = watch.total + count // 10
            until("some progress", lambda: watch.total >= wanted or not run.alive)  # noqa: B023
            kill_spark_while_it_writes(flights, run)
            uncommitted_from.append(flights.stored())
        assert run.wait() == 0, run.tail()
    assert watch.wrong == []
    assert len(run.events("spark_restarted")) == JVM_KILLS
    assert flights.stored() == records.ends
    account = run.account()
    answer = oracle.expected(count, MALFORMED)
    assert (account["read"], account["rows"]) == (answer.read, answer.rows)
    assert account["unresolved"] == 0
    table = evidence.read_table(flights.table)
    difference = oracle.differences(table, answer.table)
    assert oracle.missing(difference) == 0
    assert oracle.unknown(difference) == 0
    for row, times in evidence.rows_of(table).items():
        partition, offset = records.rows[row]
        chances = sum(offset >= stored.get(partition, 0) for stored in uncommitted_from)
        assert times <= 1 + chances, f"{row} is there {times} times"
    # Which of its batches a killed Spark had committed cannot be known; it was one at a time.
    failed = run.events("sink_write_failed")
    assert oracle.repeated(difference) <= sum(event["rows"] for event in failed)
    letters = flights.dead()
    assert letters.total() == len(letters) == MALFORMED


def kill_spark_while_it_writes(flights: Flights, run: Run) -> None:
    """A file of rows lies beside the table's own only until Spark's JVM has committed it."""
    jvm = run.jvm()
    run.until("Spark commits", lambda: evidence.uncommitted(flights.table))
    os.kill(jvm, signal.SIGKILL)


def table_grows(flights: Flights) -> None:
    log = flights.table / "_delta_log"
    before = len(list(log.glob("*.json")))
    until("the table grows", lambda: len(list(log.glob("*.json"))) > before, 30)


def pause(seconds: float) -> None:
    """How long an outage lasts; there is nothing to wait for in it."""
    threading.Event().wait(seconds)
