import json as standard
from datetime import UTC, datetime
from typing import NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from partition.records import Partition
from tests.support.messages import message
from topology.errors import BoltError, InvalidTopology
from topology.payloads.documents import DEFAULT, Limits, json
from topology.payloads.json_columns import json_columns, lines_of
from topology.record import Record, Reject
from topology.schema import schema_of
from topology.vectorised import call_columns, columns_of

pa.array(np.arange(1))  # the first call imports pandas, which is no part of an example's time


class Item(TypedDict):
    id: int
    name: NotRequired[str | None]
    price: NotRequired[float | None]


SMALL = Limits(max_bytes=40, max_depth=3, max_number_digits=12)


def batch_of(values, *, line_breaks=False):
    place = Partition("in", 0)
    messages = [message(place, at, value) for at, value in enumerate(values)]
    return columns_of(messages, ["value"], line_breaks=line_breaks)


def read(batch, schema=Item, limits=DEFAULT):
    """The rows by their places, and the reasons of those rejected."""
    called = call_columns("json_columns", json_columns(schema, limits=limits).function, batch)
    assert all(isinstance(error, Reject) for error in called.failures.values())
    reasons = {place: error.reason for place, error in called.failures.items()}
    if not called.sent:
        return {}, reasons
    sent = called.sent["default"]
    places = range(len(sent.piece)) if sent.parents is None else sent.parents.tolist()
    return dict(zip(places, sent.piece.to_pylist(), strict=True)), reasons


def row(number, name=None, price=None):
    return {"id": number, "name": name, "price": price}


def test_columns_the_bolt_does_not_know_travel_on():
    bolt = json_columns(Item, keep=["offset"])
    assert bolt.columns == ("value", "offset")
    batch = batch_of([b'{"id":1}']).append_column("other", pa.array(["x"]))
    assert bolt.function(batch).to_pylist() == [row(1) | {"other": "x"}]
    with pytest.raises(BoltError, match="reads a binary column 'value'"):
        bolt.function(batch.drop_columns(["value"]))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (None, "the record has no value"),
        (b'{"id":1}\n{"id":2}', "invalid JSON at byte 9: extra data"),
        (b"[1]", "wrong value at `$`: found `array`, expected `object`"),
        (b'{"id":"1"}', "wrong value at `$.id`: found `str`, expected `int`"),
        (b'{"id":1,"name":3}', "wrong value at `$.name`: found `int`, expected `str | null`"),
        (b'{"id":1,"price":1e999}', "wrong value at `$.price`: number out of range"),
        (b'{"name":"a"}', "wrong value at `$`: object missing required field `id`"),
        (b'{"id":null}', "wrong value at `$.id`: found `null`, expected `int`"),
    ],
)
def test_a_bad_row_is_rejected_alone_with_the_reason_that_json_gives(bad, reason):
    values = [b'{"id":1}', b'{"id":2}', bad, b'{"id":4}', b'{"id":5}']
    rows, reasons = read(batch_of(values))
    assert rows == {0: row(1), 1: row(2), 3: row(4), 4: row(5)}
    assert reasons == {2: reason}
    with pytest.raises(Reject) as rejected:
        json(Item)(Record(bad, None))
    assert rejected.value.reason == reason


PIECES = st.sampled_from(
    [b"%c" % code for code in b'{}[]",:1 \\\n\r\0']
    + [b'"id"', b'"id":1', b"null", b"\xff", "é".encode(), b'{"id":1}', b'{"id":2,"x":[{}']
    + [b'{"id":3}\n', b'{"id":\n4,"name":"b"}', b'{"id":5,"name":"', b"[" * 4, b"1" * 13]
)
VALUES = st.lists(st.none() | st.lists(PIECES, max_size=6).map(b"".join), min_size=1, max_size=6)


@given(VALUES, st.data())
@example([b'{"id":1}{"id":2}', b'{"id":3}\0}', b'{"id":4}'], None)
@example([b'{"id":5,"name":"}', b'{"}', b'{"id":1}{"id":2}'], None)
@example([b'{"id":1}\n{"id":2}', b'{"id":3,"x":[{"a":1}', b'{"id":4}]}'], None)
@example([b'{"id":3}\n', b'{"id":3}', b'{"id":3}\n\n'], None)
@example([b'{"id":1,"name":"' + b"a" * 23 + b'"}', b'{"id":1,"name":"' + b"a" * 22 + b'"}\n'], None)
def test_each_row_is_its_own_records_with_and_without_line_breaks(values, data):
    """Also those of slices, and of rows that were taken in another order."""
    order = list(reversed(range(len(values))))
    start, stop = 0, len(values)
    if data is not None:
        order = data.draw(st.permutations(order))
        start = data.draw(st.integers(0, len(values)))
        stop = data.draw(st.integers(start, len(values)))
    for chosen in (list(range(len(values))), list(range(start, stop)), order):
        rows, reasons = read(batch_of([values[at] for at in chosen]), limits=SMALL)
        assert sorted([*rows, *reasons]) == list(range(len(chosen)))
        for place, found in rows.items():
            assert standard.loads(values[chosen[place]])["id"] == found["id"]
        for line_breaks in (False, True):
            whole = batch_of(values, line_breaks=line_breaks)
            is_slice = chosen == list(range(start, stop))
            part = whole.slice(start, stop - start) if is_slice else whole.take(pa.array(chosen))
            assert read(part, limits=SMALL) == (rows, reasons)


def test_lines_stand_where_the_values_are_also_of_a_slice_and_of_rows_that_were_taken():
    batch = batch_of([b'{"id":%d}' % number for number in range(20)], line_breaks=True)
    whole = batch.column("value")
    for values, first, size in (
        (whole, 0, 10 * 9 + 10 * 10),
        (whole.slice(3, 5), 27, 45),
        (whole.slice(8).slice(1, 2), 81, 19),
        (whole.take(pa.array([12, 3])), 0, 19),
    ):
        text = lines_of(values, SMALL, with_breaks=True)
        assert text.to_pybytes() == b"".join(values.to_pylist())
        assert (text.address, text.size) == (values.buffers()[2].address + first, size)


def test_chunks_of_nested_and_of_numeric_documents_are_not_read_again(monkeypatch):
    monkeypatch.setattr("topology.payloads.json_columns._Reader._rewritten", None)
    nested = [b'{"id":%d,"x":{"y":[1,{"z":[]}]}}' % number for number in range(500)]
    numeric = [b'{"id":%d,"x":[%s1]}' % (number, b"12345678," * 100) for number in range(500)]
    for values in (nested, numeric, [*nested, *numeric]):
        out = json_columns(Item).function(batch_of([b"x", *values]).slice(1))
        assert out.num_rows == len(values)


@pytest.mark.parametrize("line_breaks", [False, True])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"id":1,"name":"' + b"a" * 22 + b'"}', None),
        (b'{"id":1,"name":"' + b"a" * 23 + b'"}', "41 bytes, expected at most 40"),
        (b'{"id":1,"x":[[1,2]]}', None),
        (b'{"id":1,"x":[[[1]]]}', "nested 4 deep, expected at most 3"),
        (b'{"id":1,"x":{"y":{"z":{}}}}', "nested 4 deep, expected at most 3"),
        (b'{"id":123456789012}', None),
        (b'{"id":1234567890123}', "a number of 13 digits, expected at most 12"),
        ('{"id":1,"name":"é"}'.encode(), None),
        (b'{"id":1,"name":"\xed\xa0\x80"}', "invalid UTF-8 at byte 16"),  # half a surrogate pair
        (b'{"id":1,"name":"\xc0\xaf"}', "invalid UTF-8 at byte 16"),  # longer than it must be
    ],
)
def test_a_limit_is_kept_to_the_byte_among_many_rows(value, reason, line_breaks):
    values = [b'{"id":%d,"x":[]}' % number for number in range(100)]
    batch = batch_of([*values, value, *values], line_breaks=line_breaks)
    rows, reasons = read(batch, limits=SMALL)
    assert reasons == ({} if reason is None else {100: reason})
    assert len(rows) == (200 if reason else 201)


@given(st.lists(st.lists(st.sampled_from(b'{}[]"x'), max_size=12), min_size=1, max_size=8))
def test_no_value_that_is_too_deep_passes_for_one_that_is_not(inner):
    screen = SMALL.json_screen()
    for value in [b"{" + bytes(each) + b"}" for each in inner]:
        column = batch_of([value], line_breaks=True).column("value")
        text = lines_of(column, SMALL, with_breaks=True)
        assert text is None or screen(value) is None


SCHEMA = schema_of(Item)


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (int, {}, "found <class 'int'>, expected a TypedDict"),
        (TypedDict("Counts", {"a": dict[str, int]}), {}, "map<.*JSON cannot be read"),
        (pa.schema([("a", pa.month_day_nano_interval())]), {}, "JSON cannot be read"),
        (SCHEMA, {"keep": ["colour"]}, "found 'colour', expected some of key, partition"),
        (SCHEMA, {"keep": ["value"]}, "'value'"),
        (SCHEMA, {"keep": ["offset", "offset"]}, "twice"),
        (pa.schema([("key", pa.string())]), {"keep": ["key"]}, "key would be a column twice"),
    ],
)
def test_invalid_schema_or_column_is_refused_when_the_bolt_is_made(schema, options, message):
    with pytest.raises(InvalidTopology, match=message):
        json_columns(schema, **options)


class Seat(TypedDict):
    row: int
    letter: str | None


class Flight(TypedDict):
    number: int
    seats: list[Seat]
    gate: NotRequired[Seat]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (b'{"number":2,"seats":[null]}', "`$.seats[0]`: found `null`, expected `object`"),
        (
            b'{"number":2,"seats":[{"row":1},{"letter":"A"}]}',
            "`$.seats[1]`: object missing required field `row`",
        ),
        (
            b'{"number":2,"seats":[],"gate":{"row":null}}',
            "`$.gate.row`: found `null`, expected `int`",
        ),
    ],
)
def test_a_misplaced_null_within_rejects_its_row_alone(value, place):
    good = b'{"number":1,"seats":[{"row":1}],"gate":{"row":4}}'
    rows, reasons = read(batch_of([good, value, good]), Flight)
    assert (list(rows), reasons) == ([0, 2], {1: f"wrong value at {place}"})


def test_nested_columns_and_times_are_read_and_infinite_numbers_within_rejected():
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.list_(pa.string())),
            ("places", pa.list_(pa.struct([("lat", pa.float64())]))),
        ]
    )
    text = b'{"at":"2013-01-01T10:00:00Z","tags":["a"],"places":[{"lat":%b}]}'
    numbers = [b"1", b"NaN", b"Infinity", b"1e999", b"1e-3"]
    rows, reasons = read(batch_of([*(text % each for each in numbers), b"{}"]), schema)
    at = datetime(2013, 1, 1, 10, tzinfo=UTC)
    assert rows == {
        0: {"at": at, "tags": ["a"], "places": [{"lat": 1.0}]},
        4: {"at": at, "tags": ["a"], "places": [{"lat": 0.001}]},
        5: {"at": None, "tags": None, "places": None},
    }
    assert sorted(reasons) == [1, 2, 3]
