import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.records import Partition
from tests.support.messages import message
from topology.record import Record
from topology.vectorised import columns_of, has_line_breaks


def messages_of(values):
    partition = Partition("in", 3)
    return [message(partition, 7 + at, value, key=b"k") for at, value in enumerate(values)]


@pytest.mark.parametrize("line_breaks", [False, True])
def test_columns_have_the_wanted_order_and_types(line_breaks):
    batch = columns_of(messages_of([b"a"]), ["offset", "key"], line_breaks=line_breaks)
    assert batch.to_pylist() == [{"offset": 7, "key": b"k"}]
    wanted = ["key", "partition", "offset", "timestamp_ms"]
    batch = columns_of(messages_of([b"a", b"b"]), wanted, line_breaks=line_breaks)
    kinds = [pa.binary(), pa.int32(), pa.int64(), pa.int64()]
    assert batch.schema == pa.schema(list(zip(wanted, kinds, strict=True)))
    assert not any(map(has_line_breaks, batch.schema))


@given(st.lists(st.none() | st.binary(max_size=6) | st.just(b"\n"), max_size=8), st.booleans())
def test_values_are_kept_and_ended_by_a_line_break(values, line_breaks):
    batch = columns_of(messages_of(values), ["value"], line_breaks=line_breaks)
    batch.validate(full=True)
    ending = b"\n" if line_breaks else b""
    ended = [None if value is None else value + ending for value in values]
    assert batch.column("value").to_pylist() == ended
    assert has_line_breaks(batch.schema.field("value")) == line_breaks


def test_parts_of_a_batch_keep_the_mark_of_line_breaks():
    batch = columns_of(messages_of([b"a", b"b", None]), ["value"], line_breaks=True)
    wider = batch.append_column("n", pa.array([1, 2, 3]))
    parts = [batch, batch.slice(1), batch.take(pa.array([2, 0])), wider]
    parts.append(wider.filter(pa.array([True, False, True])))
    assert all(has_line_breaks(part.schema.field("value")) for part in parts)
    anew = pa.record_batch({"value": batch.column("value")})
    assert not has_line_breaks(anew.schema.field("value"))


def test_record_can_be_pickled_with_its_message():
    (message,) = messages_of([b"abc"])
    record = Record(message.value(), message)
    for _ in range(2):
        record = pickle.loads(pickle.dumps(record))  # noqa: S301 - ours
        told = (record.value, record.key, record.topic, record.partition, record.offset)
        assert told == (b"abc", b"k", "in", 3, 7)
        assert (record.timestamp_ms, record.headers) == (message.timestamp()[1], ())
        assert (record.message.value(), len(record.message)) == (b"abc", 3)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ((b"a",), b"a"), ((), None), (("ä",), "ä".encode()), (({"n": 1},), b'{"n":1}'),
        (([1],), b"[1]"), ((bytearray(b"a"),), b"a"), ((memoryview(b"a"),), b"a"),
    ],
)  # fmt: skip
def test_record_is_made_of_values(given, value):
    record = Record.make(*given, key="k", headers={"h": "1", "none": None}, topic="in", offset=7)
    assert (record.value, record.message.value(), record.key) == (value, value, b"k")
    assert record.headers == (("h", b"1"), ("none", None))
    assert (record.topic, record.partition, record.offset, record.timestamp_ms) == ("in", 0, 7, 0)


def test_record_shows_its_place_and_the_beginning_of_a_long_value():
    record = Record.make("<" + "x" * 99, headers=[("h", b"1")])
    assert repr(record) == f"Record(test[0]@0, key=None, value={b'<' + b'x' * 59!r}… (100 bytes))"
    page = record._repr_html_()
    assert page.count("<tr>") == 5
    assert "<td>h=b&#x27;1&#x27;</td>" in page
    assert "&lt;" + "x" * 99 in page
