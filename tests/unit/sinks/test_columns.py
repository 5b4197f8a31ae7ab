import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.columns import fit
from sinks.keyed_rows import KeyedRows
from topology.errors import InvalidSchema

NESTED = pa.struct([pa.field("x", pa.int64(), nullable=False), ("y", pa.list_(pa.string()))])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("nested", NESTED),
        ("counts", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
    ]
)
GOOD = {"id": 1, "name": "a", "score": 0.5, "nested": {"x": 1, "y": ["z"]}, "counts": {"k": 1}}


BAD = {
    "long": ({"id": "x" * 1_000_000}, ["'id'", "xxx"]),
    "wrong type": ({"name": 7}, ["'name'", "7", "string"]),
    "too large": ({"id": 2**63}, ["'id'", "9223372036854775808", "int64"]),
    "lone surrogate": ({"name": "\ud800"}, ["'name'", "\\ud800", "half of a surrogate pair"]),
    "null": ({"id": None}, ["'id'", "None", "not null"]),
    "unknown column": ({"colour": 1}, ["'colour'", "not in the schema", "id, name"]),
    "nested null": ({"nested": {"x": None}}, ["'nested'", "nested.x is null"]),
    "nested type": ({"nested": {"x": "1"}}, ["'nested'", "{'x': '1'}"]),
    "null in a map": ({"counts": {"k": None}}, ["'counts'", "counts[] is null"]),
    "cut down": ({"id": 1.5}, ["'id'", "1.5 would be cut down to 1"]),
    "NaN": ({"id": math.nan}, ["'id'", "nan"]),
    "nested cut down": ({"nested": {"x": 1.9}}, ["'nested'", "1.9 would be cut down to 1"]),
    "nested unknown": ({"nested": {"x": 1, "typo": 5}}, ["'nested'", "unknown 'typo'", "x, y"]),
    "cut down in a map": ({"counts": {"k": 1.5}}, ["'counts'", "1.5 would be cut down to 1"]),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_row_that_does_not_fit_is_set_apart_alone_and_the_reason_says_why(kind):
    change, words = BAD[kind]
    fitted = fit([[GOOD, GOOD], [GOOD, GOOD | change, GOOD]], SCHEMA)
    assert list(fitted.rejected) == [3]
    assert len(fitted.rejected[3]) < 600
    assert all(word in fitted.rejected[3] for word in words), fitted.rejected[3]
    assert fitted.table.num_rows == 4


@pytest.mark.parametrize(
    "time",
    [
        datetime(9999, 12, 31, 23, 30, tzinfo=timezone(timedelta(hours=-5))),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    ],
    ids=str,
)
def test_a_time_whose_offset_leads_out_of_the_years_does_not_fit(time):
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    fitted = fit([[{"at": datetime(2026, 1, 1, tzinfo=UTC)}, {"at": time}]], schema)
    assert list(fitted.rejected) == [1]
    assert "outside of the years 1 to 9999" in fitted.rejected[1]


def test_missing_or_null_column_is_null_and_hides_no_unknown_one():
    short = {name: value for name, value in GOOD.items() if name != "name"}
    rows = [short, short | {"nome": "a"}, GOOD | {"nested": None}, GOOD | {"counts": None}]
    fitted = fit([[], rows], SCHEMA)
    assert list(fitted.rejected) == [1]
    assert fitted.table.column("name").to_pylist() == [None, "a", "a"]


def test_something_that_is_no_row_is_rejected():
    class Rude:
        def __repr__(self):
            raise RuntimeError

    fitted = fit([[GOOD, 7, None, "text", Rude(), [GOOD]]], SCHEMA)
    assert list(fitted.rejected) == [1, 2, 3, 4, 5]
    assert fitted.rejected[1].endswith(
        "a row is a mapping of columns, a dataclass or a msgspec.Struct"
    )
    assert "use flat_map() or yield" in fitted.rejected[5]


def test_dataclasses_structs_and_other_mappings_are_rows():
    @dataclass
    class Data:
        id: int
        nested: dict[str, Any]

    class Struct(msgspec.Struct):
        id: int
        name: str

    rows = [Data(1, {"x": 5}), Struct(2, "b"), MappingProxyType({"id": 3}), Struct("4", "c")]
    fitted = fit([rows], SCHEMA)
    assert list(fitted.rejected) == [3]
    assert fitted.table.column("id").to_pylist() == [1, 2, 3]
    assert fitted.table.column("nested").to_pylist() == [{"x": 5, "y": None}, None, None]


def test_a_piece_of_columns_is_taken_by_name_and_cast():
    piece = pa.record_batch({"name": pa.array(["a", "b"]), "id": pa.array([1, 2], pa.int8())})
    fitted = fit([piece], SCHEMA)
    assert fitted.rejected == {}
    assert fitted.table.schema == SCHEMA
    assert fitted.table.column("id").to_pylist() == [1, 2]
    assert fitted.table.column("score").null_count == 2
    piece = pa.record_batch(
        {"id": pa.array([1, 2**63, 3, None], pa.uint64()), "score": pa.array([1, 2, 2**53 + 1, 4])}
    )
    good = pa.RecordBatch.from_pylist([GOOD], schema=SCHEMA)
    fitted = fit([[GOOD], piece, good], SCHEMA)
    assert set(fitted.rejected) == {2, 4}
    assert "'id'" in fitted.rejected[2]
    assert "not null" in fitted.rejected[4]
    assert fitted.table.column("score").to_pylist() == [0.5, 1.0, 2.0**53, 0.5]


def test_nested_nulls_in_a_slice_of_columns_are_found_at_their_row():
    rows = [GOOD, GOOD | {"counts": {"k": 1, "l": None}}, GOOD, GOOD | {"nested": {"x": None}}]
    piece = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    good = pa.RecordBatch.from_pylist([GOOD], schema=SCHEMA)
    fitted = fit([good, piece.slice(1), [GOOD], good], SCHEMA)
    assert set(fitted.rejected) == {1, 3}
    assert fitted.table.num_rows == 4


def test_an_unknown_column_rejects_every_row_of_its_piece():
    piece = pa.record_batch({"id": [1, 2], "colour": ["red", "blue"]})
    fitted = fit([piece, [GOOD]], SCHEMA)
    assert set(fitted.rejected) == {0, 1}
    assert "'colour'" in fitted.rejected[0]
    assert fitted.table.num_rows == 1


def whole(value, bits):
    """Whether a column of whole numbers keeps a value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return value is None
    if isinstance(value, float) and abs(value) >= 2**53:
        return False  # it may stand for several
    return value == int(value) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


def text(value):
    """Whether a column of text keeps a value."""
    try:
        return value is None or bool((value if isinstance(value, bytes) else value.encode()) + b"x")
    except (AttributeError, UnicodeError):
        return False


def utf8(value):
    try:
        return not isinstance(value, bytes) or value.decode() is not None
    except UnicodeError:
        return False


def single(value):
    """Whether a column of single floats keeps a value, but for its last digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value is None
    return not math.isfinite(value) or abs(value) < 2.0**128 - 2.0**103


def kept_alone(row):
    """Whether every column of FLAT keeps the row's value. Asks nothing of pyarrow."""
    c = row.get("c")
    numbers = c if isinstance(c, list) else []
    return (
        set(row) <= set("abcd")
        and row.get("a") is not None
        and whole(row["a"], 64)
        and text(row.get("b"))
        and utf8(row.get("b"))
        and (c is None or isinstance(c, list))
        and all(whole(number, 32) for number in numbers)
        and single(row.get("d"))
    )


FLAT = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        ("b", pa.string()),
        ("c", pa.list_(pa.int32())),
        ("d", pa.float32()),
    ]
)
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(-5, 5),
    st.floats(),
    st.text(st.characters(), max_size=3),
    st.binary(max_size=2),
    st.lists(st.integers(-(2**33), 2**33) | st.floats() | st.text(max_size=1), max_size=2),
)
likely = st.fixed_dictionaries(
    {"a": st.integers(0, 9)},
    optional={
        "b": st.text(st.characters(), max_size=2),
        "c": st.lists(st.integers(0, 9), max_size=2),
        "d": st.integers(0, 9),
    },
)
any_row = st.dictionaries(st.sampled_from("abcde"), values, max_size=5)


@settings(max_examples=200)
@given(st.lists(st.lists(likely | any_row, max_size=6), max_size=3))
def test_good_rows_are_exactly_those_whose_columns_keep_their_values(pieces):
    fitted = fit(pieces, FLAT)
    rows = [row for piece in pieces for row in piece]
    bad = {index for index, row in enumerate(rows) if not kept_alone(row)}
    assert set(fitted.rejected) == bad
    good = [dict(row) for index, row in enumerate(rows) if index not in bad]
    for row in good:
        if row.get("d") is not None:
            row["d"] = float(row["d"])
    expected = pa.Table.from_pylist(good, schema=FLAT)
    assert repr(fitted.table.to_pylist()) == repr(expected.to_pylist())  # NaN is not equal to NaN


def test_rows_that_are_left_out_later_have_their_places_among_all():
    pieces = [[{"n": "x"}, {"n": 1}, {"n": "y"}, {"n": 2}], [{"n": 3}]]
    fitted = fit(pieces, pa.schema([("n", pa.int64())]))
    less = fitted.without({0: "one", 2: "three"})
    assert less.table["n"].to_pylist() == [2]
    assert set(less.rejected) == {0, 1, 2, 4}
    assert (less.rejected[1], less.rejected[4]) == ("one", "three")
    again = less.without({0: "two"})
    assert (again.table.num_rows, again.rejected[3]) == (0, "two")
    assert fitted.without({}) is fitted


def test_a_scalar_of_arrow_s_in_a_good_row_is_no_harm_beside_a_bad_one():
    """The process ended there (a segmentation fault, pyarrow 26)."""
    schema = pa.schema([("k", pa.dictionary(pa.int32(), pa.string())), ("n", pa.int64())])
    fitted = fit([[{"k": pa.scalar("x"), "n": 1}, {"k": "y", "n": "bad"}]], schema)
    assert fitted.table.to_pylist() == [{"k": "x", "n": 1}]
    assert set(fitted.rejected) == {1}


BY_ID = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("town", pa.string()),
        ("gone", pa.bool_()),
    ]
)
ROWS = KeyedRows("t", BY_ID, ["id"], "gone")


def row(key, name="x", *, gone=False):
    return {"id": key, "name": name, "town": None, "gone": gone}


def last_of(rows):
    """The last row of each key, of rows that all fit."""
    fitted = ROWS.fit([rows])
    assert not fitted.rejected
    return [
        (each["id"], each["name"], each["gone"]) for each in ROWS.last(fitted.table).to_pylist()
    ]


def test_a_null_that_may_not_be_rejects_its_row_alone():
    fitted = ROWS.fit(
        [
            [row(1), row(None), row(3, None), row(4, None, gone=True)],
            [{"id": "five"}],
            pa.RecordBatch.from_pylist([row(6), row(7, None)], schema=ROWS.loose),
        ]
    )
    assert fitted.table["id"].to_pylist() == [1, 4, 6]
    assert set(fitted.rejected) == {1, 2, 4, 6}
    assert "column 'id': found None" in fitted.rejected[1]
    assert "column 'name': found None, expected string, not null" in fitted.rejected[2]
    assert "column 'id': found 'five'" in fitted.rejected[4]


@given(st.lists(st.tuples(st.integers(0, 4), st.text("ab", max_size=1), st.booleans())))
def test_many_rows_come_to_what_a_dictionary_comes_to(given_rows):
    wanted = {key: (key, name, gone) for key, name, gone in given_rows}
    found = last_of([row(key, name, gone=gone) for key, name, gone in given_rows])
    assert sorted(found) == sorted(wanted.values())


BERLIN = timezone(timedelta(hours=1))
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = [
    (pa.int8(), [1, -1]),
    (pa.string(), ["", "é"]),
    (pa.large_string(), ["a", "b"]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
    (pa.binary(), [b"", b"\0"]),
    (pa.date32(), [date(1500, 1, 1), date(9999, 1, 1)]),
    (pa.bool_(), [True, False]),
    (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-1.50")]),
    (pa.timestamp("ns", "Europe/Berlin"), [NEW_YEAR, NEW_YEAR.replace(tzinfo=BERLIN)]),
    (pa.timestamp("s"), [datetime(2026, 1, 1), datetime(1, 1, 1)]),  # noqa: DTZ001 - no zone
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_keys_of_this_type_are_told_apart(kind, values):
    schema = pa.schema([("k", kind), ("n", pa.int64()), ("other", kind)])
    rows = KeyedRows("t", schema, ["n", "k"], None)
    first, second = values
    table = rows.fit([[{"n": 1, "k": value} for value in (first, second, first)]]).table
    assert rows.last(table)["k"].to_pylist() == table["k"].to_pylist()[1:]


@pytest.mark.parametrize(
    ("key", "deleted", "reason"),
    [
        ([], "gone", r"key is \[\], expected one or more of id, x"),
        (["id", "id"], None, "each once"),
        (["ID"], None, r"key is \['ID'\], expected"),
        (["id", "gone"], "gone", "expected one or more of id, x"),
        (["id"], "deleted", "deleted is 'deleted', expected a column of bool"),
        (["id"], "x", "deleted column 'x': found double, expected bool"),
    ],
)
def test_a_key_that_cannot_be_is_refused(key, deleted, reason):
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("gone", pa.bool_())])
    with pytest.raises(InvalidSchema, match=f"table 't': .*{reason}"):
        KeyedRows("t", schema, key, deleted)


def test_of_rows_that_only_delete_no_more_than_the_key_matters():
    keyed = KeyedRows("t", pa.schema([("id", pa.int64()), ("gone", pa.bool_())]), ["id"], "gone")
    table = keyed.fit([[{"id": 1, "gone": True}, {"id": 2}, {"id": 3, "gone": False}]]).table
    wrong = dict.fromkeys(range(3), "wrong")
    assert set(keyed.of_those_that_stay(table, wrong)) == {1, 2}
    assert KeyedRows("t", keyed.stored, ["id"], None).of_those_that_stay(table, wrong) == wrong


@pytest.mark.parametrize(("deleted", "expected"), [(None, {0, 1}), ("gone", {0})])
def test_null_of_a_column_that_the_table_has_not_null_is_refused(deleted, expected):
    schema = pa.schema([("number", pa.int64()), ("value", pa.int64()), ("gone", pa.bool_())])
    rows = [{"number": number, "value": None, "gone": number > 0} for number in range(2)]
    keyed = KeyedRows("orders", schema, "number", deleted)
    found = keyed.fit([rows], ["value"])
    assert set(found.rejected) == expected
    assert "column 'value': found None, expected int64, not null" in found.rejected[0]
    assert not keyed.fit([rows]).rejected
