"""One table in its database: connections, transactions, and what their errors mean.

Every name in a statement is quoted, every value a parameter.
"""

# ruff: noqa: S608 - see above
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sinks.postgres import table as t
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

# In each transaction, so that it holds behind a pooler, too. A transaction whose client is
# frozen ends, and its locks with it; what the server has answered COMMIT to is on its disk.
BEGIN = """\
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT set_config('lock_timeout', '10s', true), set_config('statement_timeout', '100s', true),
       set_config('idle_in_transaction_session_timeout', '20s', true),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                  WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"""
_CONNINFO = "allowed is postgresql://user@host:port/database, or 'host=… dbname=…'"
_CHECK_AT_ONCE = "SET CONSTRAINTS ALL IMMEDIATE"
# Two that create a table at once would both find that there is none.
_LOCK_CREATION = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'headrace', 'big')})"

# Classes of errors that no row brings about: locks and the server's state; connections and what
# they were prepared for; the server's resources and its insides.
_PASSING = (
    "01", "02", "03", "07", "08", "0B", "0L", "0P", "24", "25", "26", "28", "2B", "2D", "34", "3B",
    "3D", "40", "53", "55", "57", "58", "72", "99", "F0", "HV", "XX",
)  # fmt: skip
_CHANGED = ("42", "3F", "0A")  # the table, or our rights, are others than they were
_BUSY = ("55P03", "57014", "40001", "40P01")  # locks, limits of time, deadlocks
_OUR_COPY_IS_MALFORMED = "22P04"


class RowsRefused(SinkFailed):
    """The database refuses rows of which this was not known when they were staged."""

    def __init__(self, said: str) -> None:
        super().__init__(f"{said}; after a restart they are found and rejected alone")


class _Altered(SinkError):
    """The table, or a column of it, is another one than when it was examined."""


class Database:
    """The table that a sink writes, and the transactions that do it.

    Any thread may use it, over a connection that is kept for the next use. After any error it is
    closed, since nobody knows what state it is in; and the table is examined over each new one.
    What goes wrong is raised as the contract of sinks has it: SinkBusy, SinkFailed and its
    RowsRefused; a psycopg.Error may pass, and leaves it unknown whether COMMIT was done.
    """

    def __init__(self, what: str, conninfo: str, table: str, **given: str | None) -> None:
        """Only stores; `what` was given it, and `given` counts more than `conninfo`.

        Raises InvalidTopology for a JDBC URL, InvalidSchema for the table's name.
        """
        if conninfo.startswith("jdbc:"):
            raise InvalidTopology(f"{what}: found a URL of JDBC's; {_CONNINFO}")
        self.table = table
        self.where = f"table '{table}'"
        self.facts: t.Facts | None = None
        self.wanted: t.Wanted
        self.statements: t.Statements
        self._name = t.table_name(table)
        self._given: dict[str, Any] = {"conninfo": conninfo, **given}
        self._adds = self._has_lines = False
        self._owner = ("", "")
        self._conninfo = ""  # until it is open
        self._idle: list[Connection] = []
        self._busy: list[Connection] = []

    def open(self, context: SinkContext, wanted: t.Wanted, *, adds: bool = False) -> None:
        """Connect, make what is missing, and examine the table. Raises SinkFailed."""
        if wrong := [field for field in wanted.stored if t.sql_type(field.type) is None]:
            found = f"column '{wrong[0].name}': found {wrong[0].type}"
            raise SinkFailed(f"{self.where}: {found}; PostgreSQL has no such type")
        self._owner, self._has_lines = (context.pipeline, context.sink), context.exactly_once
        self.wanted, self.facts, self._adds = wanted, None, adds
        self._conninfo = self._reached(context)
        try:
            self.run(lambda _connection: None)
        except SinkFailed:
            raise
        except Exception as error:
            raise SinkFailed(f"{self.where}: {mask(_said(error))}") from error

    def run(self, step: Callable[[Connection], Result]) -> Result:
        """Run a step in a transaction, and commit it; a step may roll it back itself."""
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
            self._tell(error)
            raise
        self._idle.append(connection)
        if not self._conninfo:  # it was closed meanwhile
            self.close()
        return result

    def read(
        self, context: SinkContext, step: Callable[[Connection, t.Facts | None], Result]
    ) -> Result:
        """Run a step on a table that may not be there, over a connection of its own."""
        try:
            with _connect(self._reached(context)) as connection:
                return self._transaction(connection, lambda each: step(each, self._find(each)))
        except Exception as error:
            self._tell(error)
            raise

    def close(self) -> None:
        """Let go of the connections; one that is in use is broken off, and its user finds out."""
        self._conninfo = ""
        for connection in list(self._busy):
            _cut_off(connection)
        while self._idle:
            self._idle.pop().close()

    def _reached(self, context: SinkContext) -> str:
        """The whole conninfo. Raises SinkFailed, without a secret."""
        mask.add(filter(None, [self._given.get("password"), os.environ.get("PGPASSWORD")]))
        try:
            import psycopg  # noqa: PLC0415 - see sinks/__init__
            from psycopg.conninfo import conninfo_to_dict, make_conninfo  # noqa: PLC0415
        except ImportError as error:
            needs = missing_extra(f"{self.where} needs psycopg", "postgres")
            raise SinkFailed(f"{needs} ({error})") from error
        try:
            known = {key: str(value) for key, value in conninfo_to_dict(**self._given).items()}
        except psycopg.Error:  # whose text may have any part of it
            raise SinkFailed(f"{self.where}: its conninfo cannot be read; {_CONNINFO}") from None
        mask.add(secrets_in(known))
        shown = {key: known[key] for key in ("host", "port", "dbname") if key in known}
        server = make_conninfo("", **shown) or "libpq's default server"
        self.where = f"table '{self.table}' at {server}"
        name = f"headrace {context.pipeline}/{context.sink}"
        ours = {"application_name": name, "connect_timeout": str(_CONNECT_SECONDS)}
        return make_conninfo("", **{**ours, **known, "client_encoding": "UTF8"})

    def _transaction(self, connection: Connection, step: Callable[[Connection], Result]) -> Result:
        """Run a step in a transaction; one that takes too long loses its connection.

        The server's own limits end statements; but none ends a wait for one that stands still.
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

    def _tell(self, error: BaseException) -> None:
        """Raise what the contract has for an error; nothing, if it may pass or is that already."""
        means = verdict(error)
        said = f"table '{self.table}': {_said(error)}"
        if means == "busy":
            raise SinkBusy(_BUSY_SECONDS, said) from error
        if means != "passing":
            raise (RowsRefused if means == "refused" else SinkFailed)(said) from error

    # The table itself

    @property
    def examined(self) -> t.Facts:
        """The table as it was examined last."""
        if self.facts is None:
            raise SinkFailed(f"{self.where} is not open")
        return self.facts

    def examine(self, connection: Connection) -> None:
        """Look at the table; the first time, make what is missing of it.

        Raises SinkFailed when it cannot be written, or is not the one that has the rows.
        """
        makes = self.facts is None
        facts = self._find(connection)
        if makes and self._lacks(connection, facts):
            connection.execute(_LOCK_CREATION)
            self._make(connection, self._find(connection))  # someone may have been quicker
            facts = self._find(connection)
        if facts is None or self._lacks(connection, facts):
            gone = "is not in the search path" if makes else "was removed while rows were written"
            raise SinkFailed(f"{self.where}: it, or its headrace_transactions, {gone}")
        if wrong := list(facts.complaints(self.wanted)):
            raise SinkFailed(f"{self.where}: {'; '.join(wrong)}")
        self._check_identity(connection, facts.schema, facts.oid)
        if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
            raise SinkFailed(f"{self.where}: the database's encoding is {encoding}; needed is UTF8")
        self.facts, self.statements = facts, t.Statements(facts, self.wanted)

    def _find(self, connection: Connection) -> t.Facts | None:
        """Read the table from the catalogue; None: it is not there."""
        found = connection.execute(t.TABLE, [t.quoted(*self._name)]).fetchone()
        if found is None:
            return None
        columns = [t.Column(*row) for row in connection.execute(t.COLUMNS, found[:1])]
        indexes = [t.Index(*row) for row in connection.execute(t.INDEXES, found[:1])]
        return t.Facts(columns, indexes, *found)

    def _lacks(self, connection: Connection, facts: t.Facts | None) -> bool:
        """Whether the table, a column of it, or the table of the lines is missing."""
        if facts is None or (self._adds and facts.new_columns(self.wanted)):
            return True
        return self._has_lines and not _has_identities(connection, facts.schema)

    def _make(self, connection: Connection, facts: t.Facts | None) -> None:
        """Make what is missing: the table, new columns, the table of the lines.

        There, `table` is the one that has the rows. A regclass follows a renaming, and a dump has
        it as a name, so a restored one is the restored table.
        """
        if facts is None:
            schema = self._name[0] or _cell(connection, "SELECT current_schema()")
            if schema is None:
                raise SinkFailed(f"{self.where}: no schema of the search path exists; name one")
            self._check_identity(connection, schema, 0)
            parts = [t.definition(field) for field in self.wanted.stored]
            if self.wanted.key:
                parts.append(f"PRIMARY KEY ({t.listed(self.wanted.key)})")
            table = t.quoted(schema, self._name[1])
            connection.execute(f"CREATE TABLE {table} ({', '.join(parts)})")
        else:
            schema, table = facts.schema, t.quoted(facts.schema, facts.name)
            for field in facts.new_columns(self.wanted) if self._adds else ():
                column = t.definition(field.with_nullable(nullable=True))
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
        """Raise SinkFailed if the sink has committed to another table; oid 0: there is none."""
        if not self._has_lines or not _has_identities(connection, schema):
            return
        other = f"""\
SELECT coalesce(nullif("table"::text, "table"::oid::text), 'a table that was dropped')
FROM {_lines_in(schema)} WHERE "pipeline" = $1 AND "sink" = $2 AND "txid" > 0
AND coalesce("table"::oid <> $3::oid, $3::oid = 0)"""
        if (found := _cell(connection, other, *self._owner, oid)) is not None:
            has = "is another one" if oid else "is not there"
            raise SinkFailed(
                f"{self.where}: it {has}, and sink '{self._owner[1]}' has committed rows to "
                f"{found}. Put that table back; or, to begin anew, delete the sink's rows of "
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
        """Write what `rows` returns, and move the shares' lines, in one transaction.

        The lines are locked after the rows were sent. So who is frozen, or slow, while sending
        holds up nobody; and who holds the locks needs nothing more of its client but a word.
        Without shares, one by one, says which rows were refused, by index.
        """

        def is_due(connection: Connection, *, locked: bool) -> bool:
            names = [share.line for share in shares]
            found = self.found(connection, names, locked=locked) if shares else []
            return is_to_commit(shares, found)

        def commit(connection: Connection) -> dict[int, str]:
            if not is_due(connection, locked=False):
                return {}  # what is fenced or committed stays so
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
        """Put rows into the table, and take them back; None: it takes them all, at once."""

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
        """Send rows, and hold up nobody who writes others: into the table, or a temporary one."""
        sql = self.statements.copy
        if self.wanted.key or one_by_one:
            connection.execute(self.statements.make_temporary)
            sql = self.statements.copy_temporary
        with connection.cursor().copy(sql) as copy:
            copy.write(data_of(lines))

    def _merge(self, connection: Connection, *, one_by_one: bool = False) -> dict[int, str]:
        """Put what was sent in place. One by one, says which rows were refused, by index.

        Then deferred constraints are checked at once, too.
        """
        refused: dict[int, str] = {}
        if one_by_one:
            connection.execute(_CHECK_AT_ONCE)
            connection.execute(self.statements.merge_each([*_PASSING, *_CHANGED]))
            refused = dict(connection.execute(t.REFUSED))
        elif self.wanted.key:
            connection.execute(self.statements.merge)
        if _cell(connection, t.SHAPE, t.quoted(*self._name)) != self.examined.shape:
            raise _Altered
        return refused

    # Lines

    def found(self, connection: Connection, lines: list[str], *, locked: bool) -> list[Committed]:
        """What is committed of each line; locked, nobody else can change it meanwhile.

        Whoever changes a line has its lock until the transaction has ended, also if the client
        is gone, or its connection broke under COMMIT; so a lock that was got says that no older
        transaction is under way. Locked in one order, whoever asks.
        """
        query = f"""\
SELECT "line", "epoch", "txid" FROM {_lines_in(self.examined.schema)}
WHERE "pipeline" = $1 AND "sink" = $2 AND "line" = ANY($3)
ORDER BY "line" COLLATE "C"{" FOR UPDATE" if locked else ""}"""
        rows = connection.execute(query, [*self._owner, lines])
        found = {line: (epoch, txid) for line, epoch, txid in rows}
        return [Committed(line, *found.get(line, (0, 0))) for line in lines]

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what stands at the lines, as soon as nobody is about to change it; see `found`."""
        return self.run(lambda connection: self.found(connection, list(lines), locked=True))

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs that are new, and say what is committed. Raises SinkFenced."""
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
        """Set each share's line to its epoch and txid; the lines are locked already.

        Raises SinkFailed when one is not there: someone has removed what was fenced.
        """
        fields = ("line", "epoch", "txid", "first", "end", "digest")
        columns = [[getattr(share, field) for share in shares] for field in fields]
        move = f"""\
UPDATE {_lines_in(self.examined.schema)} AS s SET "epoch" = n.epoch, "txid" = n.txid,
    "first" = n.first_offset, "end" = n.end_offset, "digest" = n.digest, "updated" = now()
FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[])
    AS n(line, epoch, txid, first_offset, end_offset, digest)
WHERE "pipeline" = $1 AND "sink" = $2 AND s."line" = n.line"""
        if connection.execute(move, [*self._owner, *columns]).rowcount != len(shares):
            raise SinkFailed("headrace_transactions has no row of a line that is to be committed")


def verdict(error: BaseException) -> str:
    """What an error means: the rows are `refused`, `busy`, the table has `changed`, or `passing`.

    Refused is what is not known to be anything else: data, constraints, sizes, one row twice,
    what triggers raise, and they may raise any state.
    """
    state = getattr(error, "sqlstate", None)
    if state is None:  # it does not come from the server; a DataError is of what came from it
        return "changed" if type(error).__name__ == "DataError" else "passing"
    if state in _BUSY:
        return "busy"
    if state == _OUR_COPY_IS_MALFORMED or state[:2] in _CHANGED:
        return "changed"
    return "passing" if state[:2] in _PASSING else "refused"


def _said(error: BaseException) -> str:
    """Its first line and SQLSTATE; the others may have values of rows."""
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
    """Have whoever waits for the server find the end of the connection; any thread may."""
    with (
        contextlib.suppress(Exception),
        socket.socket(fileno=os.dup(connection.fileno())) as raw,
    ):
        raw.shutdown(socket.SHUT_RDWR)


def _lines_in(schema: str) -> str:
    return t.quoted(schema, "headrace_transactions")


def _has_identities(connection: Connection, schema: str) -> bool:
    """Whether the table of the lines is there, with the column that names the rows' table."""
    query = "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = $2"
    return bool(_cell(connection, query, _lines_in(schema), "table"))


def _cell(connection: Connection, sql: str, *parameters: Any) -> Any:
    row = connection.execute(sql, parameters).fetchone()
    return None if row is None else row[0]
