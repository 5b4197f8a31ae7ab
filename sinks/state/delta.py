"""State in a Delta Lake table."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sinks.names import checked_table
from sinks.state.sink import StateSink
from sinks.state.store import Change, StateStore
from sinks.tables.delta import DeltaLog, DeltaSink
from sinks.tables.log import TableState
from topology.errors import SinkFailed
from topology.sink import Committed, Fence, Maintenance, Share, Sink, SinkContext, Staged
from topology.state import Shape, State


class DeltaState(StateStore):
    """Keeps state in a Delta Lake table below the warehouse.

    One commit changes rows and txids. The files that hold any of the rows are written anew, so a
    commit costs what the state's size does, unless keys that come together stand together: a
    state of millions of keys is better kept in a database. A vacuum removes what the files were.
    Who else reads the table sees one row per key and line.
    """

    def __init__(self, table: str) -> None:
        """Only stores. Raises InvalidSchema for a name that is none."""
        self.table = checked_table(table)
        self._sink: _StateTable | None = None

    def sink(self, state: State) -> Sink[Any]:
        """What keeps the state. Raises InvalidSchema when Delta cannot have such a table."""
        _StateTable(self.table, state.shape)
        return DeltaStateSink(self, state)

    def open(self, context: SinkContext, shape: Shape) -> None:
        """Look at the table; see the contract."""
        self._sink = _StateTable(self.table, shape)
        self._sink.open(context)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Commit the epochs that are new; see the contract."""
        return self._opened().fence(fences)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what the table says; see the contract."""
        return self._opened().committed(lines)

    def update(self, shares: Sequence[Share], keys: pa.Table, change: Change) -> None:
        """Merge rows and set the txids, in one commit; see the contract."""
        self._opened().update(shares, keys, change)

    def load(self, context: SinkContext, shape: Shape) -> pa.Table:
        """Read the table's files; see the contract."""
        log = DeltaLog(
            self.table, context.storage, context.storage.uri(self.table), key=shape.row_key
        )
        state = log.read()
        if state is None:
            return shape.schema.empty_table()
        return _rows_of(shape, log.rows(state), self.table)

    def maintenance(self) -> Maintenance:
        """Of the table; see Maintained."""
        return self._opened()

    def close(self) -> None:
        """Let go of the table."""
        if self._sink is not None:
            self._sink.close()

    def _opened(self) -> "_StateTable":
        if self._sink is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return self._sink


class DeltaStateSink(StateSink):
    """Keeps a state in a table of files, which is maintained."""

    def __init__(self, store: DeltaState, state: State) -> None:
        super().__init__(store, state)
        self._table = store

    def maintenance(self) -> Maintenance:
        """Of the table; see Maintained."""
        return self._table.maintenance()


class _StateTable(DeltaSink[Any]):
    """A table of which rows are read, changed and put back in one commit."""

    def __init__(self, table: str, shape: Shape) -> None:
        self._shape = shape
        super().__init__(table, schema=shape.schema, key=shape.row_key)

    def update(self, shares: Sequence[Share], keys: pa.Table, change: Change) -> None:
        def exchange(state: TableState) -> None:
            self._exchange(state, shares, keys, change)

        self._commit_once(Staged(tuple(shares), 0), exchange)

    def _exchange(
        self, state: TableState, shares: Sequence[Share], keys: pa.Table, change: Change
    ) -> None:
        """Put rows in the place of those that have the keys, on top of the version read."""
        stored = _rows_of(self._shape, self._delta.rows(state, keys), self.table)
        rows = change(stored)
        parts = (self._changes(rows),) if rows.num_rows else ()
        self._land(state, parts, self._versions(shares))


def _rows_of(shape: Shape, rows: pa.Table, name: str) -> pa.Table:
    """What was read of a table, as rows of the shape. Raises SinkFailed if they are none."""
    try:
        return rows.select(shape.schema.names).cast(shape.schema)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SinkFailed(
            f"table '{name}' is not what state '{shape.state}' is stored as: it has the columns "
            f"{', '.join(rows.column_names)} ({error})"
        ) from error
