import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.storage import Storage
from sinks.tables import files
from sinks.tables.files import FileStager


def told(column, row_group_rows=1000):
    with TemporaryDirectory() as folder, patch.object(files, "_ROW_GROUP_ROWS", row_group_rows):
        writer = FileStager(Storage("/"), folder)
        (file,) = writer.write(pa.table({"c": column}), 1)
        return json.loads(file.statistics.as_delta_json(), parse_float=Decimal)


@pytest.mark.parametrize(
    ("values", "kind", "low", "high"),
    [
        ([3, None, -1], pa.int32(), -1, 3),
        (["b", "a"], pa.string(), "a", "b"),
        (["b", "a"], pa.dictionary(pa.int8(), pa.string()), "a", "b"),
        ([2.5, None], pa.float64(), Decimal("2.5"), Decimal("2.5")),
        (
            [Decimal("1.10"), Decimal("-2.00")],
            pa.decimal128(9, 2),
            Decimal("-2.00"),
            Decimal("1.10"),
        ),
        (
            [Decimal("12345678901234567890.000000001")],
            pa.decimal128(38, 18),
            Decimal("12345678901234567890.000000001"),
            Decimal("12345678901234567890.000000001"),
        ),
        ([date(1500, 1, 2)], pa.date32(), "1500-01-02", "1500-01-02"),
        ([-1], pa.timestamp("us"), "1969-12-31T23:59:59.999", "1970-01-01T00:00:00.000"),
        (
            [datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)],
            pa.timestamp("us", tz="Europe/Berlin"),
            "2026-01-02T03:04:05.006Z",
            "2026-01-02T03:04:05.006Z",
        ),
    ],
)
def test_bounds_are_spelled_as_deltas_protocol_says(values, kind, low, high):
    assert told(pa.array(values, kind)) == {
        "numRecords": len(values),
        "minValues": {"c": low},
        "maxValues": {"c": high},
        "nullCount": {"c": values.count(None)},
    }


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, math.nan]),
        pa.array([1.0, math.inf]),
        pa.array([None, None], pa.int64()),
        pa.array([True, False]),
        pa.array([b"a", b"b"]),
        pa.array([2**62, 1], pa.timestamp("us")),  # beyond the year 9999
    ],
    ids=["nan", "infinity", "nulls", "booleans", "bytes", "far future"],
)
def test_what_has_no_bounds_is_given_none(column):
    found = told(column)
    assert (found["minValues"], found["maxValues"]) == ({}, {})
    assert found["nullCount"].get("c", 0) == column.null_count


def test_columns_within_columns_are_passed_over_and_those_behind_them_are_right():
    table = pa.table(
        {
            "s": [{"a": 1, "b": [{"c": 2, "d": "x"}]}],
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "l": [[1, 2, 3]],
            "last.one": [7],
        }
    )
    with TemporaryDirectory() as folder:
        (file,) = FileStager(Storage("/"), folder).write(table, 1)
    assert file.statistics.minima == file.statistics.maxima == {"last.one": 7}
    assert file.statistics.nulls == {"last.one": 0}


texts = st.text(st.sampled_from("aé\U0010fffe\U0010ffff"), max_size=40)


@given(st.lists(st.none() | texts, min_size=1), st.integers(1, 3))
def test_texts_lie_between_their_bounds_however_they_are_cut(values, group):
    found = told(pa.array(values, pa.string()), row_group_rows=group)
    there = [value for value in values if value is not None]
    assert found["nullCount"]["c"] == values.count(None)
    assert all(found["minValues"]["c"] <= value for value in there)
    if "c" in found["maxValues"]:
        assert all(value <= found["maxValues"]["c"] for value in there)
        assert len(found["maxValues"]["c"]) <= 33
