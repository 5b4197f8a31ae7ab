from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import PurePosixPath

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.tables.partitioning import Layout, can_partition, check_partitions
from topology.errors import InvalidSchema


def parts(table, *partition_by):
    return list(Layout(partition_by).parts(table))


def of_one(value, kind):
    (part,) = parts(pa.table({"p": pa.array([value], kind), "n": [1]}), "p")
    return part


def test_each_combination_of_values_is_a_part_in_which_rows_keep_their_order():
    table = pa.table(
        {"a": ["x", "y", "x", None, "x"], "b": [1, 1, 2, 1, 1], "n": [10, 11, 12, 13, 14]}
    )
    found = {part.folder: part.table.to_pydict() for part in parts(table, "a", "b")}
    assert found == {
        "a=x/b=1": {"n": [10, 14]},
        "a=x/b=2": {"n": [12]},
        "a=y/b=1": {"n": [11]},
        "a=__HIVE_DEFAULT_PARTITION__/b=1": {"n": [13]},
    }


def test_a_partition_column_that_the_rows_lack_is_null():
    (part,) = parts(pa.table({"n": [1, 2]}), "p")
    assert (part.folder, part.values) == ("p=__HIVE_DEFAULT_PARTITION__", {"p": None})
    assert part.table.num_rows == 2


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("AA", pa.string(), "AA"),
        ("", pa.large_string(), None),
        (None, pa.string(), None),
        ("AA", pa.dictionary(pa.int32(), pa.string()), "AA"),
        (-7, pa.int8(), "-7"),
        (True, pa.bool_(), "true"),
        (False, pa.bool_(), "false"),
        (1.5, pa.float64(), "1.5"),
        (float("nan"), pa.float32(), "NaN"),
        (float("-inf"), pa.float64(), "-Infinity"),
        (Decimal("1E-10"), pa.decimal128(38, 18), "0.000000000100000000"),
        (date(2026, 1, 2), pa.date32(), "2026-01-02"),
        (1_000_006, pa.timestamp("us"), "1970-01-01 00:00:01.000006"),
        (MOMENT, pa.timestamp("s", tz="+05:00"), "2026-01-02T03:04:05.000000Z"),
        (MOMENT.replace(microsecond=6), pa.timestamp("us", "UTC"), "2026-01-02T03:04:05.000006Z"),
        (7, pa.timestamp("ns"), "1970-01-01 00:00:00.000000"),
    ],
)
def test_values_are_spelled_as_deltas_protocol_says(value, kind, text):
    assert can_partition(kind)
    assert of_one(value, kind).values == {"p": text}


@given(value=st.text(min_size=1), name=st.text(min_size=1))
def test_no_value_or_name_leads_out_of_the_table(value, name):
    (part,) = Layout([name]).parts(pa.table({name: [value], f"{name}2": [1]}))
    assert part.values == {name: value}
    assert len(PurePosixPath(part.folder).parts) == 1
    assert part.folder not in (".", "..")
    assert "\0" not in part.folder
    assert len(part.folder.encode()) <= 200


def test_long_values_that_differ_at_the_end_only_have_folders_of_their_own():
    folders = {of_one("é" * 300 + end, pa.string()).folder for end in "ab"}
    assert len(folders) == 2


values = st.one_of(st.none(), st.integers(-3, 3))


@given(st.lists(st.tuples(values, values)))
def test_every_row_is_in_the_part_of_its_values(rows):
    a, b = ([row[place] for row in rows] for place in (0, 1))
    number = pa.array(range(len(rows)), pa.int64())
    table = pa.table({"a": pa.array(a, pa.int64()), "b": pa.array(b, pa.int64()), "n": number})
    seen = []
    for part in parts(table, "a", "b"):
        for place in part.table["n"].to_pylist():
            wanted = {"a": a[place], "b": b[place]}
            assert part.values == {
                name: None if value is None else str(value) for name, value in wanted.items()
            }
            seen.append(place)
    assert sorted(seen) == list(range(len(rows)))


def test_an_empty_text_is_no_partition_that_must_not_be_null():
    schema = pa.schema([pa.field("p", pa.string(), nullable=False), ("n", pa.int64())])
    for column in (pa.array(["a", "", "b"]), pa.array(["a", "", "b"]).dictionary_encode()):
        wrong = Layout(["p", "of the table alone"]).misfits(pa.table({"p": column}), schema)
        assert [*wrong] == [1]
        assert wrong[1].startswith("column 'p': found ''")


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["x"], r"'orders': partition_by is \['x'\]; expected some of the columns n, place, raw"),
        (["n", "n"], "expected some of the columns n, place, raw, each once"),
        (["n", "place", "raw"], "a column that is no partition is needed"),
        (["raw"], "column 'raw' is binary, whose values are no partitions"),
    ],
)
def test_others_are_refused(names, reason):
    schema = pa.schema({"n": pa.int64(), "place": pa.string(), "raw": pa.binary()})
    with pytest.raises(InvalidSchema, match=reason):
        check_partitions("orders", schema, names, can_partition, leaves_some=True)
