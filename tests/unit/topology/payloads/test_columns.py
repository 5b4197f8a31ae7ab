"""JSON documents as columns: each row is its own record's, and a bad one is rejected alone."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.bolt import Kind, kind_of
from topology.errors import BoltError, InvalidTopology
from topology.payloads.columns import json_columns
from topology.payloads.limits import Limits
from topology.record import Reject, RejectRows
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


def test_values_become_the_columns_of_the_schema():
    outcome = called([b'{"id":1,"name":"a","price":1.5,"x":[1]}', b'{"price":2,"id":2}'])
    assert rows_of(outcome) == {0: row(1, "a", 1.5), 1: row(2, None, 2.0)}
    assert outcome.piece.schema == SCHEMA
    assert outcome.failures == {}


def test_columns_the_bolt_does_not_know_travel_on():
    bolt = json_columns(SCHEMA, keep=["offset"])
    assert bolt.columns == ("value", "offset")
    out = bolt.function(batch_of([b'{"id":1}'], offset=[7], other=["x"]))
    assert out.to_pylist() == [row(1) | {"offset": 7, "other": "x"}]


def test_no_row_at_all_is_no_error():
    out = json_columns(SCHEMA).function(batch_of([]))
    assert (out.num_rows, out.schema) == (0, SCHEMA)


def test_a_slice_of_a_batch_is_read_where_it_stands():
    values = [b"x", b'{"id":1}', b'{"id":2}', b"y"]
    out = json_columns(SCHEMA).function(batch_of(values).slice(1, 2))
    assert out.column("id").to_pylist() == [1, 2]


def test_white_space_around_and_within_a_document_is_allowed():
    values = [b' {"id":1}', b'{\n "id": 2\r\n}\n', b'\t{"id":3}\r', b'{"id":4}']
    assert [each["id"] for each in rows_of(called(values)).values()] == [1, 2, 3, 4]


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


def test_all_bad_rows_that_can_be_told_are_named_at_once():
    values = [b'{"id":1}', b"", b'{"id":3}', b"[", None]
    with pytest.raises(RejectRows) as rejected:
        json_columns(SCHEMA).function(batch_of(values))
    assert sorted(rejected.value.reasons) == [1, 3, 4]
    assert rejected.value.reason == "3 rows; first: invalid JSON at byte 0: expecting value"
    wrong = [b'{"id":1}', b'{"id":"2"}', b'{"id":3}', b'{"name":1}']
    with pytest.raises(RejectRows) as rejected:
        json_columns(SCHEMA).function(batch_of(wrong))
    assert sorted(rejected.value.reasons) == [1, 3]


def test_documents_that_split_and_join_never_shift_the_rows():
    doubled, cut, rest = b'{"id":1}{"id":2}', b'{"id":3,"x":[{"a":1}', b'{"id":4}]}'
    for values in ([doubled, cut, rest], [cut, rest, doubled], [rest, doubled, cut]):
        outcome = called([b'{"id":0}', *values, b'{"id":9}'])
        assert rows_of(outcome) == {0: row(0), 4: row(9)}


PIECES = st.sampled_from(
    [*'{}[]",:1 \\\n\0', '"id"', '"id":1', "null", '{"id":1}', '{"id":2,"x":[{}']
)


@given(st.lists(st.lists(PIECES, max_size=7).map("".join), min_size=1, max_size=6))
def test_whatever_the_values_are_each_row_is_its_own_records(texts):
    outcome = called([text.encode() for text in texts])
    for place, found in rows_of(outcome).items():
        assert json.loads(texts[place], strict=True).get("id") == found["id"]
    assert set(outcome.failures) == set(range(len(texts))) - set(rows_of(outcome))


@given(
    st.lists(
        st.fixed_dictionaries(
            {"id": st.integers(-(2**63), 2**63 - 1)},
            optional={
                "name": st.text() | st.none(),
                "price": st.floats(allow_nan=False, allow_infinity=False),
            },
        ),
        max_size=5,
    ),
    st.booleans(),
)
def test_every_document_of_the_schema_is_read_as_it_was_written(documents, ascii_only):
    values = [json.dumps(each, ensure_ascii=ascii_only).encode() for each in documents]
    found = rows_of(called(values))
    assert list(found.values()) == [row(None) | each for each in documents]


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


def test_a_size_limit_is_kept_row_by_row():
    outcome = called([b'{"id":1}', b'{"id":2, "x":1}'], limits=Limits(max_bytes=10))
    assert reasons_of(outcome) == {1: "15 bytes; at most 10 are allowed"}
    assert rows_of(outcome) == {0: row(1)}


def test_whole_chunks_of_nested_and_of_numeric_documents_need_no_closer_look(monkeypatch):
    monkeypatch.setattr("topology.payloads.columns._Reader._rewritten", None)
    nested = [b'{"id":%d,"x":{"y":[1,{"z":[]}]}}' % number for number in range(500)]
    numeric = [b'{"id":%d,"x":[%s1]}' % (number, b"12345678," * 100) for number in range(500)]
    for values in (nested, numeric, [*nested, *numeric]):
        out = json_columns(SCHEMA).function(batch_of([b"x", *values]).slice(1))
        assert out.num_rows == len(values)


def test_one_row_that_is_too_deep_is_found_among_many():
    deep = b'{"id":9,"x":' + b'{"y":' * 64 + b"1" + b"}" * 65
    outcome = called([b'{"id":1,"x":{}}'] * 100 + [deep] + [b'{"id":2,"x":[]}'] * 100)
    assert reasons_of(outcome) == {100: "nested 65 deep; at most 64 is allowed"}


def test_a_float_that_json_rounds_to_zero_is_finite():
    assert math.isclose(rows_of(called([b'{"id":1,"price":1e-999}']))[0]["price"], 0.0)


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (pa.schema([]), {}, "at least one"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), {}, "a column twice"),
        (int, {}, "found <class 'int'>; allowed are a TypedDict"),
        (TypedDict("Counts", {"a": dict[str, int]}), {}, "map<.*JSON cannot be read"),
        (pa.schema([("a", pa.month_day_nano_interval())]), {}, "JSON cannot be read"),
        (SCHEMA, {"keep": ["colour"]}, "'colour'.*allowed are some of key, partition"),
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


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999"])
def test_a_number_within_that_is_not_finite_rejects_its_row_alone(number):
    values = [b'{"id":1,"x":[{"y":%b}]}' % each for each in (b"1", number, b"1e-3")]
    price = pa.struct([("y", pa.float64())])
    kind = pa.schema([("id", pa.int64()), ("x", pa.list_(price))])
    outcome = called([*values, b'{"id":1}', b'{"id":1,"x":[]}'], kind)
    assert list(rows_of(outcome)) == [0, 2, 3, 4]
    assert list(reasons_of(outcome)) == [1]


def test_behind_a_bolt_without_values_it_says_what_it_wants():
    with pytest.raises(BoltError, match="reads a binary column 'value'"):
        json_columns(SCHEMA).function(pa.RecordBatch.from_pydict({"n": [1]}))


def test_it_is_a_vectorised_bolt_with_a_name_that_asks_for_line_breaks():
    bolt = json_columns(SCHEMA)
    assert (kind_of(bolt), bolt.__name__) == (Kind.VECTORISED, "json_columns")
    assert (bolt.concurrent, bolt.line_breaks) == (True, True)


@pytest.mark.parametrize(
    "sizes",
    [[700_000], [700_000, 10], [10, 700_000], [10, 700_000, 10], [300_000] * 3, [1] * 50_000],
)
def test_much_text_keeps_each_row_whole(sizes):
    read = json_columns(
        pa.schema({"n": pa.int64(), "text": pa.string()}), limits=Limits(max_bytes=1_000_000)
    )
    values = [b'{"n":%d,"text":"%s"}' % (size, b"x" * size) for size in sizes]
    out = read.function(pa.record_batch({"value": pa.array(values, pa.binary())}))
    assert out.column("n").to_pylist() == sizes
    assert [len(text) for text in out.column("text").to_pylist()] == sizes
