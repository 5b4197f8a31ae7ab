"""JSON documents as columns: each row is its own record's, and a bad one is rejected alone."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.errors import BoltError, InvalidTopology
from topology.payloads.json_columns import json_columns
from topology.record import Reject
from topology.schema import schema_of
from topology.vectorised import call_columns

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64()),
    ]
)


def batch_of(values, **more):
    columns = {"value": pa.array(values, pa.binary()), **more}
    return pa.RecordBatch.from_pydict(columns)


def called(values, schema=SCHEMA, **options):
    bolt = json_columns(schema, **options)
    return call_columns("json_columns", bolt.function, batch_of(values))


def rows_of(outcome):
    places = range(len(outcome.piece)) if outcome.parents is None else outcome.parents.tolist()
    return dict(zip(places, outcome.piece.to_pylist(), strict=True))


def reasons_of(outcome):
    assert all(isinstance(error, Reject) for error in outcome.failures.values())
    return {place: error.reason for place, error in outcome.failures.items()}


def row(number, name=None, price=None):
    return {"id": number, "name": name, "price": price}


def test_columns_the_bolt_does_not_know_travel_on():
    bolt = json_columns(SCHEMA, keep=["offset"])
    assert bolt.columns == ("value", "offset")
    out = bolt.function(batch_of([b'{"id":1}'], offset=[7], other=["x"]))
    assert out.to_pylist() == [row(1) | {"offset": 7, "other": "x"}]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (None, "the record has no value"),
        (b"", "invalid JSON at byte 0: expecting value"),
        (b'{"id":1', "invalid JSON at byte 7: expecting ',' delimiter"),
        (b'{"id":1}}', "invalid JSON at byte 8: extra data"),
        (b'{"id":1}{"id":2}', "invalid JSON at byte 8: extra data"),
        (b'{"id":1}\n{"id":2}', "invalid JSON at byte 9: extra data"),
        (b"[1]", "wrong value at `$`: found `array`, expected `object`"),
        (b"7", "wrong value at `$`: found `int`, expected `object`"),
        (b'{"id":"1"}', "wrong value at `$.id`: found `str`, expected `int`"),
        (b'{"id":true}', "wrong value at `$.id`: found `bool`, expected `int`"),
        (b'{"id":1,"name":3}', "wrong value at `$.name`: found `int`, expected `str | null`"),
        (b'{"id":1,"name":"\xff"}', "invalid UTF-8 at byte 16"),
        (b'{"id":1,"price":NaN}', "invalid JSON at byte 16: found NaN"),
        (b'{"id":1,"price":-Infinity}', "invalid JSON at byte 16: found -Infinity"),
        (b'{"id":1,"price":1e999}', "wrong value at `$.price`: number out of range"),
        (b'{"name":"a"}', "wrong value at `$`: object missing required field `id`"),
        (b'{"id":null}', "wrong value at `$.id`: found `null`, expected `int`"),
        (b'{"id":1.5}', "wrong value at `$.id`: found `float`, expected `int`"),
        (b'{"id":1,"x":' + b"[" * 64 + b"]" * 64 + b"}", "nested 65 deep; at most 64 is allowed"),
        (b'{"id":' + b"1" * 1001 + b"}", "a number of 1001 digits; at most 1000 are allowed"),
    ],
)
def test_a_bad_row_is_rejected_alone_with_its_reason(bad, reason):
    values = [b'{"id":1}', b'{"id":2}', bad, b'{"id":4}', b'{"id":5}']
    outcome = called(values)
    assert reasons_of(outcome) == {2: reason}
    assert rows_of(outcome) == {0: row(1), 1: row(2), 3: row(4), 4: row(5)}


PIECES = st.sampled_from(
    [*'{}[]",:1 \\\n\0', '"id"', '"id":1', "null", '{"id":1}', '{"id":2,"x":[{}']
)


@given(st.lists(st.lists(PIECES, max_size=7).map("".join), min_size=1, max_size=6))
def test_whatever_the_values_are_each_row_is_its_own_records(texts):
    outcome = called([text.encode() for text in texts])
    for place, found in rows_of(outcome).items():
        assert json.loads(texts[place], strict=True).get("id") == found["id"]
    assert set(outcome.failures) == set(range(len(texts))) - set(rows_of(outcome))


def test_whole_chunks_of_nested_and_of_numeric_documents_need_no_closer_look(monkeypatch):
    monkeypatch.setattr("topology.payloads.json_columns._Reader._rewritten", None)
    nested = [b'{"id":%d,"x":{"y":[1,{"z":[]}]}}' % number for number in range(500)]
    numeric = [b'{"id":%d,"x":[%s1]}' % (number, b"12345678," * 100) for number in range(500)]
    for values in (nested, numeric, [*nested, *numeric]):
        out = json_columns(SCHEMA).function(batch_of([b"x", *values]).slice(1))
        assert out.num_rows == len(values)


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (pa.schema([]), {}, "at least one"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), {}, "a column twice"),
        (int, {}, "found <class 'int'>, expected a TypedDict"),
        (TypedDict("Counts", {"a": dict[str, int]}), {}, "map<.*JSON cannot be read"),
        (pa.schema([("a", pa.month_day_nano_interval())]), {}, "JSON cannot be read"),
        (SCHEMA, {"keep": ["colour"]}, "found 'colour', expected some of key, partition"),
        (SCHEMA, {"keep": ["value"]}, "'value'"),
        (SCHEMA, {"keep": ["offset", "offset"]}, "twice"),
        (pa.schema([("key", pa.string())]), {"keep": ["key"]}, "key would be a column twice"),
    ],
)
def test_what_cannot_be_is_refused_when_the_topology_is_drawn(schema, options, message):
    with pytest.raises(InvalidTopology, match=message):
        json_columns(schema, **options)


class Seat(TypedDict):
    row: int
    letter: str | None


class Flight(TypedDict):
    number: int
    seats: list[Seat]
    gate: NotRequired[Seat]


@dataclass
class PlainFlight:
    number: int
    seats: list[Seat]
    gate: Seat | None


class StructFlight(msgspec.Struct):
    number: int
    seats: list[Seat]
    gate: Seat | None = None


@pytest.mark.parametrize("kind", [Flight, PlainFlight, StructFlight])
def test_the_type_of_the_rows_gives_the_schema_as_it_does_for_a_sink(kind):
    seat = b'{"row":1,"letter":"A"}'
    values = [
        b'{"number":1,"seats":[]}',
        b'{"number":2,"seats":[%b,{"row":2}],"gate":%b}' % (seat, seat),
        b'{"number":3,"seats":[],"gate":null}',
    ]
    outcome = called(values, kind)
    outcome.piece.validate(full=True)
    assert outcome.piece.schema == schema_of(kind)
    first = {"row": 1, "letter": "A"}
    assert rows_of(outcome) == {
        0: {"number": 1, "seats": [], "gate": None},
        1: {"number": 2, "seats": [first, {"row": 2, "letter": None}], "gate": first},
        2: {"number": 3, "seats": [], "gate": None},
    }


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
def test_a_null_within_that_may_not_be_rejects_its_row_alone(value, place):
    good = b'{"number":1,"seats":[{"row":1}],"gate":{"row":4}}'
    outcome = called([good, value, good], Flight)
    assert list(rows_of(outcome)) == [0, 2]
    assert reasons_of(outcome) == {1: f"wrong value at {place}"}


def test_behind_a_bolt_without_values_it_says_what_it_wants():
    with pytest.raises(BoltError, match="reads a binary column 'value'"):
        json_columns(SCHEMA).function(pa.RecordBatch.from_pydict({"n": [1]}))


def test_nested_columns_and_times_are_read_too():
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.list_(pa.string())),
            ("place", pa.struct([("lat", pa.float64())])),
        ]
    )
    outcome = called([b'{"at":"2013-01-01T10:00:00Z","tags":["a"],"place":{"lat":1}}'], schema)
    at = datetime(2013, 1, 1, 10, tzinfo=UTC)
    assert rows_of(outcome) == {0: {"at": at, "tags": ["a"], "place": {"lat": 1.0}}}


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999"])
def test_a_number_within_that_is_not_finite_rejects_its_row_alone(number):
    values = [b'{"id":1,"x":[{"y":%b}]}' % each for each in (b"1", number, b"1e-3")]
    price = pa.struct([("y", pa.float64())])
    kind = pa.schema([("id", pa.int64()), ("x", pa.list_(price))])
    outcome = called([*values, b'{"id":1}', b'{"id":1,"x":[]}'], kind)
    assert list(rows_of(outcome)) == [0, 2, 3, 4]
    assert list(reasons_of(outcome)) == [1]
