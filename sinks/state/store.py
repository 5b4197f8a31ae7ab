"""State stores: their contract, the sink that writes to one, and the store in memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from sinks.shares import MemoryLines
from sinks.state.merging import Aggregation, Deltas, LineRows, merge, row_indexes
from topology.errors import AggregateFailed, SinkBusy, SinkFailed, SinkFenced
from topology.sink import Batch, Committed, Fence, Kind, Share, Sink, SinkContext, Staged
from topology.state import Shape, State

log = structlog.get_logger()

Change: TypeAlias = Callable[[pa.Table], pa.Table]

_KINDS: dict[Kind, frozenset[Kind]] = {
    "transactional": frozenset({"transactional"}),
    "opaque": frozenset({"transactional", "opaque"}),
}


class StateStore(ABC):
    """A place for one state, or for those of several pipelines that have one shape.

    `open` and `close` are called by the owner thread, `fence`, `committed` and `update` by the
    sink's commit thread, `refused` by its staging thread, `load` by any. Lines are told apart by
    pipeline and sink (the context's), as every sink's are. Rows have `shape.schema`, and no two
    have the same `shape.row_key`.
    """

    @abstractmethod
    def open(self, context: SinkContext, shape: Shape) -> None:
        """Check that the place is there, or can be, and has this shape. Raises SinkFailed."""

    @abstractmethod
    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """As Sink.fence."""

    @abstractmethod
    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """As Sink.committed."""

    @abstractmethod
    def update(self, shares: Sequence[Share], keys: pa.Table, change: Change) -> None:
        """Change the rows of some keys and set every share's txid, all at once or nothing.

        In one transaction: see by `is_to_commit` whether the shares are to be committed, and do
        nothing if not; read the rows that have one of `keys`; replace them by what `change`
        returns; set the lines to their epochs and txids. There are no shares where the topology is
        not exactly-once: then the rows are always changed.

        `keys` have the columns of `shape.row_schema`; or, if `shape.has_one_line`, only those of
        `shape.key`, and then mean the rows of every line. Each is there once; there may be none.
        `change` gets and returns tables of `shape.schema`, in any order of rows; for each row that
        it gets it returns one of the same `shape.row_key`, and perhaps others, of new keys. It may
        be called again, with rows that are read anew.

        Raises SinkFenced, SinkBusy and SinkFailed as Sink.commit does, and what
        `change` raises, with nothing done; after anything else the outcome is unknown.
        """

    @abstractmethod
    def load(self, context: SinkContext, shape: Shape) -> pa.Table:
        """Return all committed rows, of `shape.schema`; none where there is no table.

        Needs no `open`, and may run beside everything else. Raises SinkFailed when the stored
        rows have another shape.
        """

    def refused(self, rows: pa.Table) -> Mapping[int, str]:
        """Return the rows that this place cannot hold, by index, each with the reason.

        They have the key's columns, and for each aggregate that has it what one row adds.
        """
        del rows
        return {}

    def close(self) -> None:  # noqa: B027 - not every place has connections
        """Release what `open` took. May be called twice."""

    def sink(self, state: State) -> Sink[Any]:
        """Return the sink that keeps a state here."""
        return StateSink(self, state)


class StateSink(Sink[Any]):
    """Keeps a state in a store: rows are aggregated when staged, and merged when committed.

    Rows are mappings, dataclasses, or columns. It keeps opaque transactions if the state is laid
    out for them. A row is rejected that lacks a part of its key, or has a value of another type
    than an aggregate takes. Where the topology is not exactly-once, a micro-batch that is repeated
    may count twice.
    """

    kinds = _KINDS["transactional"]

    def __init__(self, store: StateStore, state: State) -> None:
        """Only stores. Raises InvalidTopology when the state has no aggregates."""
        self.name = state.name
        self.state = state
        self.shape = state.shape
        self.kinds = _KINDS[state.layout]
        self.given = f" with layout='{state.layout}'"
        self.advice = "layout='opaque'"
        self._store = store
        self._aggregation = Aggregation(self.shape, store.refused)
        self._owner = ""  # of rows, before their line
        # The rows of a commit whose outcome is unknown.
        self._uncertain: tuple[tuple[Share, ...], pa.Table] | None = None

    def open(self, context: SinkContext) -> None:
        # Names may have slashes, and those of two owners must not come to the same.
        names = (each.replace("%", "%25") for each in (context.pipeline, context.sink))
        self._owner = "".join(each.replace("/", "%2F") + "/" for each in names)
        self._store.open(context, self.shape)
        if not context.exactly_once:
            log.warning(
                "state_may_count_twice", state=self.name, reason="reliability is not 'exactly-once'"
            )

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        return self._store.fence(fences) if fences else []

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        return self._store.committed(lines)

    def stage(self, batch: Batch) -> Staged:
        parts = [
            LineRows(self._owner + share.line, share.txid, share.num_rows) for share in batch.shares
        ] or [LineRows(self._owner, 0, batch.num_rows)]
        try:
            deltas, num_rows, rejected = self._aggregation.of(batch.pieces, parts)
        except AggregateFailed as error:
            raise SinkFailed(f"state '{self.name}': {error}") from error
        return Staged(batch.shares, num_rows, (deltas,), rejected)

    def commit(self, staged: Staged) -> None:
        """Merge into the stored rows, and tell look-ups of the same run what they are now."""
        if not (staged.shares or staged.num_rows):
            return
        shares, deltas = staged.shares, staged.parts[0]
        made: pa.Table | None = None

        def change(stored: pa.Table) -> pa.Table:
            nonlocal made
            try:
                made = merge(self.shape, deltas, stored)
            except AggregateFailed as error:
                raise SinkFailed(str(error)) from error
            return made

        uncertain, self._uncertain = self._uncertain, None
        try:
            self._store.update(shares, self._keys(deltas), change)
        except (SinkBusy, SinkFailed, SinkFenced):
            raise  # nothing was done
        except Exception:
            self._uncertain = None if made is None or not shares else (shares, made)
            raise
        if made is None and uncertain is not None and uncertain[0] == shares:
            made = uncertain[1]  # the attempt before this one had done it
        if made is not None:
            self.state.publish(made)

    def close(self) -> None:
        self._store.close()

    def _keys(self, deltas: Deltas) -> pa.Table:
        if not self.shape.has_one_line:
            return deltas.keys
        grouped = deltas.keys.group_by(self.shape.key.names, use_threads=False)
        return grouped.aggregate([]).cast(self.shape.key)  # no other line may have them


class _Shared:
    def __init__(self) -> None:
        self.lines = MemoryLines()
        self.rows: pa.Table | None = None


class MemoryState(StateStore):
    """Keeps state as long as it lives, for tests and trials.

    One made `beside` another has the same rows, as another process would have.
    """

    def __init__(self, *, beside: "MemoryState | None" = None) -> None:
        self._shared: _Shared = _Shared() if beside is None else beside._shared  # noqa: SLF001
        self._owner = ("", "")
        self._shape: Shape | None = None

    def open(self, context: SinkContext, shape: Shape) -> None:
        self._owner, self._shape = (context.pipeline, context.sink), shape
        self._rows(shape)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        return self._shared.lines.fence(fences, self._owner)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        return self._shared.lines.committed(lines, self._owner)

    def update(self, shares: Sequence[Share], keys: pa.Table, change: Change) -> None:
        shape, lines = self._shape, self._shared.lines
        if shape is None:
            raise SinkFailed("the state is not open")
        with lines.lock:
            if not lines.is_to_commit(shares, self._owner):
                return
            rows = self._rows(shape)
            found = row_indexes(rows, keys, keys.column_names).is_valid()
            others = rows.filter(pc.invert(found))
            self._shared.rows = pa.concat_tables([others, change(rows.filter(found))])
            lines.commit(shares, self._owner)

    def load(self, context: SinkContext, shape: Shape) -> pa.Table:
        del context
        return self._rows(shape)

    def _rows(self, shape: Shape) -> pa.Table:
        with self._shared.lines.lock:
            rows = self._shared.rows
            if rows is None:
                rows = self._shared.rows = shape.schema.empty_table()
        if not rows.schema.equals(shape.schema):
            raise SinkFailed(
                f"state '{shape.state}': found the columns {rows.schema.names}, expected "
                f"{shape.schema.names} of the same types"
            )
        return rows
