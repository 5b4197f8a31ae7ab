"""PostgreSQL tables as a sink: rows and txids in one transaction of the database's."""

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
import structlog

from sinks.columns import fit
from sinks.names import OnNewColumns, checked_new_columns
from sinks.postgres.database import Database, RowsRefused
from sinks.postgres.table import wanted_of
from sinks.postgres.text import Lines, encode, longest, without
from topology.errors import RowsRejected, SinkFailed, SinkFenced
from topology.schema import Row, schema_of
from topology.sink import (
    BOTH_KINDS,
    Batch,
    Committed,
    Fence,
    Piece,
    Share,
    Sink,
    SinkContext,
    Staged,
)

log = structlog.get_logger()

# A commit costs a database little, and its memory and ours grow with the rows.
_BATCH_ROWS = 20_000
_PATIENCE_SECONDS = 5.0
_LONG_BYTES = 2_000  # an index of PostgreSQL's takes values up to about 2,700


@dataclass(slots=True, eq=False)
class _Rows:
    """Rows on their way to the table."""

    lines: Lines
    longest_indexed: int  # bytes that a row may have in columns that have an index
    indexes: list[int]  # of the lines' rows in their batch
    one_by_one: bool = False  # the table takes them only in their order, or that is not known


class PostgresSink(Sink[Row]):
    """Writes to a PostgreSQL table.

    Without `key` rows are appended; with it, a row replaces the one of the same key, and if its
    boolean column `deleted` is true deletes it. Of a micro-batch's rows with one key the last
    counts. The rows are sent with COPY.

    Exactly once, the same transaction of the database sets each line's epoch and txid in the
    table `headrace_transactions` of the same schema. A table that is not there is created; one
    that is must have room for every value of the columns' types. A row that only the database
    can refuse (CHECK, UNIQUE, FOREIGN KEY, triggers, ...) is found by a trial, and only tables
    that have such things cost one.
    """

    batch_rows = _BATCH_ROWS
    kinds = BOTH_KINDS

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        schema: type[Row] | pa.Schema,
        key: str | Sequence[str] = (),
        deleted: str | None = None,
        user: str | None = None,
        password: str | None = None,
        on_new_columns: OnNewColumns = "reject",
    ) -> None:
        """Only stores. Raises InvalidTopology for a JDBC URL, InvalidSchema for anything else.

        `conninfo` is libpq's: a URL, or `host=… dbname=…`. What it lacks, `user` and `password`
        say, or what libpq asks when the sink is opened: PGUSER and the like, and ~/.pgpass.
        """
        self.name = table
        self.table = table
        self._database = Database("PostgresSink", conninfo, table, user=user, password=password)
        self.schema = schema_of(schema)
        self._wanted = wanted_of(table, self.schema, key, deleted)
        self.row_schema = self._wanted.loose
        self._adds = checked_new_columns(on_new_columns, table) == "add"
        self._tried: dict[_Rows, Sequence[Share]] = {}  # and not in the table yet
        self._unproven: set[str] = set()  # lines whose first commit after a fence is to come
        self._settled = threading.Condition()

    def open(self, context: SinkContext) -> None:
        """Connect, create what is missing, and check the table.

        Raises SinkFailed, naming the column where there is one, when the database cannot be
        reached, or the table be written.
        """
        self._tried, self._unproven = {}, set()
        self._database.open(context, self._wanted, adds=self._adds)
        reason = self._database.examined.trial_reason(self._wanted)
        if context.exactly_once and reason is not None:
            log.info("postgres_rows_are_tried", table=self.table, reason=reason)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs that are new; see the contract."""
        if not fences:
            return []  # and there is no table of transactions
        raised = self._database.fence(fences)
        with self._settled:
            self._unproven.update(fence.line for fence in fences)
        return raised

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what stands at the lines; see the contract and `Database.committed`."""
        return self._database.committed(lines)

    def stage(self, batch: Batch) -> Staged:
        """Make the lines of COPY's input, and try them first if need be; see the contract.

        Without shares there is no trial: `commit` can tell which rows were refused.
        """
        rows, rejected = self._rows(batch.pieces, batch.num_rows)
        if batch.shares and rows.indexes and self._needs_trial(batch, rows):
            with self._settled:  # a key that comes again in the next batch is found only there
                self._settled.wait_for(lambda: not self._tried, _PATIENCE_SECONDS)
            refused = self._database.refused(rows.lines)
            if refused is not None:
                rejected |= {rows.indexes[row]: reason for row, reason in refused.items()}
                rows.lines, rows.one_by_one = without(rows.lines, refused), True
            self._tried[rows] = batch.shares
        return Staged(batch.shares, len(rows.lines), (rows,), rejected)

    def commit(self, staged: Staged) -> None:
        """Write the rows and move the lines in one transaction; see `Database.commit`."""
        (rows,) = staged.parts
        if not staged.shares:
            self._commit(rows)
            return
        try:
            self._database.commit(staged.shares, lambda _: rows.lines, one_by_one=rows.one_by_one)
        except (SinkFenced, SinkFailed):
            self._settle(rows)
            raise
        self._settle(rows, [share.line for share in staged.shares])

    def _commit(self, rows: _Rows) -> None:
        """Write rows of no transaction; if some are refused, all but these."""
        if not len(rows.lines):
            return
        try:
            self._database.commit((), lambda _: rows.lines)
        except RowsRefused:
            refused = self._database.commit((), lambda _: rows.lines, one_by_one=True)
            if refused:
                reasons = {rows.indexes[row]: reason for row, reason in refused.items()}
                raise RowsRejected(reasons) from None

    def discard(self, staged: Staged) -> None:
        """Forget the rows: the database has not seen them, or not kept them."""
        (rows,) = staged.parts
        self._settle(rows)

    def close(self) -> None:
        """Let go of the connections."""
        self._database.close()

    def _rows(self, pieces: Sequence[Piece], num_rows: int) -> tuple[_Rows, dict[int, str]]:
        """The rows to send, and why the others are not."""
        facts = self._database.examined
        fitted = fit(pieces, self._wanted.loose)
        lines, unfit = encode(
            fitted.table,
            required=facts.required(self._wanted),
            excused=self._wanted.deleted,
            key=self._wanted.key,
        )
        fitting = [index for index in range(num_rows) if index not in fitted.rejected]
        rejected = fitted.rejected | {fitting[index]: reason for index, reason in unfit.items()}
        indexes = [index for index in fitting if index not in rejected]
        return _Rows(lines, longest(fitted.table, facts.indexed(self._wanted)), indexes), rejected

    def _needs_trial(self, batch: Batch, rows: _Rows) -> bool:
        """Whether the database must be asked if it takes these rows.

        What is staged first after a fence may be what ended the process before: a row that was
        refused when it was committed. So it is tried, if it is not its first attempt.
        """
        with self._settled:
            again = any(each.attempt > 1 and each.line in self._unproven for each in batch.shares)
        is_long = rows.longest_indexed > _LONG_BYTES
        return again or is_long or self._database.examined.trial_reason(self._wanted) is not None

    def _settle(self, rows: _Rows, committed: Collection[str] = ()) -> None:
        """Learn that rows are `committed`, of these lines, or will not be."""
        with self._settled:
            self._tried.pop(rows, None)
            self._unproven.difference_update(committed)
            self._settled.notify_all()
