"""What is particular to PostgreSQL: its statements, its limits of time, what its errors mean. Pure.

Every name in a statement is quoted, every value a parameter or a line of COPY's input.
"""

# ruff: noqa: S608 - see above
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

import pyarrow as pa

from sinks.spark.sql.columns import sql_type
from sinks.spark.sql.names import quoted

Verdict: TypeAlias = Literal["refused", "busy", "changed", "passing"]

CONNECT_SECONDS = 10
LOCK_SECONDS = 10
IDLE_SECONDS = 20
STATEMENT_SECONDS = 100
TRANSACTION_SECONDS = 120.0
"""The longest that a transaction may take: below Spark's own deadline, which ends the JVM."""

DRIVER_PROPERTIES = {
    "connectTimeout": str(CONNECT_SECONDS),
    "loginTimeout": str(2 * CONNECT_SECONDS),
    "socketTimeout": str(STATEMENT_SECONDS + 10),
    "tcpKeepAlive": "true",
    "prepareThreshold": "0",  # a pooler may give each transaction another server process
}

# In each transaction, so that it holds behind a pooler, too. A transaction whose client is
# frozen ends, and its locks with it; what the server has answered COMMIT to is on its disk.
BEGIN = f"""\
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT set_config('lock_timeout', '{LOCK_SECONDS}s', true),
       set_config('statement_timeout', '{STATEMENT_SECONDS}s', true),
       set_config('idle_in_transaction_session_timeout', '{IDLE_SECONDS}s', true),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                  WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"""

LINES_TABLE = "headrace_transactions"
SAVEPOINT = 'SAVEPOINT "headrace"'
RELEASE = 'RELEASE SAVEPOINT "headrace"'
BACK = f'ROLLBACK TO SAVEPOINT "headrace"; {RELEASE}'
CHECK_AT_ONCE = "SET CONSTRAINTS ALL IMMEDIATE"
ENCODING = "SHOW server_encoding"
REFUSED = """\
SELECT coalesce(json_agg(json_build_array("row" - 1, "said")), '[]')::text
FROM pg_temp."headrace_each" WHERE "said" IS NOT NULL"""
SCHEMA = "SELECT current_schema()"
# Two that create a table at once would both find that there is none.
LOCK_CREATION = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'headrace', 'big')})::text"

FACTS = """\
SELECT json_build_object(
    'schema', n.nspname,
    'name', c.relname,
    'kind', c.relkind,
    'persistence', c.relpersistence,
    'columns', (
        SELECT coalesce(json_agg(json_build_object(
                   'name', i.column_name,
                   'type', i.data_type,
                   'udt', i.udt_name,
                   'cast', (
                       WITH RECURSIVE base AS (
                           SELECT a.atttypid AS type FROM pg_attribute a
                           WHERE a.attrelid = c.oid AND a.attname = i.column_name
                           UNION ALL
                           SELECT d.typbasetype FROM pg_type d JOIN base ON d.oid = base.type
                           WHERE d.typtype = 'd')
                       SELECT format_type(t.oid, NULL) FROM base JOIN pg_type t
                           ON t.oid = base.type WHERE t.typtype <> 'd'),
                   'is_enum', EXISTS (SELECT FROM pg_type t JOIN pg_namespace s
                       ON s.oid = t.typnamespace WHERE t.typname = i.udt_name
                       AND s.nspname = i.udt_schema AND t.typtype = 'e'),
                   'is_domain', i.domain_name IS NOT NULL,
                   'length', i.character_maximum_length,
                   'precision', i.numeric_precision,
                   'scale', i.numeric_scale,
                   'fraction', i.datetime_precision,
                   'nullable', i.is_nullable = 'YES',
                   'filled', i.column_default IS NOT NULL OR i.is_identity = 'YES'
                             OR i.is_generated <> 'NEVER',
                   'generated', i.is_generated <> 'NEVER'
                                OR coalesce(i.identity_generation = 'ALWAYS', false)
               ) ORDER BY i.ordinal_position), '[]')
        FROM information_schema.columns i
        WHERE i.table_schema = n.nspname AND i.table_name = c.relname),
    'constraints', (
        SELECT coalesce(json_agg(k.conname ORDER BY k.conname), '[]')
        FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('c', 'f', 'x')),
    'triggers', (
        SELECT coalesce(json_agg(g.tgname ORDER BY g.tgname), '[]')
        FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D'),
    'indexes', (
        SELECT coalesce(json_agg(json_build_object(
                   'name', x.indexrelid::regclass::text,
                   'is_unique', x.indisunique,
                   'is_plain', x.indexprs IS NULL AND x.indpred IS NULL,
                   'is_immediate', x.indimmediate,
                   'is_valid', x.indisvalid,
                   'columns', (
                       SELECT coalesce(json_agg(a.attname ORDER BY u.place), '[]')
                       FROM unnest(x.indkey::int2[]) WITH ORDINALITY AS u(number, place)
                       JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = u.number
                       WHERE u.place <= x.indnkeyatts)
               )), '[]')
        FROM pg_index x WHERE x.indrelid = c.oid)
)::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(?::text)"""


# Classes of errors that no row brings about: locks and the server's state; connections, what they
# were prepared for, and the driver; the server's resources and its insides.
_PASSING = (
    "01", "02", "03", "07", "08", "0B", "0L", "0P", "24", "25", "26", "28", "2B", "2D", "34", "3B",
    "3D", "40", "53", "55", "57", "58", "72", "99", "F0", "HV", "XX",
)  # fmt: skip
_CHANGED = ("42", "3F", "0A")
_NOT_OF_ROWS = ", ".join(f"'{each}'" for each in (*_PASSING, *_CHANGED))


def verdict(state: str) -> Verdict:
    """What an error means by its SQLSTATE.

    `refused`: a row's values are not taken. `busy`: nothing was done, and it may come again.
    `changed`: the table, or our rights, are others than they were. `passing`: what no row brings
    about, such as a broken connection, after which it is not known whether a COMMIT was done.

    Refused is what is not known to be anything else: data, constraints, views, sizes, one row
    twice, what triggers raise, and they may raise any state.
    """
    if state in ("55P03", "57014", "40001", "40P01"):  # locks, limits of time, deadlocks
        return "busy"
    if state == "22P04":  # our own COPY is malformed
        return "changed"
    if state[:2] in _CHANGED:
        return "changed"
    return "passing" if state[:2] in _PASSING else "refused"


class Statements:
    """The statements of one sink on one table, of which the schema is known."""

    def __init__(
        self,
        schema: str,
        table: str,
        columns: Sequence[str],
        key: Sequence[str] = (),
        deleted: str | None = None,
        casts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`columns` are those of the rows, among them `key` and, if rows may say so, `deleted`.

        `casts` are the types of the table's columns, as they stand in SQL.
        """
        self.table = f"{quoted(schema)}.{quoted(table)}"
        self.lines_table = f"{quoted(schema)}.{quoted(LINES_TABLE)}"
        self._columns = list(columns)
        self._stored = [name for name in columns if name != deleted]
        self._key = list(key)
        self._deleted = deleted
        self._casts = casts
        # In the temporary table columns have names of ours: one more cannot meet a user's.
        self._ours = {name: f'"c{number}"' for number, name in enumerate(columns)}

    def create(self, schema: pa.Schema) -> str:
        """Create the table."""
        parts = [
            f"{quoted(field.name)} {sql_type(field.type)}{'' if field.nullable else ' NOT NULL'}"
            for field in schema
            if field.name in self._stored
        ]
        if self._key:
            parts.append(f"PRIMARY KEY ({_listed(self._key)})")
        return f"CREATE TABLE {self.table} ({', '.join(parts)})"

    def add_columns(self, fields: Sequence["pa.Field[pa.DataType]"]) -> str:
        """Add columns, which are null in the rows that are there."""
        parts = [
            f"ADD COLUMN IF NOT EXISTS {quoted(each.name)} {sql_type(each.type)}" for each in fields
        ]
        return f"ALTER TABLE {self.table} {', '.join(parts)}"

    @property
    def create_lines(self) -> str:
        """Create the table in which the lines stand, if there is none."""
        return f"""\
CREATE TABLE IF NOT EXISTS {self.lines_table} (
    "pipeline" text NOT NULL, "sink" text NOT NULL, "line" text NOT NULL,
    "epoch" bigint NOT NULL, "txid" bigint NOT NULL,
    "first" bigint NOT NULL, "end" bigint NOT NULL, "digest" text NOT NULL,
    "updated" timestamp with time zone NOT NULL DEFAULT now(),
    PRIMARY KEY ("pipeline", "sink", "line"))"""

    @property
    def copy(self) -> str:
        """Append rows to the table; its input is what `copy_text.encode` makes."""
        return f"COPY {self.table} ({_listed(self._stored)}) FROM STDIN"

    # By key

    @property
    def make_temporary(self) -> str:
        """Make the table that rows with a key go through; it ends with the transaction."""
        columns = [
            f"false AS {ours}" if name == self._deleted else f"t.{quoted(name)} AS {ours}"
            for name, ours in self._ours.items()
        ]
        return (
            'CREATE TEMPORARY TABLE "headrace_rows" ON COMMIT DROP AS '
            f'SELECT 0::bigint AS "row", {", ".join(columns)} FROM {self.table} AS t WITH NO DATA'
        )

    @property
    def copy_temporary(self) -> str:
        """Send rows there; the first column of the input numbers them."""
        return f'COPY pg_temp."headrace_rows" ("row", {", ".join(self._ours.values())}) FROM STDIN'

    @property
    def delete(self) -> str | None:
        """Delete the rows whose key is there as deleted; None: none ever is."""
        if self._deleted is None:
            return None
        same = " AND ".join(f"t.{quoted(name)} = r.{self._ours[name]}" for name in self._key)
        return (
            f"DELETE FROM {self.table} AS t USING ({self._last_rows}) AS r "
            f"WHERE {same} AND r.{self._ours[self._deleted]}"
        )

    @property
    def upsert(self) -> str:
        """Insert the rows that are not deleted, or replace those of their keys."""
        ours = ", ".join(f"r.{self._ours[name]}" for name in self._stored)
        gone = "" if self._deleted is None else f" WHERE r.{self._ours[self._deleted]} IS NOT TRUE"
        return (
            f"INSERT INTO {self.table} ({_listed(self._stored)}) SELECT {ours} "
            f"FROM ({self._last_rows}) AS r{gone} {self._on_conflict}"
        )

    @property
    def _on_conflict(self) -> str:
        changed = [
            f"{quoted(name)} = excluded.{quoted(name)}"
            for name in self._stored
            if name not in self._key
        ]
        action = f"UPDATE SET {', '.join(changed)}" if changed else "NOTHING"
        return f"ON CONFLICT ({_listed(self._key)}) DO {action}"

    @property
    def _last_rows(self) -> str:
        """The last row of each key; in the order of the keys, so that two do not deadlock."""
        key = ", ".join(self._ours[name] for name in self._key)
        return (
            f'SELECT DISTINCT ON ({key}) * FROM pg_temp."headrace_rows" ORDER BY {key}, "row" DESC'
        )

    # One by one

    @property
    def make_each(self) -> str:
        """Make the table for rows that are put in place one by one, as texts."""
        number = '"number" text, ' if self._key else ""
        columns = ", ".join(f"{ours} text" for ours in self._ours.values())
        return (
            'CREATE TEMPORARY TABLE "headrace_each" ("row" bigint GENERATED ALWAYS AS IDENTITY '
            f'PRIMARY KEY, {number}{columns}, "said" text) ON COMMIT DROP'
        )

    @property
    def copy_each(self) -> str:
        """Send rows there; its input is that of `copy`, or by key of `copy_temporary`."""
        names = ['"number"'] * bool(self._key) + list(self._ours.values())
        return f'COPY pg_temp."headrace_each" ({", ".join(names)}) FROM STDIN'

    @property
    def put_each(self) -> str:
        """Put each row in place, in its order; `REFUSED` then tells which were not taken, and why.

        On the server: an error that comes to us by way of the JVM costs several milliseconds.
        """
        values = ", ".join(self._value(name) for name in self._stored)
        put = f"INSERT INTO {self.table} ({_listed(self._stored)}) VALUES ({values})"
        if self._key:
            put += f" {self._on_conflict}"
        put += ";"
        if self._deleted is not None:
            same = " AND ".join(f"t.{quoted(name)} = {self._value(name)}" for name in self._key)
            put = (
                f"IF r.{self._ours[self._deleted]}::boolean THEN "
                f"DELETE FROM {self.table} AS t WHERE {same}; ELSE {put} END IF;"
            )
        body = f"""\
DECLARE r record; found text;
BEGIN
    FOR r IN SELECT * FROM pg_temp."headrace_each" ORDER BY "row" LOOP
        BEGIN
            {put}
        EXCEPTION WHEN plpgsql_error OR OTHERS THEN
            IF left(SQLSTATE, 2) IN ({_NOT_OF_ROWS}) THEN
                RAISE;
            END IF;
            GET STACKED DIAGNOSTICS found = PG_EXCEPTION_DETAIL;
            UPDATE pg_temp."headrace_each" SET "said" = SQLERRM || ' ' || found
            WHERE "row" = r."row";
        END;
    END LOOP;
END"""
        quote = "$headrace$"
        while quote in body:  # a name may have anything in it
            quote = f"$x{quote[1:]}"
        return f"DO {quote}{body}{quote}"

    def _value(self, name: str) -> str:
        return f"r.{self._ours[name]}::{self._casts[name]}"

    # Lines; the parameters are pipeline, sink, and JSON

    def lines(self, *, locked: bool) -> str:
        """What stands at lines, given as a list of names: rows of line, epoch and txid as JSON.

        Locked in one order, whoever asks. What waits for a lock sees what its holder left.
        """
        lock = " FOR UPDATE OF s" if locked else ""
        return f"""\
SELECT coalesce(json_agg(json_build_array(f."line", f."epoch", f."txid")), '[]')::text FROM (
    SELECT s."line", s."epoch", s."txid" FROM {self.lines_table} AS s
    WHERE s."pipeline" = ? AND s."sink" = ?
      AND s."line" IN (SELECT json_array_elements_text(?::json))
    ORDER BY s."line" COLLATE "C"{lock}) AS f"""

    @property
    def begin_lines(self) -> str:
        """Let lines begin, given as a list of names, that nobody has begun."""
        return f"""\
INSERT INTO {self.lines_table}
    ("pipeline", "sink", "line", "epoch", "txid", "first", "end", "digest")
SELECT ?, ?, l.line, 0, 0, 0, 0, '' FROM json_array_elements_text(?::json) AS l(line)
ORDER BY l.line COLLATE "C" ON CONFLICT DO NOTHING"""

    @property
    def raise_epochs(self) -> str:
        """Set epochs, given as a list of lines and epochs (JSON first)."""
        return f"""\
UPDATE {self.lines_table} AS s SET "epoch" = n."epoch", "updated" = now()
FROM json_to_recordset(?::json) AS n("line" text, "epoch" bigint)
WHERE s."pipeline" = ? AND s."sink" = ? AND s."line" = n."line\""""

    @property
    def move_lines(self) -> str:
        """Set lines to the shares that are given (JSON first)."""
        return f"""\
UPDATE {self.lines_table} AS s
SET "epoch" = n."epoch", "txid" = n."txid", "first" = n."first", "end" = n."end",
    "digest" = n."digest", "updated" = now()
FROM json_to_recordset(?::json) AS n("line" text, "epoch" bigint, "txid" bigint,
    "first" bigint, "end" bigint, "digest" text)
WHERE s."pipeline" = ? AND s."sink" = ? AND s."line" = n."line\""""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
