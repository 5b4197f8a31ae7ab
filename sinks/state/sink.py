"""The sink that keeps a state: rows are aggregated when they are staged, merged when committed."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import structlog

from sinks.state.deltas import Aggregation, Deltas, Part
from sinks.state.store import StateStore
from sinks.state.values import changed
from topology.errors import AggregateFailed, SinkBusy, SinkFailed, SinkFenced
from topology.sink import (
    Batch,
    Committed,
    Fence,
    Kind,
    Share,
    Sink,
    SinkContext,
    Staged,
)
from topology.state import State

log = structlog.get_logger()

_KINDS: dict[Kind, frozenset[Kind]] = {
    "transactional": frozenset({"transactional"}),
    "opaque": frozenset({"transactional", "opaque"}),
}


class StateSink(Sink[Any]):
    """Keeps a state in a store. Rows are mappings, dataclasses, or columns.

    It keeps opaque transactions if the state is laid out for them.

    A row that lacks a part of its key, or has a value of another type than an aggregate is to
    have, is rejected. Where the topology is not exactly-once, a micro-batch that is tried again
    may count twice.
    """

    kinds = _KINDS["transactional"]

    def __init__(self, store: StateStore, state: State) -> None:
        """Only stores. Raises InvalidTopology when it is not said what the state holds."""
        self.name = state.name
        self.state = state
        self.shape = state.shape
        self.kinds = _KINDS[state.layout]
        self.given = f" with layout='{state.layout}'"
        self.advice = "layout='opaque'"
        self._store = store
        self._aggregation = Aggregation(self.shape, store.refused)
        self._owner = ""  # of rows, before their line
        self._doubtful: tuple[tuple[Share, ...], pa.Table] | None = None
        """What a commit has made whose answer was lost."""

    def open(self, context: SinkContext) -> None:
        """Open the store. Raises SinkFailed."""
        # Names may have slashes, and those of two owners must not come to the same.
        names = (each.replace("%", "%25") for each in (context.pipeline, context.sink))
        self._owner = "".join(each.replace("/", "%2F") + "/" for each in names)
        self._store.open(context, self.shape)
        if not context.exactly_once:
            log.warning(
                "state_may_count_twice",
                state=self.name,
                reason="reliability is not 'exactly-once'",
            )

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """See the contract."""
        return self._store.fence(fences) if fences else []

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """See the contract."""
        return self._store.committed(lines)

    def stage(self, batch: Batch) -> Staged:
        """Aggregate the rows by key and line; see the contract."""
        parts = [
            Part(self._owner + share.line, share.txid, share.num_rows) for share in batch.shares
        ] or [Part(self._owner, 0, batch.num_rows)]
        try:
            deltas, num_rows, rejected = self._aggregation.of(batch.pieces, parts)
        except AggregateFailed as error:
            raise SinkFailed(f"state '{self.name}': {error}") from error
        return Staged(batch.shares, num_rows, (deltas,), rejected)

    def commit(self, staged: Staged) -> None:
        """Merge what was staged into the state, and set the txids; see the contract."""
        (deltas,) = staged.parts
        if staged.shares or staged.num_rows:
            self._update(staged.shares, deltas)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def _update(self, shares: tuple[Share, ...], deltas: Deltas) -> None:
        """Merge into the stored rows, and tell look-ups of the same run what they are now."""
        made: pa.Table | None = None

        def change(stored: pa.Table) -> pa.Table:
            nonlocal made
            try:
                made = changed(self.shape, deltas, stored)
            except AggregateFailed as error:
                raise SinkFailed(str(error)) from error
            return made

        keys = deltas.keys
        if self.shape.has_one_line:  # other lines must not have them
            names = self.shape.key.names
            keys = keys.group_by(names, use_threads=False).aggregate([]).cast(self.shape.key)
        doubtful, self._doubtful = self._doubtful, None
        try:
            self._store.update(shares, keys, change)
        except (SinkBusy, SinkFailed, SinkFenced):
            raise  # nothing was done
        except Exception:
            self._doubtful = None if made is None or not shares else (shares, made)
            raise
        if made is None and doubtful is not None and doubtful[0] == shares:
            made = doubtful[1]  # the try before this one had done it
        if made is not None:
            self.state.tell(made)
