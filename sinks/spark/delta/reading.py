"""The rows of a Delta table's files, read without Spark."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sinks.spark.delta.actions import ActiveFile
from sinks.spark.delta.facts import Facts
from topology.errors import SinkFailed

_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_OLD_CALENDAR = frozenset({b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"})


class FileReader:
    """Reads files of one table, as it was when its facts were read."""

    def __init__(self, root: Path, facts: Facts) -> None:
        """Raises SinkFailed when a column's type is none of Arrow's."""
        self._root = root
        within = [field for field in _arrow_schema(facts) if field.name not in facts.partition_by]
        self._schema = pa.schema(within)

    def read(self, file: ActiveFile, names: Sequence[str] | None = None) -> pa.Table:
        """Columns of the file, all by default, in the table's order and types.

        Columns that are younger than the file are null; those of the partition are not there.
        Raises OSError, and SinkFailed when the file is none that can be read, or only Spark knows
        which rows it has.
        """
        if file.has_deletions:
            raise SinkFailed(
                f"file {file.place} has a deletion vector, which only Spark reads; "
                "REORG TABLE … APPLY (PURGE) takes it away"
            )
        if _ELSEWHERE.match(file.place):
            raise SinkFailed(f"file {file.place} lies outside of the table: it is a clone")
        schema = self._schema
        if names is not None:
            schema = pa.schema([schema.field(name) for name in names])
        try:
            return self._read(file, schema, None if names is None else list(names))
        except pa.ArrowInvalid as error:
            reason = (str(error).splitlines() or ["it is no Parquet"])[0]
            message = f"file {file.place}, which the table's log names, cannot be read: {reason}"
            raise SinkFailed(message) from error

    def _read(self, file: ActiveFile, schema: pa.Schema, names: list[str] | None) -> pa.Table:
        path = self._root / file.place
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as parquet:
            if not _OLD_CALENDAR.isdisjoint(parquet.metadata.metadata or {}):
                raise SinkFailed(f"file {file.place} has dates of Spark 2's calendar")
            found = parquet.read(names)
        columns = [
            _as(found[field.name], field.type)
            if field.name in found.column_names
            else pa.chunked_array([pa.nulls(found.num_rows, field.type)])
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)


def _as(column: "pa.ChunkedArray[Any]", kind: pa.DataType) -> "pa.ChunkedArray[Any]":
    # Times of Spark's own, INT96, are read as if they had no zone.
    return column if column.type.equals(kind) else column.cast(kind)


def _arrow_schema(facts: Facts) -> pa.Schema:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - see sinks/__init__
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    try:
        schema: pa.Schema = to_arrow_schema(StructType.fromJson(json.loads(facts.schema)))
    except PySparkException as error:
        raise SinkFailed(f"a column is of a type that only Spark reads: {error}") from error
    return schema
