"""PostgreSQL tables as a sink: rows and txids in one transaction of the database's."""

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar, overload
from uuid import uuid4

import pyarrow as pa
import structlog

from sinks.columns import fit
from sinks.errors import DatabaseError
from sinks.new_columns import OnNewColumns, checked_new_columns
from sinks.shares import is_to_commit
from sinks.spark.spool import Spool
from sinks.spark.sql.connection import Connection
from sinks.spark.sql.copy_text import encode, longest
from sinks.spark.sql.database import Database, opening
from sinks.spark.sql.examiner import Examiner, Way
from sinks.spark.sql.load import Load
from sinks.spark.sql.names import table_name
from sinks.spark.sql.place import place_of
from sinks.spark.sql.sending import Sending, trial
from sinks.spark.sql.telling import RowsRefused, tell
from sinks.spark.sql.transaction_lines import TransactionLines
from sinks.spark.sql.trials import Trials
from sinks.spark.sql.wanted import wanted_of
from topology.errors import RowsRejected, SinkFailed, SinkFenced
from topology.masking import mask
from topology.schema import schema_of
from topology.sink import Batch, Piece, Row, SinkContext
from topology.transactional import (
    Committed,
    Fence,
    Group,
    Share,
    Staged,
    TransactionalSink,
)

log = structlog.get_logger()

Result = TypeVar("Result")

# A commit costs a database little, and its memory and ours grow with the rows.
_BATCH_ROWS = 20_000


class SqlSink(TransactionalSink[Row]):
    """Writes to a PostgreSQL table. Needs the PostgreSQL driver in Spark's JVM.

    Without `key` rows are appended; with it, a row replaces the one of the same key, and if its
    boolean column `deleted` is true deletes it. Of a micro-batch's rows with one key the last
    counts. The rows are sent with COPY.

    Exactly once, the same transaction of the database sets each line's epoch and txid in the
    table `headrace_transactions` of the same schema. A table that is not there is created; one
    that is must have room for every value of the columns' types. A row that only the database
    can refuse (CHECK, UNIQUE, FOREIGN KEY, triggers, ...) is found by a trial, and only tables
    that have such things cost one.
    """

    needs_spark = True
    needs_jars = ("postgresql",)
    batch_rows = _BATCH_ROWS

    @overload
    def __init__(
        self: "SqlSink[Any]",
        url: str,
        table: str,
        *,
        schema: pa.Schema,
        key: str | Sequence[str] = (),
        deleted: str | None = None,
        user: str | None = None,
        password: str | None = None,
        on_new_columns: OnNewColumns = "reject",
    ) -> None: ...

    @overload
    def __init__(
        self,
        url: str,
        table: str,
        *,
        schema: type[Row],
        key: str | Sequence[str] = (),
        deleted: str | None = None,
        user: str | None = None,
        password: str | None = None,
        on_new_columns: OnNewColumns = "reject",
    ) -> None: ...

    def __init__(
        self,
        url: str,
        table: str,
        *,
        schema: type[Any] | pa.Schema,
        key: str | Sequence[str] = (),
        deleted: str | None = None,
        user: str | None = None,
        password: str | None = None,
        on_new_columns: OnNewColumns = "reject",
    ) -> None:
        """Only stores. Raises InvalidTopology for the URL, InvalidSchema for anything else.

        `user` and `password` are, in this order, what is given here, in the URL, or in PGUSER
        and PGPASSWORD when the sink is opened.
        """
        self.name = table
        self.table = table
        self._table = table_name(table)
        self._place = place_of(url, user, password)
        self.schema = schema_of(schema)
        self._wanted = wanted_of(table, self.schema, key, deleted)
        self._adds = checked_new_columns(on_new_columns, table) == "add"
        self._context: SinkContext | None = None
        self._spool: Spool | None = None
        self._commits: Database | None = None
        self._staging: Database | None = None  # the staging thread's
        self._way: Way | None = None
        self._trials = Trials()
        self._out: dict[Load, tuple[Share, ...]] = {}  # staged, and neither committed nor discarded

    def open(self, context: SinkContext) -> None:
        """Connect, create what is missing, and check the table.

        Raises SinkFailed, naming the column where there is one, when the database cannot be
        reached, or the table be written.
        """
        if context.spark is None:
            raise SinkFailed(f"table '{self.table}' needs Spark; none was configured")
        place = self._place.with_environment(os.environ)
        mask.add(place.secrets)
        where = f"table '{self.table}' at {place.shown}"
        if wrong := self._wanted.complaints():
            raise SinkFailed(f"{where}: {'; '.join(wrong)}")
        target = Examiner(
            self._table, self._wanted, where, adds=self._adds, has_lines=context.exactly_once
        )

        def examine(connection: Connection) -> None:
            """Over each new connection; what is missing is made over the first."""
            self._way = target.examine(connection, makes=self._way is None)

        self._context = context
        self._way = None
        self._out = {}
        self._trials = Trials()
        self._spool = Spool(context.warehouse, f"{context.pipeline}.{context.sink}")
        application = f"headrace {context.pipeline}/{context.sink}"
        self._commits, self._staging = (
            Database(context.spark, place, application, examine) for _ in range(2)
        )
        with opening(where, place):
            self._spool.open()
            self._commits.connect(group=f"{self.name}-open")
        if context.exactly_once and self._ready.trial_reason is not None:
            log.info("sql_rows_are_tried", table=self.table, reason=self._ready.trial_reason)

    def write(self, batch: Batch) -> None:
        """Write the batch's rows in one transaction.

        Raises RowsRejected, SinkBusy, SinkFailed, or a passing error.
        """
        load, rejected, places = self._load(batch.pieces, batch.num_rows)
        try:
            if load.num_rows:
                refused = self._write(load)
                rejected |= {places[index]: reason for index, reason in refused.items()}
        finally:
            load.remove()
        if rejected:
            raise RowsRejected(rejected)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs that are new; see the contract."""
        raised = self._run(lambda connection: self._standing.fence(connection, fences), "fence")
        self._trials.fenced([fence.line for fence in fences])
        return raised

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what stands at the lines, as soon as nobody is about to change it.

        A connection that broke under COMMIT may have left a transaction that the server has yet
        to end, one way or the other. It holds the lines' locks until then, so whoever has them
        knows the outcome.
        """
        found = self._run(
            lambda connection: self._standing.found(connection, lines, locked=True), "committed"
        )
        txids = {each.line: each.txid for each in found}
        for load, shares in list(self._out.items()):
            if all(share.txid <= txids.get(share.line, 0) for share in shares):
                self._settled(load, txids)  # nobody will say so: the commit's reply was lost
        return found

    def stage(self, group: Group) -> Staged:
        """Make the lines of COPY's input, and try them first if need be; see the contract."""
        load, rejected, places = self._load(group.pieces, group.num_rows)
        try:
            is_tried = self._trials.is_needed(self._ready, group, load)
            refused = self._try(load) if is_tried else None
            if refused is not None:
                rejected |= {places[index]: reason for index, reason in refused.items()}
                load.remove()
                load = load.without(refused, uuid4().hex)
            if load.num_rows:
                load.file()
        except BaseException:
            load.remove()
            raise
        if is_tried:
            self._trials.passed(load)
        self._out[load] = group.shares
        return Staged(group.shares, load.num_rows, (load,), rejected)

    def commit(self, staged: Staged) -> None:
        """Write the rows and move the lines in one transaction; see the contract.

        The lines are locked after the rows were sent. So who is frozen, or slow, while sending
        holds up nobody; and who holds the locks needs nothing more of its client but a word.
        """
        (load,) = staged.parts
        shares = staged.shares
        lines = [share.line for share in shares]

        def commit(connection: Connection) -> None:
            standing = self._standing
            if not is_to_commit(shares, standing.found(connection, lines, locked=False)):
                return  # what is fenced or committed stays so
            sending = self._sending(connection, one_by_one=load.one_by_one)
            if load.num_rows:
                sending.bring(load.file())
            if not is_to_commit(shares, standing.found(connection, lines, locked=True)):
                connection.rollback()
                return
            if load.num_rows and (refused := sending.merge()):
                raise RowsRefused(f"table '{self.table}': {next(iter(refused.values()))}")
            standing.move(connection, shares)

        try:
            self._run(commit, "commit")
        except (SinkFenced, SinkFailed):
            self._trials.settled(load)
            raise
        self._settled(load, lines)

    def discard(self, staged: Staged) -> None:
        """Remove the file: the database has not seen the rows, or not kept them."""
        (load,) = staged.parts
        self._settled(load)

    def close(self) -> None:
        """Remove the spool, and let go of the connections. Spark itself belongs to the service."""
        if self._spool is not None:
            self._spool.close()
        for database in (self._commits, self._staging):
            if database is not None:
                database.close()
        self._commits = self._staging = None

    def _settled(self, load: Load, committed: Collection[str] = ()) -> None:
        self._out.pop(load, None)
        self._trials.settled(load, committed)
        load.remove()

    # What is to be sent

    def _load(
        self, pieces: Sequence[Piece], num_rows: int
    ) -> tuple[Load, dict[int, str], list[int]]:
        """The rows to send, by place why the others are not, and the places of those sent."""
        way, spool = self._ready, self._spool
        if spool is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        fitted = fit(pieces, self._wanted.loose)
        encoded = encode(
            fitted.table,
            required=way.required,
            excused=self._wanted.deleted,
            key=self._wanted.key,
            numbered=bool(self._wanted.key),
        )
        fitting = [place for place in range(num_rows) if place not in fitted.rejected]
        rejected = dict(fitted.rejected)
        rejected |= {fitting[place]: reason for place, reason in encoded.rejected.items()}
        places = [place for place in fitting if place not in rejected]
        most = longest(fitted.table, way.indexed)
        load = Load(encoded.lines, spool, uuid4().hex, longest_indexed=most)
        return load, rejected, places

    # Refused by the database

    def _try(self, load: Load) -> dict[int, str] | None:
        """Put the rows into the table and take them back; says which were refused, if any."""
        self._trials.wait()

        def attempt(connection: Connection) -> dict[int, str] | None:
            statements = self._ready.statements
            refused = trial(connection, statements, load, by_key=bool(self._wanted.key))
            connection.rollback()
            return refused

        return self._run(attempt, "try", on=self._staging)

    def _write(self, load: Load) -> dict[int, str]:
        """Put the rows into the table, at once, or if it refuses some, all but these."""

        def write(connection: Connection, *, one_by_one: bool) -> dict[int, str]:
            sending = self._sending(connection, one_by_one=one_by_one)
            sending.bring(load.file())
            return sending.merge()

        try:
            return self._run(partial(write, one_by_one=False), "write")
        except RowsRefused:
            return self._run(partial(write, one_by_one=True), "write")

    # The database

    @property
    def _ready(self) -> Way:
        if self._way is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return self._way

    @property
    def _standing(self) -> TransactionLines:
        if self._context is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return TransactionLines(self._ready.statements, self._context.pipeline, self._context.sink)

    def _sending(self, connection: Connection, *, one_by_one: bool) -> Sending:
        return Sending(
            connection,
            self._ready.statements,
            by_key=bool(self._wanted.key),
            one_by_one=one_by_one,
        )

    def _run(
        self, step: Callable[[Connection], Result], what: str, on: Database | None = None
    ) -> Result:
        """Run a transaction, by default where commits are; what fails is for the writer."""
        database = on or self._commits
        if database is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        try:
            return database.run(step, group=f"{self.name}-{what}")
        except DatabaseError as error:
            tell(error, self.table)
