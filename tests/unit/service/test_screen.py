"""Which records no bolt sees."""

import numpy as np
import pytest

from headrace import Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.chunk import Chunk, Partition
from partition.memory import MemoryMessage
from service.screen import Oversized, ScreenPolicy, only, screen
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
def test_a_tombstone_is_what_policy_says_and_an_empty_value_is_none(policy, rows, letters):
    """Storm 22: a record without a value completes under every policy."""
    with kit(null_values=policy) as test:
        test.send(b"x", None, b"", key=None)
        assert [row["value"] for row in test.rows] == rows
        assert len(test.rejected) == letters
        assert next(test._bench.reader.statistics(0.0)).ledger.frontier == 3


def test_a_record_larger_than_is_wanted_becomes_a_letter_without_its_payload():
    with kit(max_record_bytes=10) as test:
        test.send(b"x" * 10, b"y" * 11)
        assert len(test.rows) == 1
        (letter,) = test.rejected
    assert letter.by_reference
    assert letter.error_class == "Oversized"
    assert letter.step == "screen"


def test_only_unusual_records_are_set_apart():
    values = [b"a", None, b"b" * 20, b""]
    messages = [MemoryMessage(ORDERS, place, value) for place, value in enumerate(values)]
    chunk = Chunk(ORDERS, np.arange(4), messages)
    screened = screen(chunk, ScreenPolicy("skip", 10))
    assert (screened.kept, screened.skipped) == ([0, 3], [1])
    assert isinstance(screened.refused[2], Oversized)
    assert only(chunk, screened.kept).offsets.tolist() == [0, 3]
    assert only(chunk, [0, 1, 2, 3]) is chunk
