"""Reference tables, read by Spark into Arrow."""

from typing import Any

import pyarrow as pa

from sinks.names import table_path
from sinks.spark.reasons import one_line
from topology.errors import ReferenceLoadFailed
from topology.reference import Reference
from topology.sink import SparkDriver

# A CSV file's first line names its columns. Types are not guessed: a guess makes 501 of "00501".
_OPTIONS = {"csv": {"header": "true"}}


def read_by_spark(reference: Reference, spark: SparkDriver, warehouse: str) -> pa.Table:
    """Read a reference's rows, at most one more than it may have. Any thread may call.

    Raises ReferenceLoadFailed, naming the place and what Spark said of it.
    """

    def job(session: Any) -> pa.Table:
        frame = _frame(session, reference, warehouse)
        names = [_quoted(name) for name in reference.wanted_of(frame.columns)]
        table: pa.Table = frame.select(names).limit(reference.max_rows + 1).toArrow()
        return table

    try:
        return spark.run(job, group=f"reference-{reference.name}")
    except ReferenceLoadFailed:
        raise
    except Exception as error:
        reason = f"{reference.format} '{reference.place}': {one_line(error)}"
        raise ReferenceLoadFailed(reference.name, reason) from error


def _frame(session: Any, reference: Reference, warehouse: str) -> Any:
    if reference.format == "table":
        return session.table(reference.place)
    options = _OPTIONS.get(reference.format, {}) | reference.properties
    reader = session.read.format(reference.format).options(**options)
    return reader.load(table_path(warehouse, reference.place))


def _quoted(name: str) -> str:
    """A column's name for Spark, in which a dot would mean a field."""
    return "`" + name.replace("`", "``") + "`"
