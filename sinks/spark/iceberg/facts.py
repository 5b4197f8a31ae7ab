"""What an Iceberg table is like, and why rows cannot be written to it. Pure."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sinks.files.layout import can_partition
from sinks.spark.iceberg.schema import (
    Fields,
    Json,
    alike,
    fields_of,
    required_places,
    shown,
    table_schema,
)

_KNOWN_VERSIONS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Facts:
    """A table's metadata, as far as a writer must know it."""

    table_id: str | None  # another one: the table was removed and made anew
    format_version: int
    schema: str  # JSON, as in Iceberg's specification
    spec: str  # JSON of the partition spec that new files follow
    data: str  # where data files go: a path or URI as Hadoop reads it
    encrypted: bool

    @property
    def fields(self) -> Fields:
        """The columns, by name."""
        return fields_of(json.loads(self.schema))

    @property
    def spec_id(self) -> int:
        """The number of the partition spec."""
        number: int = json.loads(self.spec)["spec-id"]
        return number

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by, each by its values; see `obstacles`."""
        names = {field["id"]: name for name, field in self.fields.items()}
        parts = json.loads(self.spec)["fields"]
        return tuple(names.get(part["source-id"], part["name"]) for part in parts)


def new_columns(facts: Facts, schema: pa.Schema) -> pa.Schema:
    """The columns that the rows have and the table has not."""
    there = facts.fields
    return pa.schema([field for field in schema if field.name not in there])


def obstacles(
    facts: Facts, schema: pa.Schema, partition_by: Sequence[str], *, adds: bool
) -> list[str]:
    """What keeps rows of this schema out of the table, a sentence each; [] if nothing does.

    With `adds` it is no obstacle that columns are missing in the table.
    """
    wrong = [*_table_obstacles(facts), *_column_obstacles(facts.fields, schema, adds=adds)]
    return wrong or [*_partition_obstacles(facts, schema, partition_by)]


def _table_obstacles(facts: Facts) -> Iterator[str]:
    if facts.format_version not in _KNOWN_VERSIONS:
        allowed = f"allowed are {_KNOWN_VERSIONS[0]} to {_KNOWN_VERSIONS[-1]}"
        yield f"the table has format version {facts.format_version}; {allowed}"
    if facts.encrypted:
        yield "the table's files are encrypted; allowed is one whose files are not"


def _column_obstacles(fields: Fields, schema: pa.Schema, *, adds: bool) -> Iterator[str]:
    lower = {name.lower(): name for name in fields}
    wanted = fields_of(table_schema(schema))
    for field in schema:
        name = field.name
        there = fields.get(name)
        if there is None:
            if name.lower() in lower:
                yield alike(name, lower[name.lower()])
            elif not adds:
                yield f"column '{name}' is not in the table; on_new_columns='add' would add it"
            continue
        found, allowed = shown(wanted[name]["type"]), shown(there["type"])
        if found != allowed:
            yield f"column '{name}': found {found}; allowed is {allowed}, as in the table"
            continue
        for place in required_places(field, there["type"], name, required=there["required"]):
            yield f"column '{place}' may be null in the rows, and is required in the table"
    for name, there in fields.items():
        if name not in wanted:
            yield from _missing_obstacles(name, there)


def _missing_obstacles(name: str, there: Json) -> Iterator[str]:
    if there["required"]:
        yield f"column '{name}' is required in the table, and the rows have none"
    elif "initial-default" in there or "write-default" in there:
        yield f"column '{name}' has a default in the table, and the rows have no such column"


def _partition_obstacles(
    facts: Facts, schema: pa.Schema, partition_by: Sequence[str]
) -> Iterator[str]:
    top = {field["id"] for field in facts.fields.values()}
    for part in json.loads(facts.spec)["fields"]:
        if part["transform"] != "identity" or part["source-id"] not in top:
            how = f"{part['name']} ({part['transform']})"
            yield f"the table is partitioned by {how}; allowed are columns by their values"
            return
    for name in facts.partition_by:
        if name in schema.names and not can_partition_by(schema.field(name).type):
            kind = schema.field(name).type
            yield f"the table is partitioned by column '{name}' of {kind}; its values are not exact"
    if partition_by and tuple(partition_by) != facts.partition_by:
        names = ", ".join(facts.partition_by) or "nothing"
        yield f"partition_by is {[*partition_by]}; the table is partitioned by {names}"


def can_partition_by(kind: pa.DataType) -> bool:
    """Whether the values of a type can be a partition's: not of one that has a NaN."""
    inner = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    return can_partition(kind) and not pa.types.is_floating(inner)
