"""One table in its database: connections, transactions, errors, and the committed txids.

Every name in a statement is quoted, every value a parameter.
"""

# ruff: noqa: S608 - see above
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sinks.keyed_rows import KeyedRows
from sinks.names import OnNewColumns
from sinks.postgres import catalogue as c
from sinks.postgres.text import Lines, data_of
from sinks.shares import check_fences, is_to_commit
from topology.errors import InvalidTopology, SinkBusy, SinkError, SinkFailed, missing_extra
from topology.masking import mask, secrets_in
from topology.sink import Committed, Fence, Share, SinkContext

if TYPE_CHECKING:
    import psycopg

Connection: TypeAlias = "psycopg.Connection[Any]"
Result = TypeVar("Result")

TRANSACTION_SECONDS = 120.0
_CONNECT_SECONDS = 10
_BUSY_SECONDS = 0.5

# Set in each transaction, so that it holds behind a pooler. A transaction whose client is frozen
# ends and releases its locks; an answered COMMIT is on the server's disk.
BEGIN = """\
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT set_config('lock_timeout', '10s', true), set_config('statement_timeout', '100s', true),
       set_config('idle_in_transaction_session_timeout', '20s', true),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                  WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"""
_CONNINFO = "expected postgresql://user@host:port/database, or 'host=… dbname=…'"
_CHECK_AT_ONCE = "SET CONSTRAINTS ALL IMMEDIATE"
# Serialises creation: two processes would both find no table.
_LOCK_CREATION = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'headrace', 'big')})"

# Error classes that no row causes: locks, the server's state, connections, resources, internals.
_TEMPORARY = (
    "01", "02", "03", "07", "08", "0B", "0L", "0P", "24", "25", "26", "28", "2B", "2D", "34", "3B",
    "3D", "40", "53", "55", "57", "58", "72", "99", "F0", "HV", "XX",
)  # fmt: skip
_CHANGED = ("42", "3F", "0A")  # the table, or our rights, changed
_BUSY = ("55P03", "57014", "40001", "40P01")  # locks, timeouts, deadlocks
_OUR_COPY_IS_MALFORMED = "22P04"


class RowsRefused(SinkFailed):
    """The database rejected rows that it was not asked about when they were staged."""

    def __init__(self, said: str) -> None:
        super().__init__(f"{said}; after a restart they are found and rejected alone")


class _Altered(SinkError):
    """The table or its columns changed since they were examined."""


class Database:
    """The table that a sink writes, and its transactions.

    Any thread may use it. A connection is reused until an error, which leaves it in an unknown
    state; each new connection examines the table. Raises SinkBusy, SinkFailed and RowsRefused; a
    psycopg.Error is temporary and leaves the outcome of COMMIT unknown.
    """

    def __init__(self, what: str, conninfo: str, table: str, **given: str | None) -> None:
        """Store only; `given` overrides `conninfo`.

        Raises InvalidTopology for a JDBC URL, InvalidSchema for the table's name.
        """
        if conninfo.startswith("jdbc:"):
            raise InvalidTopology(f"{what}: found a JDBC URL, {_CONNINFO}")
        self.table = table
        self.where = f"table '{table}'"
        self.table_info: c.TableInfo | None = None
        self.rows: KeyedRows
        self.statements: c.Statements
        self._name = c.table_name(table)
        self._given: dict[str, Any] = {"conninfo": conninfo, **given}
        self._on_new_columns: OnNewColumns | None = None  # None: the user cannot choose
        self._has_lines = False
        self._owner = ("", "")
        self._conninfo = ""  # until it is open
        self._idle: list[Connection] = []
        self._busy: list[Connection] = []

    def open(
        self, context: SinkContext, rows: KeyedRows, on_new_columns: OnNewColumns | None = None
    ) -> None:
        """Connect, create what is missing, and examine the table. Raises SinkFailed."""
        if wrong := [field for field in rows.stored if c.sql_type(field.type) is None]:
            found = f"column '{wrong[0].name}': found {wrong[0].type}"
            raise SinkFailed(f"{self.where}: {found}, which PostgreSQL has not")
        self._owner, self._has_lines = (context.pipeline, context.sink), context.exactly_once
        self.rows, self.table_info, self._on_new_columns = rows, None, on_new_columns
        self._conninfo = self._reached(context)
        try:
            self.run(lambda _connection: None)
        except SinkFailed:
            raise
        except Exception as error:
            raise SinkFailed(f"{self.where}: {mask(_said(error))}") from error

    def run(self, step: Callable[[Connection], Result]) -> Result:
        """Run a step in a transaction and commit; the step may roll it back itself."""
        if not self._conninfo:
            raise SinkFailed(f"{self.where} is not open")
        connection = None
        with contextlib.suppress(IndexError):
            connection = self._idle.pop()
        try:
            if connection is None:
                connection = _connect(self._conninfo)
                self._transaction(connection, self.examine)
            try:
                result = self._transaction(connection, step)
            except _Altered:
                self._transaction(connection, self.examine)
                result = self._transaction(connection, step)
        except BaseException as error:
            if connection is not None:
                connection.close()
            self._raise_contract_error(error)
            raise
        self._idle.append(connection)
        if not self._conninfo:  # it was closed meanwhile
            self.close()
        return result

    def read(
        self, context: SinkContext, step: Callable[[Connection, c.TableInfo | None], Result]
    ) -> Result:
        """Run a step on a table that may be missing, over its own connection."""
        try:
            with _connect(self._reached(context)) as connection:
                return self._transaction(connection, lambda each: step(each, self._find(each)))
        except Exception as error:
            self._raise_contract_error(error)
            raise

    def close(self) -> None:
        """Close the connections; whoever uses one gets an error."""
        self._conninfo = ""
        for connection in list(self._busy):
            _cut_off(connection)
        while self._idle:
            self._idle.pop().close()

    def _reached(self, context: SinkContext) -> str:
        """Return the whole conninfo. Raises SinkFailed, without a secret."""
        mask.add(filter(None, [self._given.get("password"), os.environ.get("PGPASSWORD")]))
        try:
            import psycopg  # noqa: PLC0415 - see sinks/__init__
            from psycopg.conninfo import conninfo_to_dict, make_conninfo  # noqa: PLC0415
        except ImportError as error:
            needs = missing_extra(f"{self.where} needs psycopg", "postgres")
            raise SinkFailed(f"{needs} ({error})") from error
        try:
            known = {key: str(value) for key, value in conninfo_to_dict(**self._given).items()}
        except psycopg.Error:  # its text may contain any part of the conninfo
            raise SinkFailed(f"{self.where}: its conninfo cannot be read, {_CONNINFO}") from None
        mask.add(secrets_in(known))
        shown = {key: known[key] for key in ("host", "port", "dbname") if key in known}
        server = make_conninfo("", **shown) or "libpq's default server"
        self.where = f"table '{self.table}' at {server}"
        name = f"headrace {context.pipeline}/{context.sink}"
        ours = {"application_name": name, "connect_timeout": str(_CONNECT_SECONDS)}
        return make_conninfo("", **{**ours, **known, "client_encoding": "UTF8"})

    def _transaction(self, connection: Connection, step: Callable[[Connection], Result]) -> Result:
        """Run a step in a transaction; cut the connection if it takes too long.

        The server's limits end statements, but no wait for a server that does not answer.
        """
        watch = threading.Timer(TRANSACTION_SECONDS, _cut_off, [connection])
        watch.name, watch.daemon = "postgres-limit", True
        watch.start()
        self._busy.append(connection)
        try:
            connection.execute(BEGIN)
            try:
                result = step(connection)
            except SinkError:
                connection.rollback()
                raise
            connection.commit()
            return result
        finally:
            self._busy.remove(connection)
            watch.cancel()

    def _raise_contract_error(self, error: BaseException) -> None:
        """Raise the contract's error for an error; return if it is one, or temporary."""
        means = verdict(error)
        said = f"table '{self.table}': {_said(error)}"
        if means == "busy":
            raise SinkBusy(_BUSY_SECONDS, said) from error
        if means != "temporary":
            raise (RowsRefused if means == "refused" else SinkFailed)(said) from error

    # The table itself

    @property
    def examined(self) -> c.TableInfo:
        if self.table_info is None:
            raise SinkFailed(f"{self.where} is not open")
        return self.table_info

    def examine(self, connection: Connection) -> None:
        """Read the table's definition; the first time, create what is missing.

        Raises SinkFailed when it cannot be written, or is not the table that has the rows.
        """
        is_first = self.table_info is None
        info = self._find(connection)
        if is_first and self._lacks(connection, info):
            connection.execute(_LOCK_CREATION)
            self._create(connection, self._find(connection))  # another process may have been faster
            info = self._find(connection)
        if info is None or self._lacks(connection, info):
            gone = (
                "is not in the search path" if is_first else "was removed while rows were written"
            )
            raise SinkFailed(f"{self.where}: it, or its headrace_transactions, {gone}")
        if wrong := list(info.problems(self.rows, may_grow=self._on_new_columns is not None)):
            raise SinkFailed(f"{self.where}: {'; '.join(wrong)}")
        self._check_identity(connection, info.schema, info.oid)
        if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
            raise SinkFailed(f"{self.where}: found encoding {encoding}, expected UTF8")
        self.table_info, self.statements = info, c.Statements(info, self.rows)

    def _find(self, connection: Connection) -> c.TableInfo | None:
        found = connection.execute(c.TABLE, [c.quoted(*self._name)]).fetchone()
        if found is None:
            return None
        oid = [int(found[0].partition(" ")[0])]
        columns = [c.Column(*row) for row in connection.execute(c.COLUMNS, oid)]
        indexes = [c.Index(*row) for row in connection.execute(c.INDEXES, oid)]
        return c.TableInfo(columns, indexes, *found)

    def _lacks(self, connection: Connection, info: c.TableInfo | None) -> bool:
        if info is None or (self._on_new_columns == "add" and info.new_columns(self.rows)):
            return True
        return self._has_lines and not _has_identities(connection, info.schema)

    def _create(self, connection: Connection, info: c.TableInfo | None) -> None:
        """Create what is missing: the table, new columns, headrace_transactions.

        Its column `table` is a regclass, which follows a renaming, and which a dump stores by name.
        """
        if info is None:
            schema = self._name[0] or _cell(connection, "SELECT current_schema()")
            if schema is None:
                raise SinkFailed(f"{self.where}: no schema of the search path exists; name one")
            self._check_identity(connection, schema, 0)
            parts = [c.definition(field) for field in self.rows.stored]
            if self.rows.key:
                parts.append(f"PRIMARY KEY ({c.listed(self.rows.key)})")
            table = c.quoted(schema, self._name[1])
            connection.execute(f"CREATE TABLE {table} ({', '.join(parts)})")
        else:
            schema, table = info.schema, c.quoted(info.schema, info.name)
            for field in info.new_columns(self.rows) if self._on_new_columns == "add" else ():
                column = c.definition(field.with_nullable(nullable=True))
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
        if self._has_lines:
            connection.execute(f"""\
CREATE TABLE IF NOT EXISTS {_lines_in(schema)} (
    "pipeline" text NOT NULL, "sink" text NOT NULL, "line" text NOT NULL,
    "epoch" bigint NOT NULL, "txid" bigint NOT NULL,
    "first" bigint NOT NULL, "end" bigint NOT NULL, "digest" text NOT NULL,
    "updated" timestamp with time zone NOT NULL DEFAULT now(), "table" regclass,
    PRIMARY KEY ("pipeline", "sink", "line"));
ALTER TABLE {_lines_in(schema)} ADD COLUMN IF NOT EXISTS "table" regclass""")

    def _check_identity(self, connection: Connection, schema: str, oid: int) -> None:
        if not self._has_lines or not _has_identities(connection, schema):
            return
        other = f"""\
SELECT coalesce(nullif("table"::text, "table"::oid::text), 'a table that was dropped')
FROM {_lines_in(schema)} WHERE "pipeline" = $1 AND "sink" = $2 AND "txid" > 0
AND coalesce("table"::oid <> $3::oid, $3::oid = 0)"""
        if (found := _cell(connection, other, *self._owner, oid)) is not None:
            has = "is another one" if oid else "is missing"
            raise SinkFailed(
                f"{self.where}: it {has}, and sink '{self._owner[1]}' has committed rows to "
                f"{found}. Restore that table; or, to start over, delete the sink's rows from "
                f"{_lines_in(schema)}"
            )

    # Rows

    def commit(
        self,
        shares: Sequence[Share],
        rows: Callable[[Connection], Lines],
        *,
        one_by_one: bool = False,
    ) -> dict[int, str]:
        """Write the rows that `rows` returns, and set the shares' txids, in one transaction.

        The lines are locked after the rows were sent, so a slow or frozen sender blocks nobody.
        Without shares, one by one, return the reasons of rejected rows by index.
        """

        def is_due(connection: Connection, *, locked: bool) -> bool:
            names = [share.line for share in shares]
            found = self.found(connection, names, locked=locked) if shares else []
            return is_to_commit(shares, found)

        def commit(connection: Connection) -> dict[int, str]:
            if not is_due(connection, locked=False):
                return {}  # fenced and committed lines stay so
            lines = rows(connection)
            if len(lines):
                self._send(connection, lines, one_by_one=one_by_one)
            if not is_due(connection, locked=True):
                connection.rollback()
                return {}
            refused = self._merge(connection, one_by_one=one_by_one) if len(lines) else {}
            if shares and refused:
                raise RowsRefused(f"table '{self.table}': {next(iter(refused.values()))}")
            if shares:
                self._move(connection, shares)
            return refused

        return self.run(commit)

    def refused(self, lines: Lines) -> dict[int, str] | None:
        """Insert rows and roll back; return the rejected ones, None if all are accepted at once."""

        def attempt(connection: Connection) -> dict[int, str] | None:
            connection.execute(f'{_CHECK_AT_ONCE}; SAVEPOINT "headrace"')
            refused = None
            try:
                self._send(connection, lines)
                self._merge(connection)
            except Exception as error:
                if verdict(error) != "refused":
                    raise
                connection.execute('ROLLBACK TO SAVEPOINT "headrace"')
                self._send(connection, lines, one_by_one=True)
                refused = self._merge(connection, one_by_one=True)
            connection.rollback()
            return refused

        return self.run(attempt)

    def _send(self, connection: Connection, lines: Lines, *, one_by_one: bool = False) -> None:
        sql = self.statements.copy
        if self.rows.key or one_by_one:
            connection.execute(self.statements.make_temporary)
            sql = self.statements.copy_temporary
        with connection.cursor().copy(sql) as copy:
            copy.write(data_of(lines))

    def _merge(self, connection: Connection, *, one_by_one: bool = False) -> dict[int, str]:
        """Merge the temporary table; one by one, return the reasons of rejected rows by index.

        One by one checks deferred constraints at once, too.
        """
        refused: dict[int, str] = {}
        if one_by_one:
            connection.execute(_CHECK_AT_ONCE)
            connection.execute(self.statements.merge_each([*_TEMPORARY, *_CHANGED]))
            refused = dict(connection.execute(c.REFUSED))
        elif self.rows.key:
            connection.execute(self.statements.merge)
        if _cell(connection, c.SHAPE, c.quoted(*self._name)) != self.examined.shape:
            raise _Altered
        return refused

    # Lines

    def found(self, connection: Connection, lines: list[str], *, locked: bool) -> list[Committed]:
        """Return what is committed of each line; if locked, until the transaction ends.

        A writer holds a line's lock until its transaction has ended, also when its client is gone
        or its connection broke during COMMIT. So who gets the lock knows that no older
        transaction is open. Every process locks in the same order.
        """
        query = f"""\
SELECT "line", "epoch", "txid" FROM {_lines_in(self.examined.schema)}
WHERE "pipeline" = $1 AND "sink" = $2 AND "line" = ANY($3)
ORDER BY "line" COLLATE "C"{" FOR UPDATE" if locked else ""}"""
        rows = connection.execute(query, [*self._owner, lines])
        found = {line: (epoch, txid) for line, epoch, txid in rows}
        return [Committed(line, *found.get(line, (0, 0))) for line in lines]

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read the lines once no transaction is about to change them; see `found`."""
        return self.run(lambda connection: self.found(connection, list(lines), locked=True))

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        lines, epochs = [fence.line for fence in fences], [fence.epoch for fence in fences]

        def fence(connection: Connection) -> list[Committed]:
            raise_epochs = f"""\
INSERT INTO {_lines_in(self.examined.schema)} AS s
    ("pipeline", "sink", "line", "epoch", "txid", "first", "end", "digest", "table")
SELECT $1, $2, n.line, n.epoch, 0, 0, 0, '', $5::oid::regclass
FROM unnest($3::text[], $4::bigint[]) AS n(line, epoch) ORDER BY n.line COLLATE "C"
ON CONFLICT ("pipeline", "sink", "line") DO UPDATE
SET "epoch" = excluded."epoch", "table" = excluded."table", "updated" = now()
WHERE s."epoch" < excluded."epoch\""""
            connection.execute(raise_epochs, [*self._owner, lines, epochs, self.examined.oid])
            found = self.found(connection, lines, locked=True)
            check_fences(fences, found)
            return found

        return self.run(fence)

    def _move(self, connection: Connection, shares: Sequence[Share]) -> None:
        fields = ("line", "epoch", "txid", "first", "end", "digest")
        columns = [[getattr(share, field) for share in shares] for field in fields]
        move = f"""\
UPDATE {_lines_in(self.examined.schema)} AS s SET "epoch" = n.epoch, "txid" = n.txid,
    "first" = n.first_offset, "end" = n.end_offset, "digest" = n.digest, "updated" = now()
FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[])
    AS n(line, epoch, txid, first_offset, end_offset, digest)
WHERE "pipeline" = $1 AND "sink" = $2 AND s."line" = n.line"""
        if connection.execute(move, [*self._owner, *columns]).rowcount != len(shares):
            raise SinkFailed("headrace_transactions lacks the row of a line to commit")


def verdict(error: BaseException) -> str:
    """Classify an error as `refused`, `busy`, `changed` (the table) or `temporary`.

    Every unknown state counts as refused rows: triggers may raise any.
    """
    state = getattr(error, "sqlstate", None)
    if state is None:  # raised by the client; a DataError by a value from the server
        return "changed" if type(error).__name__ == "DataError" else "temporary"
    if state in _BUSY:
        return "busy"
    if state == _OUR_COPY_IS_MALFORMED or state[:2] in _CHANGED:
        return "changed"
    return "temporary" if state[:2] in _TEMPORARY else "refused"


def _said(error: BaseException) -> str:
    """Return the first line and SQLSTATE; other lines may contain values of rows."""
    first = next(iter(str(error).splitlines()), type(error).__name__)
    state = getattr(error, "sqlstate", None)
    return first if state is None else f"{first} (SQLSTATE {state})"


def _connect(conninfo: str) -> Connection:
    import psycopg  # noqa: PLC0415 - see sinks/__init__

    connection = psycopg.connect(
        conninfo,
        autocommit=True,  # each transaction has a BEGIN of ours
        prepare_threshold=None,  # a pooler may give each another server process
        cursor_factory=psycopg.RawCursor,
    )
    connection.server_cursor_factory = psycopg.RawServerCursor
    return connection


def _cut_off(connection: Connection) -> None:
    """End a connection for the thread that waits on it; any thread may call this."""
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as raw:
        raw.shutdown(socket.SHUT_RDWR)


def _lines_in(schema: str) -> str:
    return c.quoted(schema, "headrace_transactions")


def _has_identities(connection: Connection, schema: str) -> bool:
    query = "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = $2"
    return bool(_cell(connection, query, _lines_in(schema), "table"))


def _cell(connection: Connection, sql: str, *parameters: Any) -> Any:
    row = connection.execute(sql, parameters).fetchone()
    return None if row is None else row[0]
