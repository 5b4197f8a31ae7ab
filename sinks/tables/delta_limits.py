"""Columns that Delta can have, and tables that delta-rs cannot write."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sinks.names import names_in
from sinks.tables.log import plain_field
from topology.errors import InvalidSchema, SinkFailed, missing_extra

# Features that ask nothing of a writer who adds files while they are not used, which columns and
# properties tell. delta-rs would write tables with some others, and break their promise.
_WRITABLE = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)
_RETENTION = "delta.setTransactionRetentionDuration"
_MAPPING = "delta.columnMapping.mode"
_CONSTRAINT = "delta.constraints."
_UPSERTS_REFUSED = ("delta.appendOnly", "delta.enableChangeDataFeed")
_NOT_IN_NAMES = " ,;{}()\n\t="  # but where a table maps its columns' names
_COLUMN_FEATURES = ("CURRENT_DEFAULT", "__CHAR_VARCHAR_TYPE_STRING")


def library() -> Any:
    """delta-rs, imported when it is needed. Raises SinkFailed."""
    try:
        import deltalake  # noqa: PLC0415 - see sinks/__init__
    except ImportError as error:
        raise SinkFailed(missing_extra("a Delta table needs delta-rs", "delta")) from error
    return deltalake


def stored(schema: pa.Schema) -> pa.Schema:
    """The schema as Delta has it. Raises InvalidSchema."""
    names = [name.lower() for name in schema.names]
    for name in schema.names:
        if names.count(name.lower()) > 1:
            raise InvalidSchema(f"column {name!r}: names must not differ in case only")
    for name in names_in(schema):
        if not set(_NOT_IN_NAMES).isdisjoint(name):
            raise InvalidSchema(
                f"column {name!r}: Delta allows names without any of {_NOT_IN_NAMES!r}"
            )
    return pa.schema([_stored(field) for field in schema])


def obstacles(table: Any, *, remembers: bool, has_key: bool) -> Iterator[str]:
    """Why files cannot be put into a table, or transactions (`remembers`), or rows by key."""
    metadata, protocol = table.metadata(), table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    properties = metadata.configuration
    for feature in sorted(features - _WRITABLE):
        yield f"it has the feature {feature}"
    if properties.get(_MAPPING, "none") != "none":
        yield f"it has {_MAPPING} = {properties[_MAPPING]}"
    for name in properties:
        if name.startswith(_CONSTRAINT):
            yield f"it has the constraint {name.removeprefix(_CONSTRAINT)}"
    yield from _of_columns(json.loads(table.schema().to_json())["fields"])
    if remembers and _RETENTION in properties:
        yield f"it forgets transactions: {_RETENTION} = {properties[_RETENTION]}"
    for name in _UPSERTS_REFUSED if has_key else ():
        if properties.get(name, "false").lower() == "true":
            yield f"rows have a key, and it has {name} = true"
    if has_key and "deletionVectors" in features:
        yield "rows have a key, and it has the feature deletionVectors"


def _of_columns(columns: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for column in columns:
        for name in column["metadata"]:  # invariants, generated and identity columns, defaults
            if name.startswith("delta.") or name in _COLUMN_FEATURES:
                yield f"column '{column['name']}' has {name}"


def _stored(field: "pa.Field[Any]") -> "pa.Field[Any]":
    """A column as Delta has it. Raises InvalidSchema."""
    wanted = plain_field(field.name, field, _signed)
    try:
        return pa.schema(library().Schema.from_arrow(pa.schema([wanted]))).field(0)
    except SinkFailed:
        raise
    except Exception as error:
        raise InvalidSchema(
            f"column '{field.name}': found {field.type}; Delta has no such type"
        ) from error


def _signed(kind: pa.DataType) -> pa.DataType:
    """The type itself, or one that delta-rs refuses: it would take unsigned numbers for others."""
    is_other = pa.types.is_unsigned_integer(kind) or pa.types.is_null(kind)
    return pa.float16() if is_other else kind
