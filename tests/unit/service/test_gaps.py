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
from partition.ledger import RetryPolicy
from tests.support.pipeline import RETRY_SECONDS, Works, as_bolt

ALWAYS = RetryPolicy(limit=10**6, initial_seconds=RETRY_SECONDS, multiplier=1, jitter=0)


def passing(kind, stuck):
    def check(number):
        if number in stuck:
            raise ValueError
        return number

    @bolt
    def fan_out(record: Record) -> Iterator[int]:
        yield int(record.value or b"")
        check(int(record.value or b""))

    @bolt(vectorised=True, columns=["value"])
    def vectorised(batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = pc.cast(pc.cast(batch["value"], pa.string()), pa.int64())
        if not stuck.isdisjoint(numbers.to_pylist()):
            raise ValueError
        return batch.set_column(batch.schema.get_field_index("value"), "value", numbers)

    made = {"fan_out": fan_out, "vectorised": vectorised}
    return made.get(kind) or as_bolt(kind, lambda record: check(int(record.value)))


def rows(works):
    return sorted(row["value"] if isinstance(row, dict) else row for row in works.sink.rows)


@pytest.mark.parametrize("kind", ["function", "fan_out", "async", "vectorised"])
@given(st.data())
@settings(max_examples=8)
def test_stored_offset_is_the_lowest_failing_record(kind, data):
    """Promise 1: single, adjacent and alternating gaps, in chunks and across them."""
    count = data.draw(st.integers(1, 16), "records")
    stuck = data.draw(st.sets(st.integers(0, count - 1)), "stuck")
    order = data.draw(st.permutations(sorted(stuck)), "the order in which they come right")
    chunk = data.draw(st.integers(1, 8), "records of a chunk")
    with Works(passing(kind, stuck), retries=ALWAYS, fetch_records=chunk) as works:
        works.send(*(b"%d" % offset for offset in range(count)))
        for offset in order:
            works.until(lambda: len(works.sink.rows) == count - len(stuck))
            works.until(lambda: works.stored == min(stuck))
            works.until(lambda: works.ledger.failed == len(stuck))  # no call of theirs runs
            assert works.stored == min(stuck)
            stuck.remove(offset)
            works.advance(RETRY_SECONDS)
        works.finish()
    assert rows(works) == list(range(count))
    assert works.letters_sink.letters == []
