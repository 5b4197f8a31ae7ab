"""What a table is like, and what that asks of rows. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from sinks.spark.sql.columns import Column, Room, is_nested, room_for, sql_type
from sinks.spark.sql.wanted import Wanted

_ORDINARY, _PARTITIONED = "r", "p"
_LOGGED = "p"


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a table."""

    name: str
    is_unique: bool
    is_plain: bool  # of whole columns and all rows
    is_immediate: bool
    is_valid: bool
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """A table as its catalogue has it (`postgres.FACTS`)."""

    schema: str
    name: str
    kind: str
    persistence: str
    columns: tuple[Column, ...]
    constraints: tuple[str, ...]  # CHECK, FOREIGN KEY, EXCLUDE
    triggers: tuple[str, ...]
    indexes: tuple[Index, ...]

    def column(self, name: str) -> Column | None:
        """The column of this name."""
        return next((column for column in self.columns if column.name == name), None)


def facts_of(text: str) -> Facts:
    """Read the JSON that `postgres.FACTS` gives."""
    return msgspec.json.decode(text, type=Facts)


def new_columns(facts: Facts, wanted: Wanted) -> list["pa.Field[pa.DataType]"]:
    """The columns that the table has not."""
    return [field for field in wanted.stored if facts.column(field.name) is None]


def complaints(facts: Facts, wanted: Wanted) -> Iterator[str]:
    """What keeps rows out of the table that is there, a sentence each."""
    if facts.kind not in (_ORDINARY, _PARTITIONED):
        yield "it is no table; views and foreign tables are not written"
    if facts.persistence != _LOGGED:
        yield "it is UNLOGGED or temporary, so a crash of the database would empty it"
    names = {field.name for field in wanted.stored}
    for field in wanted.stored:
        column = facts.column(field.name)
        if column is None:
            advice = " (on_new_columns='add' would add it)" if wanted.may_grow else ""
            yield f"column '{field.name}' is not in the table{advice}"
        elif column.generated:
            yield f"column '{field.name}' is filled by the database; leave it out of the schema"
        elif room_for(field.type, column) is Room.NONE:
            yield (
                f"column '{field.name}': found {field.type}; "
                f"the table has {column.shown}, for which it would be {sql_type(field.type)}"
            )
    for column in facts.columns:
        if column.name not in names and not column.nullable and not column.filled:
            yield f"column '{column.name}' of the table may not be null, and the schema lacks it"
    if wanted.key and _index_of(facts, wanted.key) is None:
        yield (
            f"key is {', '.join(wanted.key)}; the table has no unique index of just these columns"
        )


def required(facts: Facts, wanted: Wanted) -> frozenset[str]:
    """The columns in which a row that stays has no null, as the table or the schema has it."""
    not_null = {column.name for column in facts.columns if not column.nullable}
    strict = {field.name for field in wanted.stored if not field.nullable}
    return frozenset(wanted.key) | not_null | strict


def trial_reason(facts: Facts, wanted: Wanted) -> str | None:
    """Why only the database can say whether it takes a row; None if we can tell."""
    return next(_trial_reasons(facts, wanted), None)


def _trial_reasons(facts: Facts, wanted: Wanted) -> Iterator[str]:
    for name in facts.constraints:
        yield f"the table has the constraint {name}"
    for name in facts.triggers:
        yield f"the table has the trigger {name}"
    if facts.kind == _PARTITIONED:
        yield "the table is partitioned"
    if any(column.generated for column in facts.columns):
        yield "the table has generated columns"
    yield from _reasons_of_indexes(facts, wanted)
    for field in wanted.stored:
        column = facts.column(field.name)
        if column is not None and room_for(field.type, column) is Room.SOME:
            domain = "a domain over " if column.is_domain else ""
            yield f"column '{field.name}' is {domain}{column.shown}"


def _reasons_of_indexes(facts: Facts, wanted: Wanted) -> Iterator[str]:
    arbiter = _index_of(facts, wanted.key)
    for index in facts.indexes:
        if index.is_unique and index is not arbiter:
            yield f"the index {index.name} is unique"
        if not index.is_plain:
            yield f"the index {index.name} is of an expression, or of some rows only"
    indexed = indexed_columns(facts, wanted)
    for field in wanted.stored:
        if field.name in indexed and is_nested(field.type):
            yield f"column '{field.name}' is jsonb and has an index"


def indexed_columns(facts: Facts, wanted: Wanted) -> list[str]:
    """The columns whose values an index holds: PostgreSQL refuses those that are too long."""
    indexed = {name for index in facts.indexes for name in index.columns}
    return [field.name for field in wanted.stored if field.name in indexed]


def _index_of(facts: Facts, key: Sequence[str]) -> Index | None:
    """The unique index by which ON CONFLICT finds a row of the same key."""
    for index in facts.indexes:
        is_usable = index.is_unique and index.is_plain and index.is_immediate and index.is_valid
        if key and is_usable and set(index.columns) == set(key):
            return index
    return None
