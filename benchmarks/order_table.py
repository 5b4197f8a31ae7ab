"""The Delta table of priced orders that every variant of suite spark fills, and what is in it."""

import json
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NAME = "orders"
_CENTS = 100


def _field(name: str, kind: pa.DataType) -> "pa.Field[pa.DataType]":
    return pa.field(name, kind, nullable=False)


ORDER = pa.schema(  # what a record holds
    [
        _field("order_id", pa.int64()),
        _field("user_id", pa.int64()),
        _field("sku", pa.string()),
        _field("qty", pa.int64()),
        _field("price", pa.float64()),
        _field("ts", pa.int64()),
        _field("country", pa.string()),
    ]
)
PRICED = pa.schema(  # what a row of the table holds
    [*ORDER, _field("segment", pa.string()), _field("total", pa.float64())]
)


class Contents(NamedTuple):
    """What is in a table, in numbers that do not depend on the order of its rows."""

    rows: int
    order_ids: int  # the sum of all
    cents: int  # of all totals


def create(session: Any, path: Path) -> None:
    """Make the table, with no rows and no file."""
    from sinks.spark.existing import spark_schema  # noqa: PLC0415 - see sinks/__init__

    columns = ", ".join(
        f"{field.name} {field.dataType.simpleString()}" for field in spark_schema(PRICED)
    )
    session.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta")


def contents(path: Path) -> Contents:
    """Read the files that the table's log names, without Spark.

    For tables of fewer commits than a log keeps, without deletion vectors.
    """
    found = Contents(0, 0, 0)
    for name in _files(path):
        file = pq.read_table(path / name, columns=["order_id", "total"])
        cents = np.rint(file["total"].to_numpy() * _CENTS).astype(np.int64)
        found = Contents(
            found.rows + file.num_rows,
            found.order_ids + int(file["order_id"].to_numpy().sum()),
            found.cents + int(cents.sum()),
        )
    return found


def _files(path: Path) -> list[str]:
    names: dict[str, None] = {}
    for commit in sorted((path / "_delta_log").glob("*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                names[unquote(action["add"]["path"])] = None
            if "remove" in action:
                names.pop(unquote(action["remove"]["path"]), None)
    return list(names)
