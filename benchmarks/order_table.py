"""The table of priced orders that the variants of the table suites fill, and what is in it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.child import Figures
from benchmarks.orders import FIRST_ORDER
from sinks.storage import Storage

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
    """A table's contents, in numbers that do not depend on the order of its rows."""

    rows: int
    order_ids: int  # the sum of all
    cents: int  # of all totals


def contents(storage: Storage, files: Iterable[str]) -> Contents:
    found = Contents(0, 0, 0)
    for uri in files:
        filesystem, path = storage.filesystem(uri)
        file = pq.read_table(path, columns=["order_id", "total"], filesystem=filesystem)
        cents = np.rint(file["total"].to_numpy() * _CENTS).astype(np.int64)
        found = Contents(
            found.rows + file.num_rows,
            found.order_ids + int(file["order_id"].to_numpy().sum()),
            found.cents + int(cents.sum()),
        )
    return found


_MOST = 99


def first_visible(table: Path) -> float:
    """The millisecond since 1970 at which the first rows could be read."""
    entries = sorted((table / "_delta_log").glob("*.json"))
    return next(
        entry.stat().st_mtime_ns / 1e6
        for entry in entries
        if '"add":' in entry.read_text(encoding="utf-8")
    )


def delays(table: Path, *, since: int) -> Figures:
    """Percentiles in milliseconds over the orders from number `since` on, and the commits."""
    found: list[Any] = []
    commits = 0
    for entry in sorted((table / "_delta_log").glob("*.json")):
        visible_at = entry.stat().st_mtime_ns / 1e6
        actions = map(json.loads, entry.read_text(encoding="utf-8").splitlines())
        files = [unquote(action["add"]["path"]) for action in actions if "add" in action]
        commits += bool(files)
        for name in files:
            rows = pq.ParquetFile(table / name).read(columns=["order_id", "ts"])
            counted = rows["order_id"].to_numpy() >= FIRST_ORDER + since
            found.append(visible_at - rows["ts"].to_numpy()[counted])
    if not any(map(len, found)):
        raise SystemExit(f"no order from number {since} on is in {table}")
    each = np.concatenate(found)
    return {
        "p50_ms": float(np.percentile(each, 50)),
        "p99_ms": float(np.percentile(each, _MOST)),
        "most_ms": float(each.max()),
        "commits": commits,
    }
