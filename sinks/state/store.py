"""What a place for state promises: rows by key and line, changed together with txids."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from topology.sink import Committed, Fence, Share, Sink, SinkContext
from topology.state import Shape, State

Change: TypeAlias = Callable[[pa.Table], pa.Table]


class StateStore(ABC):
    """A place for one state, or for those of several pipelines that have one shape.

    `open` and `close` are called by the owner thread, `fence`, `committed` and `update` by the
    sink's commit thread, `refused` by its staging thread, `load` by any. Lines are told apart by
    pipeline and sink (the context's), as every sink's are. Rows have `shape.schema`, and no two
    have the same `shape.row_key`.
    """

    @abstractmethod
    def open(self, context: SinkContext, shape: Shape) -> None:
        """Touch the world: check that the place is there, or can be, and has this shape.

        Raises SinkFailed if not.
        """

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
        nothing if not; read the rows that have one of `keys`; put what `change` makes of them in
        their place; set the lines to their epochs and txids. There are no shares where the
        topology is not exactly-once: then it is always to be done.

        `keys` have the columns of `shape.row_schema`; or, if `shape.has_one_line`, only those of
        `shape.key`, and then mean the rows of every line. Each is there once; there may be none
        at all. `change` gets
        and returns tables of `shape.schema`, in any order of rows; for each row that it gets it
        returns one of the same `shape.row_key`, and perhaps others, of keys that had none. It may
        be called again, with rows that are read anew.

        Raises SinkFenced, SinkBusy and SinkFailed as Sink.commit does, and what
        `change` raises, with nothing done; after anything else the outcome is not known.
        """

    @abstractmethod
    def load(self, context: SinkContext, shape: Shape) -> pa.Table:
        """All rows, of `shape.schema`, as committed when it is called; none where is no table.

        Needs no `open`, and may run beside everything else. Raises SinkFailed when what is there
        has another shape.
        """

    def refused(self, rows: pa.Table) -> Mapping[int, str]:
        """Rows that this place cannot hold, by their places, each with the reason.

        They have the key's columns, and for each aggregate that has it what one row adds.
        """
        del rows
        return {}

    @abstractmethod
    def close(self) -> None:
        """Let go of what `open` took. May be called twice."""

    def sink(self, state: State) -> Sink[Any]:
        """What keeps a state here."""
        from sinks.state.sink import StateSink  # noqa: PLC0415 - it imports this module

        return StateSink(self, state)
