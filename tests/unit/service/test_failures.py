"""Which records no bolt sees."""

from types import SimpleNamespace

import numpy as np
import pytest

from headrace import Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.chunk import Chunk, Partition
from partition.memory import MemoryMessage
from service.context import Observers
from service.failures import FailureHandler, Oversized, ScreenPolicy
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
    """The chunk goes on without them; one that needs nothing of it is the same chunk."""
    values = [b"a", None, b"b" * 20, b""]
    messages = [MemoryMessage(ORDERS, place, value) for place, value in enumerate(values)]
    chunk, owners = Chunk(ORDERS, np.arange(4), messages), np.arange(70, 74)
    rejected, skipped = [], []
    handler = FailureHandler(
        None,
        SimpleNamespace(comes_again=None),
        None,
        SimpleNamespace(tally=None, resolved=lambda *done: skipped.append(done)),
        {},
        ScreenPolicy("skip", 10),
        SimpleNamespace(complaints=SimpleNamespace(hear=None), on=Observers(), traces=None),
    )
    handler.reject_records = rejected.extend
    kept, kept_owners = handler.screen(chunk, owners)
    assert kept.offsets.tolist() == [0, 3]
    assert kept.messages == [messages[0], messages[3]]
    assert kept_owners.tolist() == [70, 73]
    ((of_skipped, flags),) = skipped
    assert (of_skipped.tolist(), flags.tolist()) == ([71], [0])
    ((owner, failure),) = rejected
    assert (owner, failure.step) == (72, "screen")
    assert isinstance(failure.error, Oversized)
    assert handler.screen(kept, kept_owners)[0] is kept
