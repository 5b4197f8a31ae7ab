import pickle
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import numpy as np
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Record
from partition.records import Partition
from tests.support.messages import message
from topology.vectorised import as_row, columns_of, columns_of_values, has_line_breaks


class Flight(msgspec.Struct, rename="camel"):
    flight_number: int
    gate: str | None = None


@dataclass
class Plain:
    n: int
    raw: bytes = b"\0"


class Parcel(pydantic.BaseModel):
    id: int
    raw: bytes = b"\0"


def rows_of(columns):
    return {
        index: {name: cell for name, cell in row.items() if cell is not None}
        for batch, indices in columns.batches
        for index, row in zip(indices.tolist(), batch.to_pylist(), strict=True)
    }


def test_typed_records_and_mappings_are_rows():
    counts = defaultdict(int, a=1)
    values = [Flight(7), Plain(1), counts, MappingProxyType({"b": 2}), Parcel(id=3)]
    columns = columns_of_values(values)
    assert rows_of(columns) == {
        0: {"flightNumber": 7},
        1: {"n": 1, "raw": b"\0"},
        2: {"a": 1},
        3: {"b": 2},
        4: {"id": 3, "raw": b"\0"},
    }
    assert counts == {"a": 1}


@pytest.mark.parametrize(
    "value", [7, "text", [{"a": 1}], ("a", 1), pa.scalar(1), Record(b"1", Plain(1)), subprocess]
)
def test_other_value_is_refused_alone(value):
    assert as_row(value) is None
    columns = columns_of_values([{"n": 1}, value, {"n": 2}])
    assert rows_of(columns) == {0: {"n": 1}, 2: {"n": 2}}
    said = columns.refused.pop(1)
    assert said.startswith("expected a mapping, a dataclass or a msgspec.Struct")
    assert ("flat_map" in said) == isinstance(value, list | tuple), "how to send each item"
    assert not columns.refused


def test_rows_without_columns_are_refused():
    columns = columns_of_values([{}, {}])
    assert (columns.batches, columns.refused) == ([], {0: "it is empty", 1: "it is empty"})


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.dictionaries(
                st.sampled_from("abc"), st.integers(0, 9) | st.text(max_size=2) | st.builds(object)
            ),
        ),
        max_size=30,
    )
)
def test_each_value_is_a_whole_row_once_or_refused(values):
    columns = columns_of_values(values)
    found = rows_of(columns)
    assert sorted([*found, *columns.refused]) == list(range(len(values)))
    assert all(row == values[index] for index, row in found.items())


def test_a_wide_row_does_not_widen_all_others():
    wide = {"n": 1000} | {f"k{number}": number for number in range(20_000)}
    values = [{"n": number} for number in range(1000)] + [wide] + [{"n": 1001}] * 999
    columns = columns_of_values(values)
    assert columns.refused == {}
    assert sum(batch.num_rows * batch.num_columns for batch, _ in columns.batches) < 2_000_000
    indices = np.concatenate([indices for _, indices in columns.batches])
    assert sorted(indices.tolist()) == list(range(len(values)))
    (found,) = [batch for batch, _ in columns.batches if batch.num_columns > 1]
    assert found.num_rows <= 50
    assert rows_of(columns)[1000] == wide


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
