import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sinks.files.layout import Part
from sinks.spark.iceberg.layout import IcebergLayout


def parts(table: pa.Table, *partition_by: str, **types: str) -> list[Part]:
    return list(IcebergLayout(partition_by, types).parts(table))


@pytest.mark.parametrize(
    ("value", "kind", "name", "text"),
    [
        ("a", pa.string(), "string", '"a"'),
        ("", pa.string(), "string", '""'),
        (None, pa.string(), "string", "null"),
        ('"é\n', pa.string(), "string", json.dumps('"é\n')),
        ("1 Z", pa.string(), "string", '"1 Z"'),
        (7, pa.int8(), "int", "7"),
        (2**63 - 1, pa.int64(), "long", "9223372036854775807"),
        (True, pa.bool_(), "boolean", "true"),
        (Decimal("1.50"), pa.decimal128(9, 2), "decimal(9, 2)", '"1.50"'),
        (date(2026, 1, 2), pa.date32(), "date", '"2026-01-02"'),
        (
            datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
            pa.timestamp("us", tz="Europe/Berlin"),
            "timestamptz",
            '"2026-01-02T03:04:05.000006+00:00"',
        ),
        (
            datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - it has no zone
            pa.timestamp("s"),
            "timestamp",
            '"2026-01-02T03:04:05.000000"',
        ),
    ],
)
def test_a_value_is_told_as_iceberg_wants_it(
    value: Any, kind: pa.DataType, name: str, text: str
) -> None:
    table = pa.table({"p": pa.array([value], kind), "n": [1]})
    (part,) = parts(table, "p", p=name)
    assert part.values == {"p": text}
    assert part.table.equals(table), "the column stays in the file"


def test_the_empty_text_and_null_are_two_partitions() -> None:
    table = pa.table({"p": ["", None, "", "x"], "n": [1, 2, 3, 4]})
    found = {
        part.values["p"]: part.table["n"].to_pylist() for part in parts(table, "p", p="string")
    }
    assert found == {'""': [1, 3], "null": [2], '"x"': [4]}


def test_a_column_that_the_rows_lack_is_null() -> None:
    (part,) = parts(pa.table({"n": [1]}), "p", p="string")
    assert part.values == {"p": "null"}
    assert part.table.column_names == ["n"]
