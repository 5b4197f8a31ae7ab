"""A step that Spark itself makes: a function of a DataFrame, and the columns it is given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from topology.errors import InvalidTopology
from topology.schema import schema_of

Function: TypeAlias = Callable[[Any], Any]
"""From a pyspark.sql.DataFrame to another."""

_HEADER: "list[pa.Field[Any]]" = [
    pa.field("key", pa.string(), nullable=False),
    pa.field("value", pa.binary()),
]
_FIELDS: "list[pa.Field[Any]]" = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(pa.struct(_HEADER))),
]
KAFKA_COLUMNS = pa.schema(_FIELDS)
"""What a Spark step directly behind a source gets: the columns of Spark's own Kafka source."""


@dataclass(frozen=True, slots=True)
class SparkStep:
    """A function of a DataFrame, and the columns that it is given."""

    name: str
    function: Function
    schema: pa.Schema
    reads_source: bool  # its rows are records, as KAFKA_COLUMNS


def spark_step(
    function: Function, schema: type[Any] | pa.Schema | None, name: str | None
) -> SparkStep:
    """What `Stream.spark` was given, checked. Raises InvalidTopology."""
    if not callable(function):
        raise InvalidTopology(f"spark() got {function!r}; a function of a DataFrame is allowed")
    found = str(getattr(function, "__name__", type(function).__name__))
    label = name or ("spark" if found == "<lambda>" else found)
    columns = KAFKA_COLUMNS if schema is None else schema_of(schema)
    return SparkStep(label, function, columns, reads_source=schema is None)
