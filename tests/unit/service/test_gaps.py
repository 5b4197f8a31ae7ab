"""Whichever records are stuck, and however they come right, the stored offset is the lowest one's.

tests/acceptance/test_peers_failures.py shows the same on real servers.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Record, bolt
from headrace.sinks import Staged
from partition.ledger import RetryPolicy
from tests.support.pipeline import RETRY_SECONDS, HeldSink, Works

ALWAYS = RetryPolicy(limit=10**6, initial_seconds=RETRY_SECONDS, multiplier=1, jitter=0)
NEVER = RetryPolicy(limit=2, initial_seconds=RETRY_SECONDS, multiplier=1, jitter=0)


def number(value: bytes | None) -> int:
    return int(value or b"")


def function(stuck: set[int]) -> object:
    @bolt
    def passes(record: Record) -> int:
        if number(record.value) in stuck:
            raise ValueError
        return number(record.value)

    return passes


def fan_out(stuck: set[int]) -> object:
    @bolt
    def passes(record: Record) -> Iterator[int]:
        yield number(record.value)
        if number(record.value) in stuck:
            raise ValueError

    return passes


def awaited(stuck: set[int]) -> object:
    @bolt
    async def passes(record: Record) -> int:
        if number(record.value) in stuck:
            raise ValueError
        return number(record.value)

    return passes


def vectorised(stuck: set[int]) -> object:
    @bolt(vectorised=True, columns=["value"])
    def passes(batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = pc.cast(pc.cast(batch["value"], pa.string()), pa.int64())
        if not stuck.isdisjoint(numbers.to_pylist()):
            raise ValueError
        return batch.set_column(batch.schema.get_field_index("value"), "value", numbers)

    return passes


KINDS = pytest.mark.parametrize("kind", [function, fan_out, awaited, vectorised])


class Rows(HeldSink):
    """Keeps the numbers, of columns too."""

    def commit(self, staged: Staged) -> None:
        for piece in staged.parts:
            rows = piece["value"].to_pylist() if isinstance(piece, pa.RecordBatch) else piece
            self.rows += rows


@KINDS
@given(st.data())
@settings(max_examples=8)
def test_stored_offset_is_the_lowest_failing_record(kind, data):
    """Promise 1: single, adjacent and alternating gaps, in chunks and across them."""
    count = data.draw(st.integers(1, 16), "records")
    stuck = data.draw(st.sets(st.integers(0, count - 1)), "stuck")
    order = data.draw(st.permutations(sorted(stuck)), "the order in which they come right")
    chunk = data.draw(st.integers(1, 8), "records of a chunk")
    with Works(kind(stuck), sinks=[Rows()], retries=ALWAYS, fetch_records=chunk) as works:
        works.send(*(b"%d" % offset for offset in range(count)))
        for offset in order:
            works.until(lambda: len(works.sink.rows) == count - len(stuck))
            works.until(lambda: works.stored == min(stuck))
            works.until(lambda: works.ledger.failed == len(stuck))  # no call of theirs runs
            assert works.stored == min(stuck)
            stuck.remove(offset)
            works.advance(RETRY_SECONDS)
        works.finish()
    assert sorted(works.sink.rows) == list(range(count))
    assert works.letters_sink.letters == []


@KINDS
def test_hopeless_records_are_rejected_one_by_one(kind):
    """Promise 13: one in a batch, two beside each other, every second one, the first, the last."""
    stuck = {0, 10, 20, 21, 30, 32, 34, 39}
    with Works(kind(set(stuck)), sinks=[Rows()], retries=NEVER, fetch_records=7) as works:
        works.send(*(b"%d" % offset for offset in range(40)))
        works.until(lambda: len(works.sink.rows) == 40 - len(stuck))
        works.until(lambda: works.stored == 0)
        works.advance(RETRY_SECONDS * 3)
        works.finish()
    assert sorted(works.sink.rows) == sorted(set(range(40)) - stuck)
    letters = works.letters_sink.letters
    assert sorted(letter.record.offset for letter in letters) == sorted(stuck)
    assert {letter.attempts for letter in letters} == {NEVER.limit + 1}
