"""What rows are like, and how they are to be written. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as kinds

from sinks.spark.sql.columns import sql_type
from sinks.spark.sql.names import checked_name
from topology.errors import InvalidSchema


@dataclass(frozen=True, slots=True)
class Wanted:
    """What rows are like, and how they are to be written."""

    schema: pa.Schema
    key: tuple[str, ...] = ()
    deleted: str | None = None
    may_grow: bool = True  # columns may be added to the table, if the user wants that

    @property
    def stored(self) -> list["pa.Field[pa.DataType]"]:
        """The columns that the table is to have."""
        return [field for field in self.schema if field.name != self.deleted]

    @property
    def loose(self) -> pa.Schema:
        """What rows are fitted to: of one that deletes only the key has to be there."""
        if self.deleted is None:
            return self.schema
        return pa.schema(
            [
                each if each.name in self.key else each.with_nullable(nullable=True)
                for each in self.schema
            ]
        )

    def complaints(self) -> list[str]:
        """Why no table could have these columns, a sentence each."""
        return [
            f"column '{field.name}': found {field.type}; PostgreSQL has no such type"
            for field in self.stored
            if sql_type(field.type) is None
        ]


def wanted_of(
    table: str, schema: pa.Schema, key: str | Sequence[str], deleted: str | None
) -> Wanted:
    """How rows are to be written. Raises InvalidSchema."""
    names = (key,) if isinstance(key, str) else tuple(key)
    for name in schema.names:
        checked_name(name, f"table '{table}': column")
    missing = [name for name in names if name not in schema.names]
    if missing or len(set(names)) != len(names):
        raise InvalidSchema(
            f"table '{table}': key is {', '.join(names)}; allowed are columns, each once, of "
            f"{', '.join(schema.names)}"
        )
    nested = [name for name in names if kinds.is_nested(schema.field(name).type)]
    if nested:
        raise InvalidSchema(f"table '{table}': key column '{nested[0]}' is nested")
    if deleted is None:
        return Wanted(schema, names)
    if not names or deleted in names:
        raise InvalidSchema(f"table '{table}': deleted is '{deleted}'; it needs a key beside it")
    if deleted not in schema.names or not kinds.is_boolean(schema.field(deleted).type):
        raise InvalidSchema(
            f"table '{table}': deleted is '{deleted}'; allowed is a column of booleans"
        )
    return Wanted(schema, names, deleted)
