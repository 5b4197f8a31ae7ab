"""PostgreSQL tables as a sink: rows and txids in one transaction."""

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import structlog

from sinks.names import OnNewColumns, checked_new_columns
from sinks.postgres.catalogue import key_of
from sinks.postgres.database import Database, RowsRefused
from sinks.postgres.text import Lines, encode, longest, without
from topology.errors import RowsRejected, SinkFailed, SinkFenced
from topology.schema import ArrowSchema, Row, schema_of
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

# A commit is cheap for a database; memory grows with the rows.
_BATCH_ROWS = 20_000
_PATIENCE_SECONDS = 5.0
_LONG_BYTES = 2_000  # an index accepts values up to about 2,700 bytes


@dataclass(slots=True, eq=False)
class _Rows:
    lines: Lines
    longest_indexed: int  # most bytes of a row in indexed columns
    indexes: list[int]  # of the rows in their batch
    one_by_one: bool = False  # they must be inserted in their order


class PostgresSink(Sink[Row]):
    """Write to a PostgreSQL table with COPY.

    Without `key` rows are appended; with it, a row replaces the one of the same key, or deletes it
    if its boolean column `deleted` is true. Of a micro-batch's rows with one key the last counts.

    Exactly once, the same transaction sets epoch and txid in the table `headrace_transactions` of
    the same schema. A missing table is created; an existing one must hold every value of the
    columns' types. Rows that only the database can reject (CHECK, UNIQUE, FOREIGN KEY, triggers)
    are found by a dry run, which only tables with such rules need.
    """

    batch_rows = _BATCH_ROWS
    kinds = BOTH_KINDS

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        schema: type[Row] | ArrowSchema,
        key: str | Sequence[str] = (),
        deleted: str | None = None,
        user: str | None = None,
        password: str | None = None,
        on_new_columns: OnNewColumns = "reject",
    ) -> None:
        """Store only. Raises InvalidTopology for a JDBC URL, InvalidSchema for anything else.

        `conninfo` is libpq's: a URL, or `host=… dbname=…`. `user` and `password` override it;
        libpq reads the rest from PGUSER and the like, and ~/.pgpass, when the sink opens.
        """
        self.name = table
        self.table = table
        self._database = Database("PostgresSink", conninfo, table, user=user, password=password)
        self.schema = schema_of(schema)
        self._keyed = key_of(table, self.schema, key, deleted)
        self.row_schema = self._keyed.loose
        self.on_new_columns = checked_new_columns(on_new_columns, table)
        self._tried: dict[_Rows, Sequence[Share]] = {}  # and not committed yet
        self._unproven: set[str] = set()  # lines without a commit since they were fenced
        self._settled = threading.Condition()

    def open(self, context: SinkContext) -> None:
        self._tried, self._unproven = {}, set()
        self._database.open(context, self._keyed, self.on_new_columns)
        reason = self._database.examined.trial_reason(self._keyed)
        if context.exactly_once and reason is not None:
            log.info("postgres_rows_are_tried", table=self.table, reason=reason)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        if not fences:
            return []  # headrace_transactions may be missing
        raised = self._database.fence(fences)
        with self._settled:
            self._unproven.update(fence.line for fence in fences)
        return raised

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        return self._database.committed(lines)

    def stage(self, batch: Batch) -> Staged:
        """Encode rows for COPY, and try them if only the database can reject them.

        Without shares there is no dry run: `commit` can tell which rows were rejected.
        """
        rows, rejected = self._rows(batch.pieces, batch.num_rows)
        if batch.shares and rows.indexes and self._needs_trial(batch, rows):
            with self._settled:  # a dry run must see the rows of earlier batches
                self._settled.wait_for(lambda: not self._tried, _PATIENCE_SECONDS)
            refused = self._database.refused(rows.lines)
            if refused is not None:
                rejected |= {rows.indexes[row]: reason for row, reason in refused.items()}
                rows.lines, rows.one_by_one = without(rows.lines, refused), True
            self._tried[rows] = batch.shares
        return Staged(batch.shares, len(rows.lines), (rows,), rejected)

    def commit(self, staged: Staged) -> None:
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
        (rows,) = staged.parts
        self._settle(rows)

    def close(self) -> None:
        self._database.close()

    def _rows(self, pieces: Sequence[Piece], num_rows: int) -> tuple[_Rows, dict[int, str]]:
        info = self._database.examined
        fitted = self._keyed.fit(pieces, info.not_null)
        lines, unfit = encode(fitted.table)
        fitted = fitted.without(unfit)
        indexes = [index for index in range(num_rows) if index not in fitted.rejected]
        longest_indexed = longest(fitted.table, info.indexed(self._keyed))
        return _Rows(lines, longest_indexed, indexes), fitted.rejected

    def _needs_trial(self, batch: Batch, rows: _Rows) -> bool:
        """Whether only the database knows if it accepts these rows.

        A row that was rejected at its commit ends the process. So the first repeated batch after a
        fence is tried.
        """
        with self._settled:
            again = any(each.attempt > 1 and each.line in self._unproven for each in batch.shares)
        is_long = rows.longest_indexed > _LONG_BYTES
        return again or is_long or self._database.examined.trial_reason(self._keyed) is not None

    def _settle(self, rows: _Rows, committed: Collection[str] = ()) -> None:
        with self._settled:
            self._tried.pop(rows, None)
            self._unproven.difference_update(committed)
            self._settled.notify_all()
