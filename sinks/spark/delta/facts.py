"""What a Delta table is like, and why only Spark can write it. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sinks.files.layout import can_partition

# Features that ask nothing of a writer who only appends, or nothing while they are not used
# (which columns and properties tell). Those that are not named here go by way of Spark.
_APPENDED_TO = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_RETENTION = "delta.setTransactionRetentionDuration"
_MAPPING = "delta.columnMapping.mode"
_CONSTRAINT = "delta.constraints."
_APPEND_ONLY = "delta.appendOnly"
_CHANGE_FEED = "delta.enableChangeDataFeed"


@dataclass(frozen=True, slots=True)
class Facts:
    """A table's protocol and metadata, as its log has them."""

    schema: str  # Spark's JSON of it
    partition_by: tuple[str, ...]
    features: frozenset[str]
    properties: Mapping[str, str]
    table_id: str = ""  # another one: the table was removed and made anew


def append_obstacle(facts: Facts, schema: pa.Schema) -> str | None:
    """Why files with rows of this schema cannot be added without Spark; None if they can."""
    return next(_append_obstacles(facts, schema), None)


def _append_obstacles(facts: Facts, schema: pa.Schema) -> Iterator[str]:
    for feature in sorted(facts.features - _APPENDED_TO):
        yield f"the table has the feature {feature}"
    if facts.properties.get(_MAPPING, "none") != "none":
        yield f"the table has {_MAPPING} = {facts.properties[_MAPPING]}"
    for name in facts.properties:
        if name.startswith(_CONSTRAINT):
            yield f"the table has the constraint {name.removeprefix(_CONSTRAINT)}"
    for column in json.loads(facts.schema)["fields"]:
        yield from _column_obstacles(column, schema)
    for name in facts.partition_by:
        if name in schema.names and not can_partition(schema.field(name).type):
            yield f"the table is partitioned by column '{name}' of {schema.field(name).type}"
    if not set(schema.names) - set(facts.partition_by):
        yield "all columns are partitions"


def _column_obstacles(column: dict[str, Any], schema: pa.Schema) -> Iterator[str]:
    name = column["name"]
    ours = schema.field(name) if name in schema.names else None
    if not column["nullable"] and (ours is None or ours.nullable):
        yield f"column '{name}' is NOT NULL in the table only"
    if _has_inner_not_null(column["type"]):
        yield f"column '{name}' has parts that are NOT NULL"
    # Invariants, generated and identity columns, and defaults are kept in here.
    for key in column.get("metadata", {}):
        if key.startswith("delta.") or key in ("CURRENT_DEFAULT", "__CHAR_VARCHAR_TYPE_STRING"):
            yield f"column '{name}' has {key}"


def _has_inner_not_null(kind: Any) -> bool:
    if not isinstance(kind, dict):
        return False
    if kind["type"] == "struct":
        return any(not f["nullable"] or _has_inner_not_null(f["type"]) for f in kind["fields"])
    if kind["type"] == "array":
        return not kind["containsNull"] or _has_inner_not_null(kind["elementType"])
    if kind["type"] == "map":
        inner = _has_inner_not_null(kind["keyType"]) or _has_inner_not_null(kind["valueType"])
        return inner or not kind["valueContainsNull"]
    return False


def upsert_obstacle(facts: Facts, schema: pa.Schema, key: Sequence[str]) -> str | None:
    """Why rows cannot be replaced by their key in the columns; None if they can."""
    for name in (_APPEND_ONLY, _CHANGE_FEED):
        if facts.properties.get(name, "false").lower() == "true":
            return f"the table has {name} = true"
    for name in key:
        if name in facts.partition_by and not _has_one_spelling(schema.field(name).type):
            kind = schema.field(name).type
            return f"key column '{name}' of {kind} is a partition; text, integers and dates may be"
    return None


def _has_one_spelling(kind: pa.DataType) -> bool:
    """Whether each value is spelled alike in every log, whoever wrote it."""
    if isinstance(kind, pa.DictionaryType):
        kind = kind.value_type
    types = pa.types
    return (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_date32(kind)
    )


def transaction_obstacle(facts: Facts) -> str | None:
    """Why the table cannot be trusted to remember txids; None if it can."""
    if _RETENTION in facts.properties:
        return f"the table forgets transactions: {_RETENTION} = {facts.properties[_RETENTION]}"
    return None
