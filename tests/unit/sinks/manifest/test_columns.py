"""Columns by Spark's names, and what may come into a table."""

import pyarrow as pa
import pytest

from sinks.manifest.columns import columns_of, merged
from sinks.manifest.entry import Column
from sinks.new_columns import checked_new_columns
from topology.errors import InvalidSchema


def named(kind: pa.DataType) -> str:
    (column,) = columns_of(pa.schema([("c", kind)]))
    return column.type


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "tinyint"),
        (pa.int16(), "smallint"),
        (pa.int32(), "int"),
        (pa.int64(), "bigint"),
        (pa.float32(), "float"),
        (pa.float64(), "double"),
        (pa.string(), "string"),
        (pa.large_string(), "string"),
        (pa.binary(), "binary"),
        (pa.date32(), "date"),
        (pa.timestamp("us", tz="UTC"), "timestamp"),
        (pa.timestamp("ns", tz="Europe/Berlin"), "timestamp"),
        (pa.timestamp("ms"), "timestamp_ntz"),
        (pa.decimal128(38, 18), "decimal(38,18)"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.list_(pa.string()), "array<string>"),
        (pa.large_list(pa.int8()), "array<tinyint>"),
        (pa.list_(pa.int8(), 3), "array<tinyint>"),
        (pa.map_(pa.string(), pa.list_(pa.int64())), "map<string,array<bigint>>"),
        (
            pa.struct([("a", pa.int64()), ("b c", pa.struct([("`", pa.bool_())]))]),
            "struct<a:bigint,`b c`:struct<````:boolean>>",
        ),
    ],
)
def test_types_have_the_names_of_sparks_sql(kind: pa.DataType, name: str) -> None:
    assert named(kind) == name


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint64(),
        pa.float16(),
        pa.null(),
        pa.duration("us"),
        pa.time64("us"),
        pa.binary(3),
        pa.decimal256(60, 2),
        pa.decimal128(5, -2),
        pa.struct([]),
        pa.list_(pa.uint8()),
    ],
    ids=str,
)
def test_other_types_are_refused_by_column(kind: pa.DataType) -> None:
    with pytest.raises(InvalidSchema, match=r"column 'c': found .*; allowed are boolean"):
        named(kind)


def test_columns_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(InvalidSchema, match="'a' and 'A' differ in case only"):
        columns_of(pa.schema([("a", pa.int64()), ("A", pa.int64())]))


A, B, TEXT_A, UPPER_A = (
    Column("a", "bigint"),
    Column("b", "string"),
    Column("a", "string"),
    Column("A", "bigint"),
)


def test_the_same_columns_in_any_order_and_fewer_of_them_fit() -> None:
    assert merged([A, B], [B, A], "reject") == ((A, B), [])
    assert merged([A, B], [B], "reject") == ((A, B), [])


def test_a_new_column_is_refused_or_added_as_was_asked() -> None:
    columns, wrong = merged([A], [B, A], "reject")
    assert (columns, len(wrong)) == ((A,), 1)
    assert wrong[0].startswith("column 'b' is not in the table; on_new_columns='add'")
    assert merged([A], [B, A], "add") == ((A, B), [])


@pytest.mark.parametrize("option", ["reject", "add"])
def test_types_never_change(option) -> None:
    _, wrong = merged([A, B], [TEXT_A, B], option)
    assert wrong == ["column 'a': found string; allowed is bigint, as in the table"]
    _, wrong = merged([A], [UPPER_A], option)
    assert wrong == ["columns 'a' and 'A' differ in case only; Spark takes them for one"]


def test_another_word_for_new_columns_is_refused() -> None:
    assert checked_new_columns("add", "t") == "add"
    with pytest.raises(InvalidSchema, match="'t': on_new_columns is 'drop'; allowed are 'reject'"):
        checked_new_columns("drop", "t")
