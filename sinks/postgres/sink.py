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
from topology.sink import Batch, Piece, SinkContext
from topology.transactional import (
    Committed,
    Fence,
    Group,
    Share,
    Staged,
    TransactionalSink,
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
    one_by_one: bool = False  # the table takes them only in their order, or that is not known


class PostgresSink(TransactionalSink[Row]):
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

    def write(self, batch: Batch) -> None:
        """Write the batch's rows in one transaction; if some are refused, all but these.

        Raises RowsRejected, SinkBusy, SinkFailed, or a passing error.
        """
        rows, rejected, indexes = self._rows(batch.pieces, batch.num_rows)
        if indexes:
            try:
                self._database.commit((), lambda _: rows.lines)
            except RowsRefused:
                refused = self._database.commit((), lambda _: rows.lines, one_by_one=True)
                rejected |= {indexes[index]: reason for index, reason in refused.items()}
        if rejected:
            raise RowsRejected(rejected)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs that are new; see the contract."""
        raised = self._database.fence(fences)
        with self._settled:
            self._unproven.update(fence.line for fence in fences)
        return raised

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what stands at the lines; see the contract and `Database.committed`."""
        found = self._database.committed(lines)
        txids = {each.line: each.txid for each in found}
        for rows, shares in list(self._tried.items()):
            if all(share.txid <= txids.get(share.line, 0) for share in shares):
                self._settle(rows, txids)  # nobody will say so: the commit's reply was lost
        return found

    def stage(self, group: Group) -> Staged:
        """Make the lines of COPY's input, and try them first if need be; see the contract."""
        rows, rejected, indexes = self._rows(group.pieces, group.num_rows)
        if indexes and self._needs_trial(group, rows):
            with self._settled:  # a key that comes again in the next group is found only there
                self._settled.wait_for(lambda: not self._tried, _PATIENCE_SECONDS)
            refused = self._database.refused(rows.lines)
            if refused is not None:
                rejected |= {indexes[index]: reason for index, reason in refused.items()}
                rows.lines, rows.one_by_one = without(rows.lines, refused), True
            self._tried[rows] = group.shares
        return Staged(group.shares, len(rows.lines), (rows,), rejected)

    def commit(self, staged: Staged) -> None:
        """Write the rows and move the lines in one transaction; see `Database.commit`."""
        (rows,) = staged.parts
        try:
            self._database.commit(staged.shares, lambda _: rows.lines, one_by_one=rows.one_by_one)
        except (SinkFenced, SinkFailed):
            self._settle(rows)
            raise
        self._settle(rows, [share.line for share in staged.shares])

    def discard(self, staged: Staged) -> None:
        """Forget the rows: the database has not seen them, or not kept them."""
        (rows,) = staged.parts
        self._settle(rows)

    def close(self) -> None:
        """Let go of the connections."""
        self._database.close()

    def _rows(
        self, pieces: Sequence[Piece], num_rows: int
    ) -> tuple[_Rows, dict[int, str], list[int]]:
        """The rows to send, why the others are not, and the indexes of those sent."""
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
        rows = _Rows(lines, longest(fitted.table, facts.indexed(self._wanted)))
        return rows, rejected, [index for index in fitting if index not in rejected]

    def _needs_trial(self, group: Group, rows: _Rows) -> bool:
        """Whether the database must be asked if it takes these rows.

        What is staged first after a fence may be what ended the process before: a row that was
        refused when it was committed. So it is tried, if it is not its first attempt.
        """
        with self._settled:
            again = any(each.attempt > 1 and each.line in self._unproven for each in group.shares)
        is_long = rows.longest_indexed > _LONG_BYTES
        return again or is_long or self._database.examined.trial_reason(self._wanted) is not None

    def _settle(self, rows: _Rows, committed: Collection[str] = ()) -> None:
        """Learn that rows are `committed`, of these lines, or will not be."""
        with self._settled:
            self._tried.pop(rows, None)
            self._unproven.difference_update(committed)
            self._settled.notify_all()
