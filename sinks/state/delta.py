"""State in a Delta Lake table."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from sinks.names import checked_table
from sinks.paths import local_path, local_uri, table_path
from sinks.spark.delta.kernel import DeltaLog
from sinks.spark.delta.keyed import plain_keys
from sinks.spark.delta.reading import FileReader
from sinks.spark.delta.sink import DeltaSink
from sinks.spark.local_table import Conflict, LocalTable
from sinks.state.sink import StateSink
from sinks.state.store import Change, StateStore
from topology.compaction import Compaction
from topology.errors import SinkFailed
from topology.sink import Sink, SinkContext
from topology.state import Shape, State
from topology.transactional import Committed, Fence, Share


class DeltaState(StateStore):
    """Keeps state in a Delta Lake table below the warehouse. Needs Delta's jars in Spark.

    One commit of Delta Kernel changes rows and txids. The files that hold any of the rows are
    written anew, so a commit costs what the state's size does, unless keys that come together
    stand together: a state of millions of keys is better kept in a database. VACUUM removes what
    the files were. Who else reads the table sees one row per key and line.
    """

    needs_spark = True
    needs_jars = ("delta",)

    def __init__(self, table: str) -> None:
        """Only stores. Raises InvalidSchema for a name that is none."""
        self.table = checked_table(table)
        self._sink: _StateTable | None = None

    def sink(self, state: State) -> Sink[Any]:
        """See the contract. Raises InvalidSchema when Delta cannot have such a table."""
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
        """Exchange files and set the txids, in one commit; see the contract."""
        self._opened().update(shares, keys, change)

    def load(self, context: SinkContext, shape: Shape) -> pa.Table:
        """Read the table's files; see the contract."""
        folder = local_path(table_path(context.warehouse, self.table))
        if folder is None or context.spark is None:
            raise SinkFailed(f"table '{self.table}' can be read as state on a local disk, by Spark")
        table = LocalTable(folder, context.spark, self.table, partial(_log_of, folder))

        def read(log: DeltaLog) -> pa.Table:
            facts = log.read()
            if facts is None:
                return shape.schema.empty_table()
            reader = FileReader(folder, facts)
            rows = [reader.read(file) for file in log.files().values()]
            return _rows_of(shape, rows, self.table)

        return table.run(read, "load")

    def compact(self, target_bytes: int) -> Compaction:
        """Join small files; see Compactable."""
        return self._opened().compact(target_bytes)

    def data_files(self) -> list[str]:
        """The files that make up the table now; see Compactable."""
        return self._opened().data_files()

    def close(self) -> None:
        """Let go of the table."""
        if self._sink is not None:
            self._sink.close()

    def _opened(self) -> "_StateTable":
        if self._sink is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return self._sink


class DeltaStateSink(StateSink):
    """Keeps a state in a table of files, which can be joined."""

    def __init__(self, store: DeltaState, state: State) -> None:
        super().__init__(store, state)
        self._table = store

    def compact(self, target_bytes: int) -> Compaction:
        """Join small files; see Compactable."""
        return self._table.compact(target_bytes)

    def data_files(self) -> list[str]:
        """The files that make up the table now; see Compactable."""
        return self._table.data_files()


class _StateTable(DeltaSink[Any]):
    """A table of which rows are read, changed and put back in one commit."""

    def __init__(self, table: str, shape: Shape) -> None:
        self._shape = shape
        self._key = shape.key.names if shape.has_one_line else shape.row_key
        self._updates = 0
        super().__init__(table, schema=shape.schema, key=self._key)

    def update(self, shares: Sequence[Share], keys: pa.Table, change: Change) -> None:
        self._ready()
        self._check_upserts()
        wanted = plain_keys(keys, self.schema, self._key)
        self._updates += 1

        def step(table: DeltaLog) -> None:
            if not shares or self._is_to_commit(table, shares):
                self._exchange(table, wanted, change, shares)

        self._settle(step, "update")

    def _exchange(
        self, table: DeltaLog, keys: pa.Table, change: Change, shares: Sequence[Share]
    ) -> None:
        """Put rows in the place of those that have the keys, whatever the table is like by now."""
        way = self._examined(table)
        if way is None or way.merge is None:
            raise SinkFailed(f"table '{self.table}' was changed while state was written to it")
        taken: list[pa.Table] = []
        merged = way.merge.without(table.files().values(), keys, self._updates, taken)
        files = merged.files
        try:
            rows = change(_rows_of(self._shape, taken, self.table))
            if rows.num_rows:
                files = [*way.files.write(rows, self._updates), *files]
        except BaseException:
            way.files.remove(files)
            raise
        try:
            self._add(table, files, self._versions(shares), merged.removed)
        except Conflict:
            way.files.remove(files)
            raise


def _rows_of(shape: Shape, tables: Sequence[pa.Table], name: str) -> pa.Table:
    """What was read of a table, as rows of the shape. Raises SinkFailed if they are none."""
    if not tables:
        return shape.schema.empty_table()
    rows = pa.concat_tables(tables)
    try:
        return rows.select(shape.schema.names).cast(shape.schema)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SinkFailed(
            f"table '{name}' is not what state '{shape.state}' is stored as: it has the columns "
            f"{', '.join(rows.column_names)} ({error})"
        ) from error


def _log_of(folder: Path, session: Any) -> DeltaLog:
    return DeltaLog(session, local_uri(folder), folder)
