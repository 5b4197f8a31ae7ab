"""What becomes of records that fail in a chunk, and which of them no bolt sees."""

import pytest

from headrace import SKIP, Reject, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import RetryPolicy, topology_test
from partition.records import Partition
from service.pipeline.failures import ScreenPolicy
from service.testing.kit import TopologyTest

ORDERS = Partition("orders", 0)


@bolt
def value_of(record):
    return {"value": repr(record.value)}


def kit(**policy) -> TopologyTest:
    topology = Topology("screened")
    topology.source("orders").then(value_of).into(MemorySink())
    topology.dead_letters.into(MemoryDeadLetters())
    return TopologyTest(topology, screen=ScreenPolicy(**policy))


@pytest.mark.parametrize(
    ("policy", "rows", "letters"),
    [
        ("deliver", ["b'x'", "None", "b''"], 0),
        ("skip", ["b'x'", "b''"], 0),
        ("dead-letter", ["b'x'", "b''"], 1),
    ],
)
def test_tombstone_follows_null_values(policy, rows, letters):
    """Storm 22: a record without a value completes under every policy."""
    with kit(null_values=policy) as test:
        test.send(b"x", None, b"", key=None)
        assert [row["value"] for row in test.rows] == rows
        assert len(test.rejected) == letters
        assert next(test._reader.statistics(0.0)).ledger.last_completed_offset == 3


def test_oversized_record_is_rejected_by_reference():
    with kit(max_record_bytes=10) as test:
        test.send(b"x" * 10, b"y" * 11)
        assert len(test.rows) == 1
        (letter,) = test.rejected
    assert letter.by_reference
    assert letter.error_class == "Oversized"
    assert letter.step == "screen"


@bolt
def judged(record):
    value = record.value.decode()
    if value == "rejected":
        raise Reject(f"rejected {record.offset}")
    if value == "broken":
        return None
    if value == "failing" or (value == "late" and record.offset not in LATE):
        LATE.add(record.offset)
        raise ValueError(f"failing {record.offset}")
    return SKIP if value == "skipped" else {"offset": record.offset}


LATE: set[int] = set()


@pytest.mark.parametrize("limit", [0, 2])
def test_each_failed_record_of_a_chunk_is_retried_or_rejected(limit):
    """Promise 13; Storm 22. They get their letters together, in trees of their own."""
    LATE.clear()
    topology = Topology("judged")
    topology.source("orders").then(judged).into(MemorySink())
    topology.dead_letters.into(MemoryDeadLetters())
    kinds = ["good", "rejected", "failing", "broken", "late", "skipped", "rejected", "good"]
    with topology_test(topology, retries=RetryPolicy(limit=limit, jitter=0)) as test:
        test.send(*(kind.encode() for kind in kinds))
        test.advance(120)
        letters = {each.record.offset: each for each in test.rejected}
        assert len(letters) == len(test.rejected)
        told = {offset: (each.error_class, each.attempts) for offset, each in letters.items()}
        lost = {2: ("ValueError", limit + 1)} | ({} if limit else {4: ("ValueError", 1)})
        assert told == {1: ("Reject", 1), 3: ("NothingReturned", 1), 6: ("Reject", 1)} | lost
        assert {letters[place].reason for place in (1, 6)} == {"rejected 1", "rejected 6"}
        assert sorted(row["offset"] for row in test.rows) == [0, *([4] if limit else []), 7]
        assert test.unresolved == 0
        counters = test._pipeline.counters
        assert (counters.written, counters.filtered) == (len(test.rows), 1)
        assert counters.dead_lettered == len(letters)
