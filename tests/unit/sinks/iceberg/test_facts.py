import json
from typing import Any

import pyarrow as pa
import pytest

from sinks.spark.iceberg.facts import Facts, can_partition_by, new_columns, obstacles
from sinks.spark.iceberg.schema import table_schema

SCHEMA = pa.schema({"number": pa.int64(), "place": pa.string()})


def part(source: int, transform: str = "identity") -> dict[str, Any]:
    return {"name": f"by_{source}", "transform": transform, "source-id": source, "field-id": 1000}


def facts(schema: pa.Schema = SCHEMA, *parts: dict[str, Any], **more: Any) -> Facts:
    columns = table_schema(schema)
    for field in columns["fields"]:
        field.update(more.pop(field["name"], {}))
    known: dict[str, Any] = {
        "table_id": "t",
        "format_version": 2,
        "schema": json.dumps(columns),
        "spec": json.dumps({"spec-id": 7, "fields": [*parts]}),
        "data": "/tables/t/data",
        "encrypted": False,
    }
    return Facts(**known | more)


def reasons(found: Facts, schema: pa.Schema = SCHEMA, *by: str, adds: bool = False) -> str:
    return "; ".join(obstacles(found, schema, by, adds=adds))


def test_a_table_of_the_same_columns_takes_the_rows() -> None:
    assert reasons(facts()) == ""
    assert facts().partition_by == ()
    assert facts().spec_id == 7


def test_the_order_of_columns_and_columns_that_only_the_table_has_are_no_obstacle() -> None:
    wider = pa.schema({"place": pa.string(), "more": pa.bool_(), "number": pa.int64()})
    assert reasons(facts(wider)) == ""


def test_types_must_be_the_same() -> None:
    found = reasons(facts(), pa.schema({"number": pa.int32(), "place": pa.binary()}))
    assert "column 'number': found int; allowed is long, as in the table" in found
    assert "column 'place': found binary; allowed is string" in found


def test_columns_that_are_missing_are_refused_or_added() -> None:
    wanted = pa.schema({"number": pa.int64(), "new": pa.bool_(), "PLACE": pa.string()})
    assert "column 'new' is not in the table; on_new_columns='add' would" in reasons(
        facts(), wanted
    )
    found = reasons(facts(), wanted, adds=True)
    assert found == "columns 'place' and 'PLACE' differ in case only; Spark takes them for one"
    assert new_columns(facts(), wanted).names == ["new", "PLACE"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"place": {"required": True}}, "'place' is required in the table, and the rows have none"),
        ({"place": {"initial-default": "x"}}, "'place' has a default in the table"),
        ({"place": {"write-default": "x"}}, "'place' has a default in the table"),
        ({"number": {"required": True}}, "'number' may be null in the rows, and is required"),
        ({"format_version": 9}, "format version 9; allowed are 1 to 3"),
        ({"encrypted": True}, "files are encrypted"),
    ],
)
def test_what_would_make_wrong_rows_is_refused(more: dict[str, Any], reason: str) -> None:
    assert reason in reasons(facts(SCHEMA, **more), pa.schema({"number": pa.int64()}))


def test_partitions_must_be_columns_by_their_values() -> None:
    assert reasons(facts(SCHEMA, part(2)), SCHEMA, "place") == ""
    assert reasons(facts(SCHEMA, part(2))) == ""
    assert facts(SCHEMA, part(2)).partition_by == ("place",)
    assert "partition_by is ['number']; the table is partitioned by place" in reasons(
        facts(SCHEMA, part(2)), SCHEMA, "number"
    )
    assert "the table is partitioned by nothing" in reasons(facts(), SCHEMA, "place")
    for wrong in (part(2, "bucket[4]"), part(99)):
        assert "allowed are columns by their values" in reasons(facts(SCHEMA, wrong))
    floats = pa.schema({"x": pa.float64(), "number": pa.int64()})
    assert "by column 'x' of double" in reasons(facts(floats, part(1)), floats)


def test_numbers_with_a_fraction_of_no_one_value_are_no_partitions() -> None:
    assert can_partition_by(pa.decimal128(9, 2))
    assert can_partition_by(pa.dictionary(pa.int8(), pa.string()))
    assert not can_partition_by(pa.float32())
    assert not can_partition_by(pa.dictionary(pa.int8(), pa.float64()))
    assert not can_partition_by(pa.list_(pa.string()))
