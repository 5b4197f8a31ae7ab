"""Bolts that break the rules of the house, in a whole pipeline: none costs another's record."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace import AdvancedBolt, Record, Reject, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import RetryPolicy, topology_test
from service.observability.metrics import metric_values
from service.observability.snapshot import snapshot_of
from tests.support.pipeline import PATIENCE_SECONDS, PLACE, RETRY_SECONDS, HeldSink, Works
from topology.sink import Staged

MANY = 1_000_000
WORKERS = 4


class Slow(MemorySink[int]):
    """Commits once its gate is open."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.gate, self.asked = threading.Event(), threading.Event()
        self.gate.set()

    def commit(self, staged: Staged) -> None:
        self.asked.set()
        if not self.gate.wait(PATIENCE_SECONDS):
            raise TimeoutError
        super().commit(staged)


TWICE = RetryPolicy(limit=1, initial_seconds=1, jitter=0)


def broken(how: str) -> type[AdvancedBolt[bytes, bytes]]:
    """An advanced bolt that breaks the contract for b"bad" only."""

    class Breaks(AdvancedBolt):
        def process(self, tuple_, collector, /):
            value = tuple_.value
            if value != b"bad":
                collector.emit(value, anchors=tuple_)
                collector.ack(tuple_)
            elif how == "ack twice":
                collector.ack(tuple_)
                collector.ack(tuple_)
            elif how == "ack after fail":
                collector.fail(tuple_)
                collector.ack(tuple_)
            elif how == "fail after ack":
                collector.ack(tuple_)
                collector.fail(tuple_)
            else:
                collector.ack(tuple_)
                collector.emit(value, anchors=tuple_)

    return Breaks


@pytest.mark.parametrize(
    ("how", "did"),
    [
        ("ack twice", "acked"),
        ("ack after fail", "acked"),
        ("fail after ack", "failed"),
        ("emit after ack", "anchored a value to"),
    ],
)
def test_tuple_settled_twice_fails_its_record_alone(how, did):
    """B03, B04, B06: it is told what it did; nothing that it asked for in that call happens."""
    topology = Topology("breaks")
    values = topology.source("in").then(bolt(lambda record: record.value), name="value")
    values.then(broken(how), name="breaks").into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    with capture_logs() as logs, topology_test(topology) as kit:
        kit.send(b"a", b"bad", b"b").advance(600)
        assert kit.rows == [b"a", b"b"]
        (letter,) = kit.rejected
        assert (letter.record.value, letter.error_class) == (b"bad", "BoltError")
        assert letter.reason.startswith(f"bolt 'breaks' {did} a tuple from 'value' that it had")
        assert kit.unresolved == 0
        assert kit.metrics["headrace_acker_ignored_messages_total"] == 0
        assert kit.metrics["headrace_service_dead_lettered_records_total"] == 1
    told = [line for line in logs if line["event"] == "step_failing"]
    assert [(line["step"], line["error"]) for line in told] == [("breaks", letter.reason)]


class Cancels:
    """An async bolt that cancels all tasks of its loop, for the first b"bad"."""

    def __init__(self, awaits: str) -> None:
        self.awaits = awaits
        self.is_done = False
        self.held = self.met = 0
        self.all_met = asyncio.Event()

    def as_bolt(self) -> Any:
        @bolt
        async def cancels(record: Record) -> bytes:
            await self._met() if record.value == b"met" else await self._meddle(record.value)
            return record.value or b""

        return cancels

    async def _met(self) -> None:
        """Go on once as many are here as there are workers."""
        self.met += 1
        if self.met % WORKERS == 0:
            self.all_met.set()
        await self.all_met.wait()

    async def _meddle(self, value: bytes | None) -> None:
        if self.is_done:
            return
        if value == b"held":
            self.held += 1
            await asyncio.sleep(PATIENCE_SECONDS)
        if self.awaits == "before":
            await asyncio.sleep(0)
        self.is_done = True
        self.all_met.clear()
        for task in asyncio.all_tasks():
            task.cancel()
        if self.awaits == "after":
            await asyncio.sleep(0)


@pytest.mark.parametrize("others", ["wait for calls", "are in calls"])
@pytest.mark.parametrize("awaits", ["before", "after", "never"])
def test_cancelling_all_tasks_stalls_nothing(awaits, others):
    """B13: calls that it cuts short are tried again, and as many run at once as before."""
    cancels = Cancels(awaits)
    retries = RetryPolicy(limit=5, initial_seconds=RETRY_SECONDS, jitter=0)
    with Works(cancels.as_bolt(), workers=WORKERS, retries=retries) as works:
        works.send(*[b"met"] * WORKERS)  # then all workers are there, and wait
        works.finish()
        if others == "are in calls":
            works.send(*[b"held"] * (WORKERS - 1))
            works.until(lambda: cancels.held == WORKERS - 1)
        works.send(b"bad")
        works.until(lambda: cancels.is_done)
        works.send(*[b"met"] * WORKERS)
        sent = works.log.log_range(PLACE)[1]
        end = time.monotonic() + PATIENCE_SECONDS
        while works.stored < sent:
            assert time.monotonic() < end, works.ledger
            works.advance(RETRY_SECONDS if works.ledger.failed else 0.0)
            works.turn()
        assert len(works.sink.rows) == sent
        assert not works.letters_sink.letters


def test_value_changed_in_place_leaves_the_record_alone():
    """B09: branches share a value, as is told; but each try begins with the record's own bytes."""
    tries, seen = [], []

    @bolt
    def parse(record: Record) -> dict[str, int]:
        value: dict[str, int] = json.loads(record.value or b"")
        return value

    @bolt
    def change(value: dict[str, int]) -> dict[str, int]:
        value["n"] += 100
        tries.append(value["n"])
        if value["n"] == 101:
            raise ValueError("after the change") if len(tries) < 3 else Reject("never")
        return value

    @bolt
    def look(value: dict[str, int]) -> dict[str, int]:
        seen.append(value["n"])
        return dict(value)

    topology = Topology("changes")
    values = topology.source("in").then(parse)
    values.then(change).into(MemorySink("changed"))
    values.then(look).into(MemorySink("looked"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology, retries=TWICE) as kit:
        kit.send(b'{"n": 1}', b'{"n": 2}').advance(60)
        assert tries == [101, 102, 101]  # and not 201 the second time
        assert seen == [101, 102, 101]  # the same object: what is told of fan-out holds
        assert kit.rows_of("changed") == kit.rows_of("looked") == [{"n": 102}]
        assert [letter.record.value for letter in kit.rejected] == [b'{"n": 1}']
        assert [record.value for record in kit.acked] == [b'{"n": 2}']


@pytest.mark.parametrize("exactly_once", [None, "transactional"])
def test_million_values_of_a_record_are_one_tree(exactly_once):
    """B10, promise 10: while a slow sink has them, what follows waits; then all is there."""

    @bolt
    def burst(record: Record) -> Iterator[int]:
        yield from range(int(record.value or b"0"))

    sink = Slow() if exactly_once else HeldSink()
    with Works(
        burst, sinks=[sink], exactly_once=exactly_once, batch_rows=10, fetch_records=1,
        chunk_records=1, transaction_records=10,
    ) as works:  # fmt: skip
        sink.gate.clear()
        works.send(b"%d" % MANY, *[b"1"] * 100)
        works.until(sink.asked.is_set)
        works.turn(50)
        assert works.ledger.pending - works.ledger.waiting <= 50
        assert works.stored == 0
        shown = metric_values(snapshot_of(works.pipeline, works.now))
        if not exactly_once:  # else there are as many transactions as there may be
            assert shown["headrace_service_held_back_state"] == 1
        assert shown[f'headrace_sinks_pending_rows{{sink="{sink.name}"}}'] >= MANY
        sink.gate.set()
        works.finish()
        assert len(sink.rows) == MANY + 100
        assert sum(sink.rows) == MANY * (MANY - 1) // 2
        shown = metric_values(snapshot_of(works.pipeline, works.now))
        assert shown["headrace_service_written_records_total"] == 101
