"""A PostgreSQL table: what rows ask of it, what its catalogue says of it, how it is written. Pure.

Every name in a statement is quoted; values are parameters or lines of COPY's input.
"""

# ruff: noqa: S608 - see above
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds

from sinks.postgres.text import is_bytes, is_text
from topology.errors import InvalidSchema

# Whether a table's column has room for values: for `some`, the database must be asked about each.
Room: TypeAlias = Literal["all", "some", "none"]

_LONGEST_BYTES = 63  # of a name: PostgreSQL cuts longer ones off, in silence
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}
_INTEGERS = tuple(_DIGITS)  # each has room for those before it
_MOST_DIGITS = 1000
_FRACTION = 6  # digits of a second
_TEXTS_OF_A_FORM = ("uuid", "json", "jsonb", "xml", "citext", "character varying")
_SIZES = re.compile(r"\((-?\d+)(?:,(-?\d+))?\)")


# Names


def quoted(*names: str | None) -> str:
    """A name, with its schema if that is known, as SQL has it."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names if name is not None)


def table_name(name: str) -> tuple[str | None, str]:
    """The schema and the table of "table" or "schema.table". Raises InvalidSchema."""
    if not isinstance(name, str):
        raise InvalidSchema(f"table {name!r}: found {type(name).__name__}; a name is a str")
    schema, dot, table = name.rpartition(".")
    if "." in schema:
        raise InvalidSchema(f"table {name!r}: found two dots; allowed is 'table' or 'schema.table'")
    for part in (schema, table) if dot else (table,):
        _check_name(part, f"table {name!r}")
    return schema if dot else None, table


def listed(names: Iterable[str]) -> str:
    """Names as a list in SQL."""
    return ", ".join(map(quoted, names))


def _check_name(name: str, where: str) -> None:
    raw = name.encode(errors="replace")
    reason = None
    if not name or "\0" in name:
        reason = "NUL" if name else "nothing"
    elif raw.decode() != name:
        reason = "half a character"
    elif len(raw) > _LONGEST_BYTES:
        reason = f"{len(raw)} bytes"
    if reason is not None:
        allowed = f"allowed are 1 to {_LONGEST_BYTES} bytes of UTF-8 without NUL"
        raise InvalidSchema(f"{where}: found {reason} in the name {name!r}; {allowed}")


# What rows ask of a table


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
        """The schema for rows, some of which may delete: of those only the key must be there."""
        if self.deleted is None:
            return self.schema
        fields = [
            each if each.name in self.key else each.with_nullable(nullable=True)
            for each in self.schema
        ]
        return pa.schema(fields)


def wanted_of(
    table: str, schema: pa.Schema, key: str | Sequence[str], deleted: str | None
) -> Wanted:
    """How rows are to be written. Raises InvalidSchema."""
    names = (key,) if isinstance(key, str) else tuple(key)
    for name in schema.names:
        _check_name(name, f"table '{table}': column")
    missing = [name for name in names if name not in schema.names]
    if missing or len(set(names)) != len(names):
        raise InvalidSchema(
            f"table '{table}': key is {', '.join(names)}; allowed are columns, each once, of "
            f"{', '.join(schema.names)}"
        )
    nested = [name for name in names if kinds.is_nested(schema.field(name).type)]
    if nested:
        raise InvalidSchema(f"table '{table}': key column '{nested[0]}' is nested")
    if deleted is not None and (not names or deleted in names):
        raise InvalidSchema(f"table '{table}': deleted is '{deleted}'; it needs a key beside it")
    if deleted is not None and (
        deleted not in schema.names or not kinds.is_boolean(schema.field(deleted).type)
    ):
        raise InvalidSchema(
            f"table '{table}': deleted is '{deleted}'; allowed is a column of booleans"
        )
    return Wanted(schema, names, deleted)


# Types

_SCALARS = (
    ("boolean", kinds.is_boolean),
    ("smallint", lambda k: kinds.is_int8(k) or kinds.is_int16(k) or kinds.is_uint8(k)),
    ("integer", lambda k: kinds.is_int32(k) or kinds.is_uint16(k)),
    ("bigint", lambda k: kinds.is_int64(k) or kinds.is_uint32(k)),
    ("numeric(20)", kinds.is_uint64),
    ("real", lambda k: kinds.is_float16(k) or kinds.is_float32(k)),
    ("double precision", kinds.is_float64),
    ("text", is_text),
    ("bytea", is_bytes),
    ("date", kinds.is_date),
    ("time without time zone", kinds.is_time),
)


def definition(field: "pa.Field[pa.DataType]") -> str:
    """A column as CREATE TABLE has it."""
    strict = "" if field.nullable else " NOT NULL"
    return f"{quoted(field.name)} {sql_type(field.type)}{strict}"


def sql_type(kind: pa.DataType) -> str | None:
    """The type of a column that is made for these values; None: PostgreSQL has none for them."""
    if kinds.is_dictionary(kind):
        return sql_type(kind.value_type)
    if kinds.is_map(kind):
        return "jsonb" if sql_type(kind.key_type) and sql_type(kind.item_type) else None
    if kinds.is_nested(kind):
        inner = (kind.field(number).type for number in range(kind.num_fields))
        return "jsonb" if all(map(sql_type, inner)) else None
    if kinds.is_decimal(kind):
        fits = 0 <= kind.scale <= kind.precision <= _MOST_DIGITS
        return f"numeric({kind.precision},{kind.scale})" if fits else "numeric"
    if kinds.is_timestamp(kind):
        return f"timestamp {'without' if kind.tz is None else 'with'} time zone"
    return next((name for name, holds in _SCALARS if holds(kind)), None)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table that is there."""

    name: str
    type: str  # without sizes; of a domain: the one beneath it
    shown: str  # with them
    is_enum: bool = False
    is_domain: bool = False
    nullable: bool = True
    filled: bool = False  # with something else than null, if a row does not say
    generated: bool = False  # rows may not say

    @property
    def sizes(self) -> tuple[int, int] | None:
        """Length, or precision and scale, or digits of a second."""
        found = _SIZES.search(self.shown)
        return None if found is None else (int(found[1]), int(found[2] or 0))


def room_for(kind: pa.DataType, column: Column) -> Room:
    """Whether a column that is there has room for values of a type.

    A type is never turned into one that would keep less of a value, or something else.
    """
    room = _room((sql_type(kind) or "").partition("(")[0], kind, column)
    return "some" if column.is_domain and room == "all" else room


def _room(  # noqa: PLR0911 - one for each family of types
    wanted: str, kind: pa.DataType, column: Column
) -> Room:
    if wanted == "text":
        if column.type == "text" or (column.type == "character varying" and not column.sizes):
            return "all"
        has_some = column.is_enum or column.type.rpartition(".")[2] in _TEXTS_OF_A_FORM
        return "some" if has_some else "none"
    if column.type == "numeric" and (wanted in _INTEGERS or wanted == "numeric"):
        if column.sizes is None:
            return "all"
        decimals = kind.scale if kinds.is_decimal(kind) else 0
        digits = kind.precision - decimals if kinds.is_decimal(kind) else _DIGITS.get(wanted, 20)
        if column.sizes[1] < decimals:
            return "none"  # it would round
        return "all" if column.sizes[0] - column.sizes[1] >= digits else "some"
    if wanted in _INTEGERS and column.type in _INTEGERS[_INTEGERS.index(wanted) :]:
        return "all"
    if wanted == "jsonb" and column.type == "json":
        return "all"
    rounds = wanted.startswith("time") and column.sizes is not None and column.sizes[0] < _FRACTION
    return "all" if column.type == wanted and not rounds else "none"


# What the catalogue says

_SHAPE = """\
(SELECT md5(string_agg(concat_ws(' ', a.attname, a.atttypid, a.atttypmod, a.attnotnull,
        a.attgenerated, a.attidentity), ',' ORDER BY a.attnum))
 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"""

SHAPE = f"SELECT c.oid || ' ' || {_SHAPE} FROM pg_class c WHERE c.oid = to_regclass($1)"
"""Another value says that it is another table, or that its columns have changed."""

TABLE = f"""\
SELECT c.oid, c.oid || ' ' || {_SHAPE}, n.nspname::text, c.relname::text,
    c.relkind::text, c.relpersistence::text,
    ARRAY(SELECT k.conname::text FROM pg_constraint k
          WHERE k.conrelid = c.oid AND k.contype IN ('c', 'f', 'x') ORDER BY 1),
    ARRAY(SELECT g.tgname::text FROM pg_trigger g
          WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D' ORDER BY 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)"""

COLUMNS = """\
WITH RECURSIVE types AS (
    SELECT a.attnum AS number, a.atttypid AS type, a.atttypmod AS mod, a.attnotnull AS strict,
        false AS is_domain
    FROM pg_attribute a WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT o.number, d.typbasetype, d.typtypmod, o.strict OR d.typnotnull, true
    FROM types o JOIN pg_type d ON d.oid = o.type WHERE d.typtype = 'd')
SELECT a.attname::text, format_type(t.oid, NULL), format_type(t.oid, o.mod), t.typtype = 'e',
    o.is_domain, NOT o.strict, a.atthasdef OR a.attidentity <> '',
    a.attgenerated <> '' OR a.attidentity = 'a'
FROM types o JOIN pg_attribute a ON a.attrelid = $1::oid AND a.attnum = o.number
    JOIN pg_type t ON t.oid = o.type AND t.typtype <> 'd' ORDER BY a.attnum"""

INDEXES = """\
SELECT x.indexrelid::regclass::text, x.indisunique, x.indexprs IS NULL AND x.indpred IS NULL,
    x.indimmediate AND x.indisvalid,
    ARRAY(SELECT a.attname::text FROM unnest(x.indkey::int2[]) WITH ORDINALITY AS u(number, index)
          JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = u.number
          WHERE u.index <= x.indnkeyatts)
FROM pg_index x WHERE x.indrelid = $1::oid"""


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a table."""

    name: str
    is_unique: bool
    is_plain: bool  # of whole columns and all rows
    is_usable: bool  # valid, and checked at once
    columns: list[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """A table as its catalogue has it: the rows of `COLUMNS` and `INDEXES`, and one of `TABLE`."""

    columns: list[Column]
    indexes: list[Index]
    oid: int
    shape: str
    schema: str
    name: str
    kind: str
    persistence: str
    constraints: list[str]  # CHECK, FOREIGN KEY, EXCLUDE
    triggers: list[str]

    def column(self, name: str) -> Column | None:
        """The column of this name."""
        return next((column for column in self.columns if column.name == name), None)

    def new_columns(self, wanted: Wanted) -> list["pa.Field[pa.DataType]"]:
        """The columns that the table has not."""
        return [field for field in wanted.stored if self.column(field.name) is None]

    def complaints(self, wanted: Wanted) -> Iterator[str]:
        """What keeps rows out of the table, a sentence each."""
        if self.kind not in ("r", "p"):
            yield "it is no table; views and foreign tables are not written"
        if self.persistence != "p":
            yield "it is UNLOGGED or temporary, so a crash of the database would empty it"
        names = {field.name for field in wanted.stored}
        for field in wanted.stored:
            column = self.column(field.name)
            if column is None:
                advice = " (on_new_columns='add' would add it)" if wanted.may_grow else ""
                yield f"column '{field.name}' is not in the table{advice}"
            elif column.generated:
                yield f"column '{field.name}' is filled by the database; leave it out of the schema"
            elif room_for(field.type, column) == "none":
                yield (
                    f"column '{field.name}': found {field.type}; "
                    f"the table has {column.shown}, for which it would be {sql_type(field.type)}"
                )
        for each in self.columns:
            if each.name not in names and not each.nullable and not each.filled:
                yield f"column '{each.name}' of the table may not be null, and the schema lacks it"
        if wanted.key and self._arbiter(wanted) is None:
            key = ", ".join(wanted.key)
            yield f"key is {key}; the table has no unique index of just these columns"

    def required(self, wanted: Wanted) -> frozenset[str]:
        """The columns in which a row that stays has no null, as the table or the schema has it."""
        not_null = {column.name for column in self.columns if not column.nullable}
        strict = {field.name for field in wanted.stored if not field.nullable}
        return frozenset(wanted.key) | not_null | strict

    def indexed(self, wanted: Wanted) -> list[str]:
        """The columns whose values an index holds: PostgreSQL refuses those that are too long."""
        indexed = {name for index in self.indexes for name in index.columns}
        return [field.name for field in wanted.stored if field.name in indexed]

    def trial_reason(self, wanted: Wanted) -> str | None:
        """Why only the database can say whether it takes a row; None if we can tell."""
        return next(self._trial_reasons(wanted), None)

    def _trial_reasons(self, wanted: Wanted) -> Iterator[str]:
        yield from (f"the table has the constraint {name}" for name in self.constraints)
        yield from (f"the table has the trigger {name}" for name in self.triggers)
        if self.kind == "p":
            yield "the table is partitioned"
        if any(column.generated for column in self.columns):
            yield "the table has generated columns"
        arbiter = self._arbiter(wanted)
        for index in self.indexes:
            if index.is_unique and index is not arbiter:
                yield f"the index {index.name} is unique"
            if not index.is_plain:
                yield f"the index {index.name} is of an expression, or of some rows only"
        indexed = self.indexed(wanted)
        for field in wanted.stored:
            if field.name in indexed and kinds.is_nested(field.type):
                yield f"column '{field.name}' is jsonb and has an index"
            column = self.column(field.name)
            if column is not None and room_for(field.type, column) == "some":
                domain = "a domain over " if column.is_domain else ""
                yield f"column '{field.name}' is {domain}{column.shown}"

    def _arbiter(self, wanted: Wanted) -> Index | None:
        """The unique index by which ON CONFLICT finds a row of the same key."""
        for index in self.indexes:
            fits = index.is_unique and index.is_plain and index.is_usable
            if wanted.key and fits and set(index.columns) == set(wanted.key):
                return index
        return None


# How it is written

TEMPORARY = 'pg_temp."headrace_rows"'
REFUSED = f'SELECT "row" - 1, trim("said") FROM {TEMPORARY} WHERE "said" IS NOT NULL'
"""The rows that `Statements.merge_each` has not put in place, by index, each with the reason."""


class Statements:
    """The statements that write rows to one table.

    With a key, and where rows are put in one by one, they go through a temporary table of texts
    that ends with the transaction; its columns have names of ours, which no user's can meet.
    """

    def __init__(self, facts: Facts, wanted: Wanted) -> None:
        self.table = quoted(facts.schema, facts.name)
        self.casts = {column.name: column.type for column in facts.columns}
        stored = [field.name for field in wanted.stored]
        ours = {name: f'"c{number}"' for number, name in enumerate(wanted.schema.names)}
        # Only `deleted` is no column of the table.
        typed = {name: f"r.{ours[name]}::{self.casts.get(name, 'boolean')}" for name in ours}
        conflict = ""
        if wanted.key:
            changed = [f"{quoted(n)} = excluded.{quoted(n)}" for n in stored if n not in wanted.key]
            action = f"UPDATE SET {', '.join(changed)}" if changed else "NOTHING"
            conflict = f"ON CONFLICT ({listed(wanted.key)}) DO {action}"

        self.copy = f"COPY {self.table} ({listed(stored)}) FROM STDIN"
        self.make_temporary = (
            'CREATE TEMPORARY TABLE "headrace_rows" ("row" bigint GENERATED ALWAYS AS IDENTITY, '
            f'{", ".join(f"{our} text" for our in ours.values())}, "said" text) ON COMMIT DROP'
        )
        self.copy_temporary = f"COPY {TEMPORARY} ({', '.join(ours.values())}) FROM STDIN"

        # By key, the last row of each; in the order of the keys, so that two do not deadlock.
        key = ", ".join(ours[name] for name in wanted.key)
        columns = ", ".join(f"{typed[name]} AS {our}" for name, our in ours.items())
        rows = (
            f'(SELECT DISTINCT ON ({key}) * FROM (SELECT "row", {columns} FROM {TEMPORARY} AS r) '
            f'AS r ORDER BY {key}, "row" DESC) AS r'
        )
        values = ", ".join(f"r.{ours[name]}" for name in stored)
        insert = f"INSERT INTO {self.table} ({listed(stored)}) SELECT {values} FROM {rows}"
        self.merge = f"{insert} {conflict}"
        put = (
            f"INSERT INTO {self.table} ({listed(stored)}) "
            f"VALUES ({', '.join(typed[name] for name in stored)}) {conflict};"
        )
        if wanted.deleted is not None:
            gone = f"r.{ours[wanted.deleted]}"
            delete = f"DELETE FROM {self.table} AS t"
            same = " AND ".join(f"t.{quoted(name)} = r.{ours[name]}" for name in wanted.key)
            self.merge = (
                f"{delete} USING {rows} WHERE {same} AND {gone}; "
                f"{insert} WHERE {gone} IS NOT TRUE {conflict}"
            )
            same = " AND ".join(f"t.{quoted(name)} = {typed[name]}" for name in wanted.key)
            put = f"IF {typed[wanted.deleted]} THEN {delete} WHERE {same}; ELSE {put} END IF;"
        self._put = put

    def merge_each(self, not_of_rows: Sequence[str]) -> str:
        """Put each row in, in its order; errors of the classes `not_of_rows` are raised.

        On the server: a savepoint for each row from here would cost three round trips.
        """
        body = f"""\
DECLARE r record; found text;
BEGIN
    FOR r IN SELECT ctid, * FROM {TEMPORARY} ORDER BY "row" LOOP
        BEGIN
            {self._put}
        EXCEPTION WHEN plpgsql_error OR OTHERS THEN
            IF left(SQLSTATE, 2) IN ({", ".join(f"'{each}'" for each in not_of_rows)}) THEN
                RAISE;
            END IF;
            GET STACKED DIAGNOSTICS found = PG_EXCEPTION_DETAIL;
            UPDATE {TEMPORARY} SET "said" = SQLERRM || ' ' || found WHERE ctid = r.ctid;
        END;
    END LOOP;
END"""
        quote = "$headrace$"
        while quote in body:  # a name may have anything in it
            quote = f"$x{quote[1:]}"
        return f"DO {quote}{body}{quote}"
