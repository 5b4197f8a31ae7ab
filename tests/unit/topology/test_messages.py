"""What bolts are given of messages: records, and columns with or without line breaks."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.memory import MemoryMessage
from partition.records import Partition
from topology.executor import _records_of
from topology.record import Record
from topology.vectorised import columns_of, has_line_breaks

PLACE = Partition("in", 3)
VALUES = st.lists(st.none() | st.binary(max_size=6) | st.just(b"\n"), max_size=8)


def messages_of(values):
    return [MemoryMessage(PLACE, 7 + at, value, b"k") for at, value in enumerate(values)]


def test_messages_become_records_that_know_their_messages():
    [first, second] = _records_of(messages_of([b"a", None]))
    assert (first.value, first.key, first.offset) == (b"a", b"k", 7)
    assert (second.value, second.partition, second.offset) == (None, 3, 8)
    assert _records_of([]) == []


@pytest.mark.parametrize("line_breaks", [False, True])
def test_those_columns_are_made_that_are_wanted_in_their_order(line_breaks):
    batch = columns_of(messages_of([b"a"]), ["offset", "key"], line_breaks=line_breaks)
    assert batch.to_pylist() == [{"offset": 7, "key": b"k"}]
    wanted = ["key", "partition", "offset", "timestamp_ms"]
    batch = columns_of(messages_of([b"a", b"b"]), wanted, line_breaks=line_breaks)
    kinds = [pa.binary(), pa.int32(), pa.int64(), pa.int64()]
    assert batch.schema == pa.schema(list(zip(wanted, kinds, strict=True)))
    assert not any(map(has_line_breaks, batch.schema))


@given(VALUES)
def test_values_are_as_the_messages_have_them(values):
    batch = columns_of(messages_of(values), ["value"])
    batch.validate(full=True)
    assert batch.column("value").to_pylist() == values
    assert not has_line_breaks(batch.schema.field("value"))


@given(VALUES)
def test_with_line_breaks_each_value_ends_with_one_more(values):
    batch = columns_of(messages_of(values), ["value"], line_breaks=True)
    batch.validate(full=True)
    ended = [None if value is None else value + b"\n" for value in values]
    assert batch.column("value").to_pylist() == ended


def test_that_values_have_line_breaks_is_known_of_every_part_of_a_batch():
    batch = columns_of(messages_of([b"a", b"b", None]), ["value"], line_breaks=True)
    wider = batch.append_column("n", pa.array([1, 2, 3]))
    parts = [batch, batch.slice(1), batch.take(pa.array([2, 0])), wider]
    parts.append(wider.filter(pa.array([True, False, True])))
    assert all(has_line_breaks(part.schema.field("value")) for part in parts)
    anew = pa.record_batch({"value": batch.column("value")})
    assert not has_line_breaks(anew.schema.field("value"))


def test_a_record_can_be_pickled_with_all_that_its_message_tells():
    message = MemoryMessage(PLACE, 7, b"abc", b"k")
    record = pickle.loads(pickle.dumps(Record(message.value(), message)))  # noqa: S301 - ours
    again = pickle.loads(pickle.dumps(record))  # noqa: S301
    for each in (record, again):
        told = (each.value, each.key, each.topic, each.partition, each.offset)
        assert told == (b"abc", b"k", "in", 3, 7)
        assert (each.timestamp_ms, each.headers) == (message.timestamp()[1], ())
        assert each.message.value() == b"abc"
        assert len(each.message) == 3
