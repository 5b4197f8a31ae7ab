"""Orders and dead letters when partitions come and go, and when the run ends."""

import threading
from collections.abc import Iterator

import pytest

from headrace import Bolt, Record, Reject, Topology, all_tasks, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import RetryPolicy, topology_test
from partition.errors import Fenced
from partition.records import Partition
from tests.support.patience import seconds


class Notes:
    """A bolt that keeps what it is called with, and fails on `bad` while told to."""

    def __init__(self, *, blocking: bool = False) -> None:
        self.calls: list[tuple[int, int]] = []
        self.fails = True
        self.bolt = bolt(blocking=True)(self.look_up) if blocking else bolt(self.look_up)

    def look_up(self, record: Record) -> dict[str, int]:
        self.calls.append((record.partition, record.offset))
        if record.value == b"bad" and self.fails:
            raise ValueError("bad")
        return {"partition": record.partition, "offset": record.offset}


def ordered(step, order: str = "key", **options) -> Topology:
    topology = Topology("ordered")
    records = topology.source("words")
    stream = records.keyed_by(lambda record: record.key) if order == "key" else records.ordered()
    stream.then(step, **options).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


def take_over(kit, number: int) -> None:
    place = Partition("words", number)
    kit._reader.assignment.refuse(place, Fenced(place, "offset 7"))


RETRIES = RetryPolicy(limit=1, jitter=0, initial_seconds=5)


def test_late_failure_of_a_lost_partition_holds_no_key():
    """Promise 10: what is another process's stops nothing of ours."""
    entered, goes_on = threading.Event(), threading.Event()

    @bolt(blocking=True)
    def look_up(record: Record) -> dict[str, int]:
        if record.value == b"bad":
            entered.set()
            goes_on.wait(seconds(20))
            raise ValueError("bad")
        return {"offset": record.offset}

    with topology_test(ordered(look_up, workers=4), retries=RETRIES) as kit:
        kit.send(b"x", key=b"w", partition=1).send(b"x", key=b"w")
        kit._log.append(Partition("words", 0), b"bad", key=b"k")
        while not entered.is_set():
            kit._pipeline.step(flush=True)
        take_over(kit, 0)
        kit._pipeline.step(flush=True)  # the loss is told while the call is under way
        goes_on.set()
        while not kit._pipeline.runners.held:
            kit._pipeline.step(flush=True)
        kit.send(b"x", key=b"k", partition=1)
        kit.advance(60)
        assert len(kit.rows) == 3
        assert kit.rejected == []
        assert not kit._pipeline.runners.held


@pytest.mark.parametrize("blocking", [False, True])
def test_calls_behind_a_held_key_never_begin_after_the_drain(blocking):
    """Promise 16: after the drain no bolt is called."""
    notes = Notes(blocking=blocking)
    with topology_test(ordered(notes.bolt), retries=RETRIES) as kit:
        kit.send(b"bad", b"x", b"y", key=b"k")
        assert kit._pipeline.is_idle
    assert notes.calls == [(0, 0)]


def test_drain_waits_for_calls_beside_a_held_key():
    """Promise 16, and what is blocked is counted before it is listed."""
    goes_on = threading.Event()

    @bolt(blocking=True)
    def look_up(record: Record) -> dict[str, int]:
        if record.value == b"bad":
            raise ValueError("bad")
        goes_on.wait(seconds(20))
        return {"offset": record.offset}

    with topology_test(ordered(look_up, workers=4), retries=RETRIES) as kit:
        for value, key in ((b"bad", b"k"), (b"x", b"k"), (b"slow", b"l")):
            kit._log.append(Partition("words", 0), value, key=key)
        while not kit._pipeline.runners.held:
            kit._pipeline.step(flush=True)
        assert not kit._pipeline.is_idle
        goes_on.set()
        while not kit._pipeline.is_idle:
            kit._pipeline.step(flush=True)
        assert [row["offset"] for row in kit.rows] == [2]


class Refuses(Bolt[str, str]):
    """Rejects whatever comes."""

    def process(self, value: str) -> str:
        raise Reject(f"no {value}")


@pytest.mark.parametrize("where", ["tasks", "lane"])
def test_record_has_one_dead_letter_for_all_its_tuples(where):
    @bolt
    def letters(record: Record) -> Iterator[str]:
        yield from (record.value or b"").decode()

    topology = Topology("refused")
    values = topology.source("words").then(letters)
    if where == "tasks":
        values = values.then(Refuses, tasks=3, grouping=all_tasks())
    else:
        values = values.keyed_by(lambda value: value).then(Refuses)
    values.into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        kit.send(b"abc").send(b"d")
        assert [letter.reason for letter in kit.rejected] == ["no a", "no d"]
        assert kit.unresolved == 0
        assert kit.metrics["headrace_service_dead_lettered_records_total"] == 2
