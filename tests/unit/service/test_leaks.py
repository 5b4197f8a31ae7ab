"""B11, a gate for slow leaks: an idle pipeline holds no more for having done more.

In production the same is seen in the process's resident memory; suite `memory` measures that.
"""

import gc
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace import SKIP, AdvancedBolt, Record, Reject, bolt
from headrace.sinks import MemorySink
from partition.ledger import RetryPolicy
from tests.support.pipeline import PLACE, Works, as_bolt

RECORDS = 500
LEAKED = 4_000  # so many pointers are far more bytes than what comes and goes meanwhile
ROUNDS = 4
HALF_A_POINTER = 4  # bytes of a record: less than anything that is kept of each one takes
TWICE = RetryPolicy(limit=1, initial_seconds=1, jitter=0)


class Gone(MemorySink[bytes]):
    def commit(self, staged):
        super().commit(staged)
        self.rows.clear()


@bolt
def mixed(record: Record) -> Any:
    """Of ten records one is dropped, one rejected, and one now and then fails for good."""
    value = record.value or b""
    if value.endswith(b"00"):
        raise ValueError(value)
    if value.endswith(b"0"):
        raise Reject(repr(value))
    return SKIP if value.endswith(b"1") else value


@bolt
def thrice(value: bytes) -> Iterator[bytes]:
    yield from [value] * 3


LATER, ELSEWHERE = (as_bolt(kind, lambda value: value) for kind in ("async", "blocking"))


class Forgets(AdvancedBolt[bytes, bytes]):
    def process(self, tuple_: Any, collector: Any, /) -> None:
        if not tuple_.value.endswith(b"99"):
            collector.emit(tuple_.value, anchors=tuple_)
            collector.ack(tuple_)


def growth(works, records=RECORDS):
    def has_stored(end):
        return works.pipeline.is_idle and next(works.reader.statistics(0.0)).committed == end

    held = []
    with capture_logs() as logs:
        tracemalloc.start()
        try:
            for number in range(ROUNDS):
                end = (number + 1) * records
                works.send(*(b"%d" % n for n in range(end - records, end)))
                works.turn(5)
                works.advance(100.0, step=5.0)  # retries, and tuples that expire twice
                works.until(lambda end=end: has_stored(end))
                works.log.delete_before(PLACE, end)
                works.letters_sink.letters.clear()
                logs.clear()
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    return [(after - before) / records for before, after in pairwise(held)]


@pytest.mark.parametrize(
    ("after", "exactly_once"),
    [
        *(([each], None) for each in (thrice, LATER, ELSEWHERE, Forgets)),
        ([], None),
        ([thrice], "transactional"),
        ([LATER], "opaque"),
    ],
)
def test_pipeline_leaks_nothing(after, exactly_once):
    """Promise 10: acked, filtered, rejected, expired and out of retries alike."""
    bolts = [mixed, *after]
    with Works(*bolts, sinks=[Gone()], retries=TWICE, exactly_once=exactly_once) as works:
        grown = growth(works)
    assert min(grown) < HALF_A_POINTER, grown


def test_leak_of_a_pointer_per_record_is_seen():
    kept: list[bytes] = []

    @bolt
    def leaks(record: Record) -> bytes:
        kept.append(b"")
        return record.value or b""

    with Works(leaks, sinks=[Gone()]) as works:
        grown = growth(works, LEAKED)
    assert min(grown) > HALF_A_POINTER, grown
