"""State in a Delta Lake table."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sinks.names import checked_table
from sinks.state.merging import row_indexes
from sinks.state.store import Change, StateSink, StateStore
from sinks.tables.delta import DeltaSink
from sinks.tables.delta_log import DeltaLog
from sinks.tables.log import TableState, versions_of
from topology.errors import SinkFailed
from topology.sink import Committed, Fence, Maintenance, Share, Sink, SinkContext, Staged
from topology.state import Shape, State


class DeltaState(StateStore):
    """Keeps state in a Delta Lake table below the warehouse.

    One commit changes rows and txids. The files that hold any of the rows are rewritten, so a
    commit costs what the state's size does, unless keys that come together stand together: keep a
    state of millions of keys in a database. A vacuum removes the files that were replaced.
    Other readers of the table see one row per key and line.
    """

    def __init__(self, table: str) -> None:
        """Only stores. Raises InvalidSchema for an invalid name."""
        self.table = checked_table(table)
        self._sink: _StateTable | None = None

    def sink(self, state: State) -> Sink[Any]:
        _StateTable(self.table, state.shape)
        return _DeltaStateSink(self, state)

    def open(self, context: SinkContext, shape: Shape) -> None:
        self._sink = _StateTable(self.table, shape)
        self._sink.open(context)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        return self.opened().fence(fences)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        return self.opened().committed(lines)

    def update(self, shares: Sequence[Share], keys: pa.Table, change: Change) -> None:
        self.opened().update(shares, keys, change)

    def load(self, context: SinkContext, shape: Shape) -> pa.Table:
        log = DeltaLog(
            self.table, context.storage, context.storage.uri(self.table), key=shape.row_key
        )
        state = log.read()
        if state is None:
            return shape.schema.empty_table()
        return _rows_of(shape, log.rows(state), self.table)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def opened(self) -> "_StateTable":
        if self._sink is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return self._sink


class _DeltaStateSink(StateSink):
    _store: DeltaState

    def maintenance(self) -> Maintenance:
        return self._store.opened()


class _StateTable(DeltaSink[Any]):
    def __init__(self, table: str, shape: Shape) -> None:
        self._shape = shape
        super().__init__(table, schema=shape.schema, key=shape.row_key)

    def update(self, shares: Sequence[Share], keys: pa.Table, change: Change) -> None:
        def keep(rows: pa.Table) -> pa.Table:
            found = row_indexes(_rows_of(self._shape, rows, self.table), keys, keys.column_names)
            return rows.filter(found.is_valid())

        def replace(state: TableState) -> None:
            stored = self._delta.rows(state, keys, keep)
            rows = change(_rows_of(self._shape, stored, self.table))
            parts = (self._changes(rows),) if rows.num_rows else ()
            self._land(state, parts, versions_of(self._owner, shares))

        self._commit_once(Staged(tuple(shares), 0), replace)


def _rows_of(shape: Shape, rows: pa.Table, name: str) -> pa.Table:
    try:
        return rows.select(shape.schema.names).cast(shape.schema)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SinkFailed(
            f"table '{name}' does not fit state '{shape.state}': found the columns "
            f"{', '.join(rows.column_names)} ({error})"
        ) from error
