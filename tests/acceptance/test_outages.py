"""Servers that go away in the middle of a run only pause it."""

import os
import signal
import threading

import pytest

from examples.flights.publish import publish
from tests.acceptance import evidence, processes
from tests.acceptance.conftest import MakeStage
from tests.acceptance.harness import SESSION_SECONDS, Run, Stage
from tests.acceptance.stored import Watch
from tests.oracles import flights as oracle
from tests.support.patience import until

pytestmark = pytest.mark.acceptance

FLIGHTS = 12_000  # per wave
MALFORMED = 40
READY, NOT_READY = 200, 503
FROZEN_SECONDS = 5.0
JVM_KILLS = 2


class Waves:
    """A service that runs on while flights are published in waves."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.count = 0
        self.total = 0
        self._publish()
        self.run = stage.start()

    def publish(self) -> None:
        self._publish()

    def midway(self, watch: Watch) -> None:
        """Wait until something of the newest wave is committed, and not all of it."""
        before = self.total - FLIGHTS - MALFORMED
        until(
            "something of the wave is committed",
            lambda: watch.total > before + FLIGHTS // 10 or not self.run.alive,
        )
        assert self.run.alive, self.run.tail()
        assert watch.total < self.total

    def all_committed(self, watch: Watch) -> None:
        until(
            "all is committed", lambda: watch.total == self.total or not self.run.alive, seconds=90
        )
        assert self.run.alive, self.run.tail()

    def end(self) -> None:
        """End the service; nothing is missing, and nothing is there twice."""
        self.run.send(signal.SIGTERM)
        assert self.run.wait() == 0, self.run.tail()
        account = self.run.account()
        answer = oracle.expected(FLIGHTS, MALFORMED, self.count)
        assert (account["read"], account["rows"]) == (answer.read, answer.rows)
        assert account["dead_lettered"] == answer.dead_lettered
        assert account["unresolved"] == 0
        assert all(part["committed"] == part["log_end"] for part in account["partitions"].values())
        table = evidence.read_table(self.stage.table)
        difference = oracle.differences(table, answer.table)
        assert difference.num_rows == 0, difference.slice(0, 5).to_pylist()
        letters = self.stage.letters()
        assert letters.total() == len(letters) == answer.dead_lettered
        assert set(letters) == set(self.stage.malformed())

    def _publish(self) -> None:
        stage = self.stage
        publish(stage.kafka.address, stage.topic, limit=FLIGHTS, malformed=MALFORMED)
        self.count += 1
        self.total = self.count * (FLIGHTS + MALFORMED)


def test_zookeeper_outage_only_pauses_commits(make_stage: MakeStage) -> None:
    """Promise 15: with ZooKeeper away the service works on, and commits when it is back."""
    stage = make_stage(breakable=True)
    zookeeper = stage.zookeeper
    waves = Waves(stage)
    with stage.watch() as watch:
        waves.midway(watch)
        assert stage.ready() == READY

        zookeeper.close()
        until("not ready", lambda: stage.ready() == NOT_READY, 15)
        committed = watch.total
        waves.publish()
        table_grows(stage)
        zookeeper.open()
        until("ready again", lambda: stage.ready() == READY, 15)
        until("committed again", lambda: watch.total > committed, 30)
        waves.all_committed(watch)

        waves.publish()
        waves.midway(watch)
        processes.freeze(zookeeper.pid)
        pause(SESSION_SECONDS * 2)
        assert stage.ready() == NOT_READY
        processes.thaw(zookeeper.pid)
        until("ready again", lambda: stage.ready() == READY, 15)
        waves.all_committed(watch)

        waves.publish()
        waves.midway(watch)
        zookeeper.kill()
        until("not ready", lambda: stage.ready() == NOT_READY, 15)
        zookeeper.open()
        waves.all_committed(watch)
        until("ready again", lambda: stage.ready() == READY, 15)
        waves.end()
    assert watch.steps_back == []


@pytest.mark.nightly
def test_broker_outage_only_pauses_the_run(make_stage: MakeStage) -> None:
    """Promise 15: with Kafka away the service waits, and goes on when it is back."""
    stage = make_stage(breakable=True)
    broker = stage.kafka
    waves = Waves(stage)
    with stage.watch() as watch:
        waves.midway(watch)
        broker.close()
        until("not ready", lambda: stage.ready() == NOT_READY, 30)
        assert watch.total < waves.total, "the outage came too late"
        broker.open()
        waves.all_committed(watch)
        until("ready again", lambda: stage.ready() == READY, 15)

        waves.publish()
        waves.midway(watch)
        broker.kill()
        pause(1)
        assert watch.total < waves.total, "the outage came too late"
        broker.open()
        waves.all_committed(watch)

        waves.publish()
        waves.midway(watch)
        processes.freeze(broker.pid)
        pause(FROZEN_SECONDS)
        assert watch.total < waves.total, "the outage came too late"
        processes.thaw(broker.pid)
        waves.all_committed(watch)
        waves.end()
    assert watch.steps_back == []


@pytest.mark.nightly
def test_killed_spark_repeats_at_most_one_batch(
    make_stage: MakeStage,
) -> None:
    """Promise 15: with Spark away the service restarts it and retries the micro-batch."""
    flights = 15_000
    stage = make_stage(sink="spark")
    publish(stage.kafka.address, stage.topic, limit=flights, malformed=MALFORMED)
    records = stage.records()
    uncommitted_from = []
    with stage.watch() as watch:
        run = stage.start("--until-caught-up")
        for _ in range(JVM_KILLS):
            wanted = watch.total + flights // 10
            until("some progress", lambda: watch.total >= wanted or not run.alive)  # noqa: B023
            kill_spark_while_it_writes(stage, run)
            uncommitted_from.append(stage.stored())
        assert run.wait() == 0, run.tail()
    assert watch.steps_back == []
    assert len(run.events("spark_restarted")) == JVM_KILLS
    assert stage.stored() == records.ends
    account = run.account()
    answer = oracle.expected(flights, MALFORMED)
    assert (account["read"], account["rows"]) == (answer.read, answer.rows)
    assert account["unresolved"] == 0
    table = evidence.read_table(stage.table)
    difference = oracle.differences(table, answer.table)
    assert oracle.missing(difference) == 0
    assert oracle.unknown(difference) == 0
    for row, count in evidence.rows_of(table).items():
        partition, offset = records.rows[row]
        chances = sum(offset >= stored.get(partition, 0) for stored in uncommitted_from)
        assert count <= 1 + chances, f"{row} is there {count} times"
    # Which of its batches a killed Spark had committed cannot be known; it was one at a time.
    failed = run.events("sink_write_failed")
    assert oracle.repeated(difference) <= sum(event["rows"] for event in failed)
    letters = stage.letters()
    assert letters.total() == len(letters) == MALFORMED


def kill_spark_while_it_writes(stage: Stage, run: Run) -> None:
    """A file of rows lies beside the table's own only until Spark's JVM has committed it."""
    jvm = run.jvm()
    until("Spark commits", lambda: evidence.uncommitted(stage.table) or not run.alive)
    assert run.alive, run.tail()
    os.kill(jvm, signal.SIGKILL)


def table_grows(stage: Stage) -> None:
    log = stage.table / "_delta_log"
    before = len(list(log.glob("*.json")))
    until("the table grows", lambda: len(list(log.glob("*.json"))) > before, 30)


def pause(seconds: float) -> None:
    """How long an outage lasts; there is nothing to wait for in it."""
    threading.Event().wait(seconds)
