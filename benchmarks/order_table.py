"""The table of priced orders that the variants of the table suites fill, and what is in it."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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
    """What is in a table, in numbers that do not depend on the order of its rows."""

    rows: int
    order_ids: int  # the sum of all
    cents: int  # of all totals


def contents(storage: Storage, files: Iterable[str]) -> Contents:
    """Read the files that hold a table's rows."""
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
