"""DeltaSink: Delta Lake tables, committed by delta-rs. No JVM."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from sinks.keyed_rows import KeyedRows, is_true, key_type
from sinks.names import OnNewColumns, is_uri
from sinks.probe import probe
from sinks.tables.delta_log import DELETED, DeltaLog
from sinks.tables.files import FileStager, write_good_rows
from sinks.tables.log import TableState
from sinks.tables.partitioning import can_partition, check_partitions
from sinks.tables.table import TableSink
from topology.errors import InvalidSchema
from topology.schema import ArrowSchema, Row
from topology.sink import Batch, SinkContext, Staged

_KEYS = "whole numbers, text, bytes, dates, timestamps, decimals and bool"


class DeltaSink(TableSink[Row]):
    """Writes a Delta Lake table on a local disk or an object store.

    With a `key`, a row replaces all rows that have its key, and one in which the column
    `deleted` is true only removes them; that column itself is not stored. Of a key's rows in one
    micro-batch the last counts. Files that hold such keys are rewritten.
    """

    made_by = "DeltaSink"

    def __init__(
        self,
        table: str,
        *,
        schema: type[Row] | ArrowSchema,
        partition_by: Sequence[str] = (),
        key: Sequence[str] = (),
        deleted: str | None = None,
        on_new_columns: OnNewColumns = "reject",
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema.

        `on_new_columns` decides on columns that the schema has and the table lacks:
        "add" adds them to the table, "reject" refuses to open it.
        """
        super().__init__(
            table, schema=schema, partition_by=partition_by, on_new_columns=on_new_columns
        )
        self._rows = rows = KeyedRows(table, self.schema, key, deleted)
        for name in rows.key:
            kind = self.schema.field(name).type
            if key_type(kind) is None:
                raise InvalidSchema(
                    f"table '{table}': key column '{name}': found {kind}, expected {_KEYS}"
                )
        self.stored, self.row_schema = rows.stored, rows.loose
        check_partitions(table, self.stored, self.partition_by, can_partition, leaves_some=True)

    def stager(self) -> FileStager | None:
        """See the contract. None with a key: the last row of each counts."""
        return None if self._rows.key else super().stager()

    def stage(self, batch: Batch) -> Staged:
        """See the contract. With a key the part is the source of a merge."""
        if not self._rows.key:
            return super().stage(batch)
        fitted = self._rows.fit(batch.pieces)
        misfits = self._fenced_stager().layout.misfits(fitted.table, self.stored)
        fitted = fitted.without(self._rows.of_those_that_stay(fitted.table, misfits))
        changes, fitted = write_good_rows(fitted, self._changes, lambda _: None)
        parts = (changes,) if changes.num_rows else ()
        return Staged(batch.shares, fitted.table.num_rows, parts, fitted.rejected)

    def _make_log(self, context: SinkContext, uri: str) -> DeltaLog:
        if context.exactly_once and is_uri(uri):
            probe(replace(context.storage, warehouse=uri))
        self._delta = DeltaLog(
            self.table, context.storage, uri, remembers=context.exactly_once, key=self._rows.key
        )
        return self._delta

    def _changes(self, rows: pa.Table) -> pa.Table:
        last, gone = self._rows.last(rows), self._rows.deleted
        flags = is_true(last[gone]) if gone else pa.array(np.zeros(last.num_rows, np.bool_))
        stored = last.select(self.stored.names).cast(self._wanted, safe=False)
        return stored.append_column(DELETED, flags)

    def _commit_once(self, staged: Staged, land: Callable[[TableState], object]) -> None:
        self._state = None  # only a read sees that no entry was replaced
        super()._commit_once(staged, land)

    def _land(
        self, state: TableState, parts: Sequence[Any], transactions: Mapping[str, int]
    ) -> None:
        if not (self._rows.key and parts):
            super()._land(state, parts, transactions)
            return
        self._state = None
        self._delta.merge(state, parts[0], transactions)
