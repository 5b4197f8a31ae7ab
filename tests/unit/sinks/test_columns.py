import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.columns import fit

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
GOOD = {
    "id": 1,
    "name": "a",
    "score": 0.5,
    "nested": {"x": 1, "y": ["z"]},
    "counts": {"k": 1},
}


def test_rows_that_fit_become_columns_in_their_order() -> None:
    rows = [GOOD | {"id": number} for number in range(5)]
    fitted = fit([rows[:2], [], rows[2:]], SCHEMA)
    assert fitted.rejected == {}
    assert fitted.table.schema == SCHEMA
    assert fitted.table.column("id").to_pylist() == [0, 1, 2, 3, 4]


BAD = {
    "wrong type": ({"name": 7}, ["'name'", "7", "string"]),
    "too large": ({"id": 2**63}, ["'id'", "9223372036854775808", "int64"]),
    "lone surrogate": ({"name": "\ud800"}, ["'name'", "\\ud800", "surrogates"]),
    "null": ({"id": None}, ["'id'", "None", "not null"]),
    "unknown column": ({"colour": 1}, ["'colour'", "not in the schema", "id, name"]),
    "nested null": ({"nested": {"x": None}}, ["'nested'", "nested.x is null"]),
    "nested type": ({"nested": {"x": "1"}}, ["'nested'", "{'x': '1'}"]),
    "null in a map": ({"counts": {"k": None}}, ["'counts'", "counts[] is null"]),
    "cut down": ({"id": 1.5}, ["'id'", "1.5 would be cut down to 1"]),
    "NaN": ({"id": math.nan}, ["'id'", "nan"]),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_row_that_does_not_fit_is_set_apart_alone_and_the_reason_says_why(kind: str) -> None:
    change, words = BAD[kind]
    fitted = fit([[GOOD, GOOD], [GOOD, GOOD | change, GOOD]], SCHEMA)
    assert list(fitted.rejected) == [3]
    assert all(word in fitted.rejected[3] for word in words), fitted.rejected[3]
    assert fitted.table.num_rows == 4


def test_a_missing_column_is_null_and_an_unknown_one_does_not_hide_behind_it() -> None:
    short = {name: value for name, value in GOOD.items() if name != "name"}
    fitted = fit([[short, short | {"nome": "a"}]], SCHEMA)
    assert list(fitted.rejected) == [1]
    assert fitted.table.column("name").to_pylist() == [None]


def test_a_value_under_a_null_is_nobodys() -> None:
    rows = [GOOD | {"nested": None}, GOOD | {"counts": None}]
    assert fit([rows], SCHEMA).rejected == {}


def test_a_reason_stays_short_however_large_the_value_is() -> None:
    fitted = fit(
        [
            [
                GOOD
                | {
                    "id": "x" * 1_000_000,
                }
            ]
        ],
        SCHEMA,
    )
    assert len(fitted.rejected[0]) < 600


def test_something_that_is_no_row_is_rejected() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    fitted = fit([[GOOD, 7, None, "text", Rude()]], SCHEMA)
    assert list(fitted.rejected) == [1, 2, 3, 4]
    assert "a row is a mapping" in fitted.rejected[1]


def test_dataclasses_structs_and_other_mappings_are_rows() -> None:
    @dataclass
    class Data:
        id: int
        nested: dict[str, Any]

    class Struct(msgspec.Struct):
        id: int
        name: str

    rows = [Data(1, {"x": 5}), Struct(2, "b"), MappingProxyType({"id": 3}), Struct("4", "c")]  # type: ignore[arg-type]
    fitted = fit([rows], SCHEMA)
    assert list(fitted.rejected) == [3]
    assert fitted.table.column("id").to_pylist() == [1, 2, 3]
    assert fitted.table.column("nested").to_pylist() == [{"x": 5, "y": None}, None, None]


def test_a_piece_of_columns_is_taken_by_name_and_cast() -> None:
    piece = pa.record_batch({"name": pa.array(["a", "b"]), "id": pa.array([1, 2], pa.int8())})
    fitted = fit([piece], SCHEMA)
    assert fitted.rejected == {}
    assert fitted.table.schema == SCHEMA
    assert fitted.table.column("id").to_pylist() == [1, 2]
    assert fitted.table.column("score").null_count == 2


def test_cells_that_cannot_be_cast_reject_only_their_rows() -> None:
    piece = pa.record_batch(
        {"id": pa.array([1, 2**63, 3, None], pa.uint64()), "score": pa.array(["1", "2", "x", "4"])}
    )
    fitted = fit([[GOOD], piece], SCHEMA)
    assert set(fitted.rejected) == {2, 3, 4}
    assert "'id'" in fitted.rejected[2]
    assert "'score'" in fitted.rejected[3]
    assert "not null" in fitted.rejected[4]
    assert fitted.table.column("score").to_pylist() == [0.5, 1.0]


def test_nested_nulls_in_a_slice_of_columns_are_found_at_their_row() -> None:
    rows = [GOOD, GOOD | {"counts": {"k": 1, "l": None}}, GOOD, GOOD | {"nested": {"x": None}}]
    piece = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    assert set(fit([piece.slice(1)], SCHEMA).rejected) == {0, 2}


def test_an_unknown_column_rejects_every_row_of_its_piece() -> None:
    piece = pa.record_batch({"id": [1, 2], "colour": ["red", "blue"]})
    fitted = fit([piece, [GOOD]], SCHEMA)
    assert set(fitted.rejected) == {0, 1}
    assert "'colour'" in fitted.rejected[0]
    assert fitted.table.num_rows == 1


def accepted_alone(row: Any, schema: pa.Schema) -> bool:
    """Whether pyarrow takes a row by itself, losing nothing, and its columns are the schema's."""
    try:
        batch = pa.RecordBatch.from_pylist([row], schema=schema)
    except Exception:  # noqa: BLE001 - whatever it raises, it refuses
        return False
    needed = all(
        field.nullable or not column.null_count
        for field, column in zip(schema, batch.columns, strict=True)
    )
    number = row.get("a")
    whole = not isinstance(number, float) or number.is_integer()
    return needed and whole and set(row) <= set(schema.names)


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
    st.lists(st.integers(-(2**33), 2**33) | st.text(max_size=1), max_size=2),
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
def test_good_rows_are_exactly_those_that_pyarrow_accepts_one_by_one(
    pieces: list[list[Any]],
) -> None:
    fitted = fit(pieces, FLAT)
    rows = [row for piece in pieces for row in piece]
    bad = {index for index, row in enumerate(rows) if not accepted_alone(row, FLAT)}
    assert set(fitted.rejected) == bad
    good = [row for index, row in enumerate(rows) if index not in bad]
    expected = pa.Table.from_pylist(good, schema=FLAT)
    assert repr(fitted.table.to_pylist()) == repr(expected.to_pylist())  # NaN is not equal to NaN
