"""Partitions that were given up while records of them were in flight: what still comes of these."""

import asyncio
import threading

import pytest

from headrace import Record, bolt
from headrace.sinks import Sink, Staged
from partition.records import Partition
from tests.support.faulty_store import FaultyStore
from tests.worlds.running import PATIENCE_SECONDS, PLACE, Works

OUTAGE_SECONDS = 950.0


@bolt
def text(record: Record) -> str:
    return (record.value or b"").decode()


class Away(Sink[str]):
    """A sink that takes no batch before it is allowed to, one at a time."""

    def __init__(self) -> None:
        self.name = "away"
        self.rows: list[str] = []
        self._allowed = threading.Semaphore(0)

    def open(self, context) -> None:
        """Nothing to open."""

    def commit(self, staged: Staged) -> None:
        if not self._allowed.acquire(timeout=6 * PATIENCE_SECONDS):
            raise TimeoutError
        for piece in staged.parts:
            self.rows += piece

    def allow(self, batches: int = 1) -> None:
        self._allowed.release(batches)

    def close(self) -> None:
        """Nothing to close."""


def shared(*bolts, **options) -> Works:
    options = {"partitions": 3, "timeout_seconds": 100.0, "batch_seconds": 1e6} | options
    return Works(*(bolts or (text,)), shared=True, **options)


def give_up(works: Works, *kept: int) -> None:
    """Let a plan take all other partitions away, and its time for that be over."""
    works.want(*kept, leave_by=works.now + 6.0)
    works.advance(7.0, step=3.5)


def test_a_late_ack_never_counts_for_another_partition():
    """Promise 1: after two hand-overs, offset 5 was stored and in no sink."""
    sink = Away()
    with shared(sinks=[sink]) as works:
        works.want(0, 1)
        works.send(*(f"first {n}".encode() for n in range(6)))
        works.turn(4)
        give_up(works, 1)  # with its rows at the sink
        works.advance(OUTAGE_SECONDS, step=10.0)
        works.send(*(f"second {n}".encode() for n in range(6)), partition=1)
        works.turn(4)
        give_up(works)
        works.now += 1.0
        works.want(1)  # again, at another index
        works.turn(4)
        assert works.reader.assignment[Partition("t", 1)].index != 1
        sink.allow()
        works.until(lambda: len(sink.rows) == 6)
        works.turn(10)
        assert works.stored_of(1) == 0
        sink.allow(3)
        works.until(lambda: works.stored_of(1) == 6)
        assert {f"second {n}" for n in range(6)} <= set(sink.rows)


class Gated:
    """A bolt whose first call waits for a gate; one call at a time."""

    def __init__(self, kind: str) -> None:
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.bolt = bolt(self.later) if kind == "async" else bolt(blocking=True)(self.now)

    def now(self, record: Record) -> str:
        value = (record.value or b"").decode()
        self.calls.append(value)
        if value == "first" and not self.gate.wait(PATIENCE_SECONDS):
            raise TimeoutError
        return value

    async def later(self, record: Record) -> str:
        value = (record.value or b"").decode()
        self.calls.append(value)
        if value == "first":
            await asyncio.to_thread(self.gate.wait, PATIENCE_SECONDS)
        return value


def waiting(works: Works) -> int:
    (figures,) = works.pipeline.statistics().runners.values()
    return figures.waiting


def lose_the_session(works: Works, gated: Gated, *, is_taken: bool = False) -> None:
    """Let the second call wait when it is not known whose the partition is."""
    works.want(0)
    works.send(b"first", b"second")
    works.until(lambda: gated.calls == ["first"] and waiting(works) == 1)
    if is_taken:
        other = FaultyStore(works.nodes)
        other.open()
        other.claim(PLACE).result(0)
    works.nodes.away = True
    works.store.end_session()
    works.turn()
    gated.gate.set()
    works.until(
        lambda: not any(each.in_flight for each in works.pipeline.statistics().runners.values())
    )


@pytest.mark.parametrize("order", ["none", "partition"])
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_what_waits_starts_when_its_partition_is_claimed_again(kind, order):
    """Promise 9: it may be another's meanwhile, and a call is a side effect."""
    gated = Gated(kind)
    with shared(gated.bolt, configure=ordered if order == "partition" else unordered) as works:
        lose_the_session(works, gated)
        works.turn(5)
        assert (gated.calls, waiting(works)) == (["first"], 1)
        works.nodes.away = False
        works.until(lambda: works.stored == 2)
        assert gated.calls == ["first", "second"]


@pytest.mark.parametrize("order", ["none", "partition"])
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_what_waits_of_a_lost_partition_never_starts(kind, order):
    """Promise 9: whoever has it by now does that."""
    gated = Gated(kind)
    with shared(gated.bolt, configure=ordered if order == "partition" else unordered) as works:
        lose_the_session(works, gated, is_taken=True)
        works.turn(5)
        assert (gated.calls, waiting(works)) == (["first"], 1)
        works.nodes.away = False
        works.until(lambda: works.pipeline.acker.in_flight == 0)
        works.turn(5)
        assert (gated.calls, waiting(works)) == (["first"], 0)
        assert works.pipeline.is_idle


def ordered(stream):
    return stream.ordered()


def unordered(stream):
    return stream
