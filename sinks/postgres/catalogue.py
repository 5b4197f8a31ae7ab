"""The schema that rows need, a table as PostgreSQL's catalogue has it, and its statements. Pure.

Every name in a statement is quoted; values are parameters or lines of COPY's input.
"""

# ruff: noqa: S608 - see above
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds

from sinks.keyed_rows import KeyedRows
from sinks.postgres.text import is_bytes, is_text
from topology.errors import InvalidSchema

# Which values of a type fit a column: for `some`, the database must be asked about each.
Fits: TypeAlias = Literal["all", "some", "none"]
Field: TypeAlias = "pa.Field[pa.DataType]"

_LONGEST_BYTES = 63  # of a name: PostgreSQL truncates longer ones silently
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}
_INTEGERS = tuple(_DIGITS)  # each has room for those before it
_MOST_DIGITS = 1000
_FRACTION = 6  # digits of a second
_TEXTS_OF_A_FORM = ("uuid", "json", "jsonb", "xml", "citext", "character varying")
_SIZES = re.compile(r"\((-?\d+)(?:,(-?\d+))?\)")


# Names


def quoted(*names: str | None) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names if name is not None)


def table_name(name: str) -> tuple[str | None, str]:
    """Split "table" or "schema.table". Raises InvalidSchema."""
    if not isinstance(name, str):
        raise InvalidSchema(f"table {name!r}: found {type(name).__name__}, expected a str")
    schema, dot, table = name.rpartition(".")
    if "." in schema:
        message = f"table {name!r}: found two dots, expected 'table' or 'schema.table'"
        raise InvalidSchema(message)
    for part in (schema, table) if dot else (table,):
        _check_name(part, f"table {name!r}")
    return schema if dot else None, table


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _check_name(name: str, where: str) -> None:
    raw = name.encode(errors="replace")
    if not name or "\0" in name:
        found = "NUL" if name else "nothing"
    elif raw.decode() != name:
        found = "half a character"
    elif len(raw) > _LONGEST_BYTES:
        found = f"{len(raw)} bytes"
    else:
        return
    expected = f"expected 1 to {_LONGEST_BYTES} bytes of UTF-8 without NUL"
    raise InvalidSchema(f"{where}: found {found} in the name {name!r}, {expected}")


def key_of(
    table: str, schema: pa.Schema, key: str | Sequence[str] = (), deleted: str | None = None
) -> KeyedRows:
    for name in schema.names:
        _check_name(name, f"table '{table}': column")
    rows = KeyedRows(table, schema, key, deleted)
    for name in rows.key:
        if kinds.is_nested(schema.field(name).type):
            raise InvalidSchema(f"table '{table}': key column '{name}' is nested")
    return rows


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


def definition(field: Field) -> str:
    strict = "" if field.nullable else " NOT NULL"
    return f"{quoted(field.name)} {sql_type(field.type)}{strict}"


def sql_type(kind: pa.DataType) -> str | None:
    """Return the type of a column that is created for an Arrow type; None: there is none."""
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
    name: str
    type: str  # without sizes; the base type of a domain
    shown: str  # with sizes
    is_enum: bool = False
    is_domain: bool = False
    nullable: bool = True
    filled: bool = False  # it has a default
    generated: bool = False  # rows cannot set it

    @property
    def sizes(self) -> tuple[int, int] | None:
        """Length, or precision and scale, or digits of a second."""
        found = _SIZES.search(self.shown)
        return None if found is None else (int(found[1]), int(found[2] or 0))


def values_that_fit(kind: pa.DataType, column: Column) -> Fits:
    """Return which values of a type an existing column holds unchanged."""
    fits = _fits((sql_type(kind) or "").partition("(")[0], kind, column)
    return "some" if column.is_domain and fits == "all" else fits


def _fits(  # noqa: PLR0911 - one for each family of types
    target: str, kind: pa.DataType, column: Column
) -> Fits:
    if target == "text":
        if column.type == "text" or (column.type == "character varying" and not column.sizes):
            return "all"
        has_some = column.is_enum or column.type.rpartition(".")[2] in _TEXTS_OF_A_FORM
        return "some" if has_some else "none"
    if column.type == "numeric" and (target in _INTEGERS or target == "numeric"):
        if column.sizes is None:
            return "all"
        decimals = kind.scale if kinds.is_decimal(kind) else 0
        digits = kind.precision - decimals if kinds.is_decimal(kind) else _DIGITS.get(target, 20)
        if column.sizes[1] < decimals:
            return "none"  # it would round
        return "all" if column.sizes[0] - column.sizes[1] >= digits else "some"
    if target in _INTEGERS and column.type in _INTEGERS[_INTEGERS.index(target) :]:
        return "all"
    if target == "jsonb" and column.type == "json":
        return "all"
    rounds = target.startswith("time") and column.sizes is not None and column.sizes[0] < _FRACTION
    return "all" if column.type == target and not rounds else "none"


# The catalogue

_SHAPE = """\
(SELECT coalesce(md5(string_agg(concat_ws(' ', a.attname, a.atttypid, a.atttypmod, a.attnotnull,
        a.attgenerated, a.attidentity), ',' ORDER BY a.attnum)), '')
 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"""

SHAPE = f"SELECT c.oid || ' ' || {_SHAPE} FROM pg_class c WHERE c.oid = to_regclass($1)"
"""The table's oid, and a digest of its columns."""

TABLE = f"""\
SELECT c.oid || ' ' || {_SHAPE}, n.nspname::text, c.relname::text,
    c.relkind::text, c.relpersistence::text,
    ARRAY(SELECT 'constraint ' || k.conname FROM pg_constraint k
          WHERE k.conrelid = c.oid AND k.contype IN ('c', 'f', 'x') ORDER BY 1)
    || ARRAY(SELECT 'trigger ' || g.tgname FROM pg_trigger g
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
    name: str
    is_unique: bool
    is_plain: bool  # of whole columns and all rows
    is_usable: bool  # valid, and checked at once
    columns: list[str]


@dataclass(frozen=True, slots=True)
class TableInfo:
    """An existing table: the rows of `COLUMNS` and `INDEXES`, and one of `TABLE`."""

    columns: list[Column]
    indexes: list[Index]
    shape: str
    schema: str
    name: str
    kind: str
    persistence: str
    guards: list[str]  # constraints (CHECK, FOREIGN KEY, EXCLUDE) and triggers

    @property
    def oid(self) -> int:
        return int(self.shape.partition(" ")[0])

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def new_columns(self, rows: KeyedRows) -> list[Field]:
        return [field for field in rows.stored if self.column(field.name) is None]

    def problems(self, rows: KeyedRows, *, may_grow: bool = True) -> Iterator[str]:
        """Yield the reasons why the table cannot hold the rows.

        `may_grow`: the user can have columns added to it.
        """
        if self.kind not in ("r", "p"):
            yield "it is not a table; views and foreign tables cannot be written"
        if self.persistence != "p":
            yield "it is UNLOGGED or temporary, so a crash of the database would empty it"
        names = {field.name for field in rows.stored}
        for field in rows.stored:
            column = self.column(field.name)
            if column is None:
                advice = " (on_new_columns='add' would add it)" if may_grow else ""
                yield f"column '{field.name}' is not in the table{advice}"
            elif column.generated:
                yield f"column '{field.name}' is filled by the database; leave it out of the schema"
            elif values_that_fit(field.type, column) == "none":
                yield (
                    f"column '{field.name}': found {field.type}, which needs "
                    f"{sql_type(field.type)}; the table has {column.shown}"
                )
        for each in self.columns:
            if each.name not in names and not each.nullable and not each.filled:
                yield f"column '{each.name}' of the table is NOT NULL, and the schema lacks it"
        if rows.key and self._arbiter(rows) is None:
            key = ", ".join(rows.key)
            yield f"key is {key}; the table has no unique index of exactly these columns"

    @property
    def not_null(self) -> frozenset[str]:
        return frozenset(column.name for column in self.columns if not column.nullable)

    def indexed(self, rows: KeyedRows) -> list[str]:
        """Return the columns with an index, which rejects values that are too long."""
        indexed = {name for index in self.indexes for name in index.columns}
        return [field.name for field in rows.stored if field.name in indexed]

    def trial_reason(self, rows: KeyedRows) -> str | None:
        """Return a reason to try rows: only the database knows whether it accepts them."""
        return next(self._trial_reasons(rows), None)

    def _trial_reasons(self, rows: KeyedRows) -> Iterator[str]:
        yield from (f"the table has the {guard}" for guard in self.guards)
        if self.kind == "p":
            yield "the table is partitioned"
        if any(column.generated for column in self.columns):
            yield "the table has generated columns"
        arbiter = self._arbiter(rows)
        for index in self.indexes:
            if index.is_unique and index is not arbiter:
                yield f"the index {index.name} is unique"
            if not index.is_plain:
                yield f"the index {index.name} is of an expression, or of some rows only"
        indexed = self.indexed(rows)
        for field in rows.stored:
            if field.name in indexed and kinds.is_nested(field.type):
                yield f"column '{field.name}' is jsonb and has an index"
            column = self.column(field.name)
            if column is not None and values_that_fit(field.type, column) == "some":
                domain = "a domain over " if column.is_domain else ""
                yield f"column '{field.name}' is {domain}{column.shown}"

    def _arbiter(self, rows: KeyedRows) -> Index | None:
        """Return the unique index that ON CONFLICT uses."""
        for index in self.indexes:
            fits = index.is_unique and index.is_plain and index.is_usable
            if rows.key and fits and set(index.columns) == set(rows.key):
                return index
        return None


# Statements

TEMPORARY = 'pg_temp."headrace_rows"'
REFUSED = f'SELECT "row" - 1, trim("said") FROM {TEMPORARY} WHERE "said" IS NOT NULL'
"""The rows that `Statements.merge_each` rejected, by index, each with the reason."""


class Statements:
    """The statements that write rows to one table.

    Rows with a key, and rows that are inserted one by one, go through a temporary table of texts
    until the end of the transaction. Its columns have names of ours.
    """

    def __init__(self, table: TableInfo, rows: KeyedRows) -> None:
        self.table = quoted(table.schema, table.name)
        self.casts = {column.name: column.type for column in table.columns}
        stored = [field.name for field in rows.stored]
        ours = {name: f'"c{number}"' for number, name in enumerate(rows.schema.names)}
        # Only `deleted` is no column of the table.
        typed = {name: f"r.{ours[name]}::{self.casts.get(name, 'boolean')}" for name in ours}
        conflict = ""
        if rows.key:
            changed = [f"{quoted(n)} = excluded.{quoted(n)}" for n in stored if n not in rows.key]
            action = f"UPDATE SET {', '.join(changed)}" if changed else "NOTHING"
            conflict = f"ON CONFLICT ({listed(rows.key)}) DO {action}"

        self.copy = f"COPY {self.table} ({listed(stored)}) FROM STDIN"
        self.make_temporary = (
            'CREATE TEMPORARY TABLE "headrace_rows" ("row" bigint GENERATED ALWAYS AS IDENTITY, '
            f'{", ".join(f"{our} text" for our in ours.values())}, "said" text) ON COMMIT DROP'
        )
        self.copy_temporary = f"COPY {TEMPORARY} ({', '.join(ours.values())}) FROM STDIN"

        # The last row of each key; in the order of the keys, so that two writers do not deadlock.
        key = ", ".join(ours[name] for name in rows.key)
        columns = ", ".join(f"{typed[name]} AS {our}" for name, our in ours.items())
        last = (
            f'(SELECT DISTINCT ON ({key}) * FROM (SELECT "row", {columns} FROM {TEMPORARY} AS r) '
            f'AS r ORDER BY {key}, "row" DESC) AS r'
        )
        values = ", ".join(f"r.{ours[name]}" for name in stored)
        insert = f"INSERT INTO {self.table} ({listed(stored)}) SELECT {values} FROM {last}"
        self.merge = f"{insert} {conflict}"
        put = (
            f"INSERT INTO {self.table} ({listed(stored)}) "
            f"VALUES ({', '.join(typed[name] for name in stored)}) {conflict};"
        )
        if rows.deleted is not None:
            gone = f"r.{ours[rows.deleted]}"
            delete = f"DELETE FROM {self.table} AS t"
            same = " AND ".join(f"t.{quoted(name)} = r.{ours[name]}" for name in rows.key)
            self.merge = (
                f"{delete} USING {last} WHERE {same} AND {gone}; "
                f"{insert} WHERE {gone} IS NOT TRUE {conflict}"
            )
            same = " AND ".join(f"t.{quoted(name)} = {typed[name]}" for name in rows.key)
            put = f"IF {typed[rows.deleted]} THEN {delete} WHERE {same}; ELSE {put} END IF;"
        self._put = put

    def merge_each(self, not_of_rows: Sequence[str]) -> str:
        """Insert each row in its order; raise errors of the classes `not_of_rows`.

        It runs on the server: a savepoint per row from here would cost three round trips.
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
