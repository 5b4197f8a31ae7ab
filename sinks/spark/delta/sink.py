"""Delta Lake tables as a sink: rows and txids in one commit."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

import pyarrow as pa

from sinks.files.stager import FileStager, check_shared, joined
from sinks.new_columns import OnNewColumns
from sinks.shares import check_fences, is_to_commit
from sinks.spark.delta.facts import transaction_obstacle
from sinks.spark.delta.kernel import DeltaLog
from sinks.spark.delta.versions import app_id, committed_of, pack
from sinks.spark.delta.way import Way
from sinks.spark.delta.writing import DeltaTableSink, Written
from topology.errors import SinkFailed
from topology.sink import Row, SinkContext
from topology.transactional import Committed, Fence, Group, Share, Staged, StagesApart


class DeltaSink(DeltaTableSink[Row], StagesApart[Row]):
    """Writes to a Delta Lake table. Needs Delta's jars in the Spark driver.

    The rows of a micro-batch become Parquet files in the table's own folder, and one commit
    of Delta Kernel makes them visible, under exactly-once together with the txid of every
    share. A table that does not exist is created as Spark creates it. One that Kernel cannot
    write is appended to by Spark, at several times the cost, and takes no transactions.

    With a `key`, a row takes the place of all rows that have its key, and one in which the
    column `deleted` is true only takes them away; that column itself is not stored. Of a key's
    rows in one micro-batch the last counts. Files that hold such keys are written anew.

    A lock file in the table's folder holds our commits apart. Whoever else writes the table
    (another engine, OPTIMIZE) makes a commit be decided and tried anew.
    """

    @overload
    def __init__(
        self: "DeltaSink[Any]",
        table: str,
        *,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        key: Sequence[str] = (),
        deleted: str | None = None,
        on_new_columns: OnNewColumns = "reject",
    ) -> None: ...

    @overload
    def __init__(
        self,
        table: str,
        *,
        schema: type[Row],
        partition_by: Sequence[str] = (),
        key: Sequence[str] = (),
        deleted: str | None = None,
        on_new_columns: OnNewColumns = "reject",
    ) -> None: ...

    def __init__(
        self,
        table: str,
        *,
        schema: type[Any] | pa.Schema,
        partition_by: Sequence[str] = (),
        key: Sequence[str] = (),
        deleted: str | None = None,
        on_new_columns: OnNewColumns = "reject",
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema.

        `on_new_columns` says what becomes of columns that the schema has and the table lacks:
        "add" adds them to the table, "reject" refuses to open it.
        """
        super().__init__(
            table,
            schema=schema,
            partition_by=partition_by,
            key=key,
            deleted=deleted,
            on_new_columns=on_new_columns,
        )
        self._context: SinkContext | None = None
        self._fenced: str | None = None  # the id of the table that was fenced

    def open(self, context: SinkContext) -> None:
        """Check as every table does, and how the table that is there can be written.

        Raises SinkFailed as every table does, and when Kernel cannot write the table, but has
        to: with a key, and under exactly-once. Then also if the table would forget txids.
        """
        super().open(context)
        self._context = context
        self._fenced = None
        if context.exactly_once:
            self._check_transactions()

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Commit the epochs that are new, with no rows; see the contract."""
        self._ready()
        self._check_upserts()
        self._check_transactions()
        if self._table is not None:
            self._table.forget()
        lines = [fence.line for fence in fences]

        def raise_epochs(table: DeltaLog) -> list[Committed]:
            found = self._found(table, lines)
            check_fences(fences, found)
            raised = [
                line._replace(epoch=fence.epoch) for fence, line in zip(fences, found, strict=True)
            ]
            new = [line for line in raised if line not in found]
            if new:
                table.commit([], self._versions(new))
            facts = table.read()
            self._fenced = facts.table_id if facts else None
            return raised

        return self._settle(raise_epochs, "fence")

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what the table says; see the contract."""

        def read(table: DeltaLog) -> list[Committed]:
            table.forget()
            return self._found(table, lines)

        return self._run(read, "committed")

    def stage(self, group: Group) -> Staged:
        """Write files that no reader sees; see the contract."""
        way = self._fenced_way()
        written, fitted = self._put(way, group.pieces, group.number)
        return Staged(group.shares, fitted.table.num_rows, (written,), fitted.rejected)

    def stager(self) -> FileStager | None:
        """What writes such files; see the contract. None with a key, whose last row counts."""
        if self._keyed is not None:
            return None
        return FileStager(self._fenced_way().files, self.schema)

    def joined(self, shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
        """See the contract."""
        whole = joined(shares, staged)
        check_shared(self._fenced_way().files.root, whole.parts)
        return replace(whole, parts=(Written([*whole.parts], None, 0),))

    def commit(self, staged: Staged) -> None:
        """Add the files and set the txids, all at once; see the contract."""
        written: Written = staged.parts[0]

        def commit(table: DeltaLog) -> None:
            if not self._is_to_commit(table, staged.shares):
                return
            if not self._suits(table, written.files):
                raise SinkFailed(f"table '{self.table}' was changed while rows were written to it")
            self._land(table, written, self._versions(staged.shares))

        self._settle(commit, "commit")

    def discard(self, staged: Staged) -> None:
        """Remove the files, except those of which a commit may have landed all the same."""
        written: Written = staged.parts[0]
        if self._way is not None:
            self._way.files.remove(self._doubtful.without(written.files))

    def _fenced_way(self) -> Way:
        if self._way is None:
            raise SinkFailed(f"table '{self.table}' takes no group before a fence")
        return self._way

    def _is_to_commit(self, table: DeltaLog, shares: Sequence[Share]) -> bool:
        """See `is_to_commit`; whatever speaks against it is read, not remembered."""
        lines = [share.line for share in shares]
        self._check_same(table)
        with contextlib.suppress(SinkFailed):
            if is_to_commit(shares, self._found(table, lines)):
                return True  # the commit will show whether what is remembered still holds
        table.forget()
        self._check_same(table)
        return is_to_commit(shares, self._found(table, lines))

    def _check_same(self, table: DeltaLog) -> None:
        """Raise SinkFailed when the table is not the one whose lines were fenced."""
        facts = table.read()
        if self._fenced is not None and (facts is None or facts.table_id != self._fenced):
            raise SinkFailed(f"table '{self.table}' was removed while rows were written to it")

    def _found(self, table: DeltaLog, lines: Sequence[str]) -> list[Committed]:
        apps = [self._app(line) for line in lines]
        return committed_of(lines, apps, table.versions(apps) if table.read() else {})

    def _versions(self, lines: Sequence[Share | Committed]) -> dict[str, int]:
        """What the table is to remember of each line."""
        return {self._app(line.line): pack(line.epoch, line.txid) for line in lines}

    def _app(self, line: str) -> str:
        if self._context is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return app_id(self._context.pipeline, self._context.sink, line)

    def _check_transactions(self) -> None:
        """Raise SinkFailed when the table cannot take transactions; one that is not there can."""
        obstacle = self._obstacle
        if obstacle is None and self._way is not None:
            obstacle = transaction_obstacle(self._way.facts)
        if obstacle is not None:
            raise SinkFailed(f"table '{self.table}' cannot be written exactly once: {obstacle}")
