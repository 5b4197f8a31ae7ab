"""Sinks that hand rows to code of the user's own: a function, or a target that keeps txids."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from sinks.rows import fitting_rows, rows_of
from sinks.shares import check_fences, is_to_commit
from sinks.tries import check_rejected
from topology.errors import RowsRejected, SinkFailed
from topology.schema import schema_of
from topology.sink import Batch, Piece, Row, Sink, SinkContext
from topology.transactional import (
    Committed,
    Fence,
    Group,
    Kind,
    Share,
    Staged,
    TransactionalSink,
)

Taken = TypeVar("Taken", contravariant=True)

# The code behind it is likelier to send rows one by one than to write files.
_BATCH_ROWS = 1_000

_FENCED: frozenset[Kind] = frozenset({"transactional", "opaque"})
_UNFENCED: frozenset[Kind] = frozenset({"transactional"})


class Target(Protocol[Taken]):
    """A store that changes rows and txids at once: all of a `write`, or nothing.

    It remembers (epoch, txid) per line, a string such as "orders[3]"; several processes may write
    it at the same time. A sink's thread calls it, one call at a time; what it raises is taken as
    passing and tried again, but for SinkFailed.

    It may also have `refused(rows)`, which another thread calls while a `write` is under way: by
    place, why the store would not take a row, as trying it and rolling back tells. Such rows
    become dead letters, and no `write` gets them.
    """

    def last(self, line: str) -> tuple[int, int]:
        """The epoch and the txid that stand at the line, as they are now; 0, 0: none do."""
        ...

    def write(self, rows: Sequence[Taken], shares: Sequence[Share]) -> None:
        """In one transaction: set each share's line to its epoch and txid, and write the rows.

        Raises, and leaves all as it was, if a line has a higher epoch than its share, or has its
        txid or a higher one: `last` is asked then. There are no shares where the topology is not
        exactly-once.
        """
        ...


@runtime_checkable
class FencedTarget(Target[Taken], Protocol[Taken]):
    """A target that can set an epoch by itself."""

    def fence(self, line: str, epoch: int) -> None:
        """Set the line's epoch, unless it is as high, and leave its txid as it is."""
        ...


@runtime_checkable
class _RefusingTarget(Target[Taken], Protocol[Taken]):
    def refused(self, rows: Sequence[Taken]) -> Mapping[int, str]: ...


class ForeachSink(Sink[Row]):
    """Calls a function with the rows of each micro-batch: at least once.

    It returns when all rows are durable, and may raise RowsRejected, SinkBusy and SinkFailed, as
    Sink.write does; after anything else it is called again with the same rows. Rows of a
    RecordBatch are dictionaries.
    """

    batch_rows = _BATCH_ROWS

    def __init__(self, write: Callable[[list[Row]], object], *, name: str | None = None) -> None:
        self.name = name or str(getattr(write, "__name__", "foreach"))
        self._write = write

    def open(self, context: SinkContext) -> None:
        """Do nothing: what the function needs is its own affair."""

    def write(self, batch: Batch) -> None:
        """Call the function."""
        self._write(list(rows_of(batch.pieces)))

    def close(self) -> None:
        """Do nothing."""


class TransactionalForeachSink(TransactionalSink[Row], Generic[Row]):
    """Writes to a Target, which makes rows durable exactly once, if it keeps its promises.

    One without `fence` keeps transactional transactions only: a former owner may still commit
    what its successor is about to, and it is the same rows. With a schema, rows that do not fit
    are rejected before the target sees them; so are those that it says it refuses. Rows of a
    RecordBatch are dictionaries.
    """

    batch_rows = _BATCH_ROWS

    def __init__(
        self,
        target: Target[Row],
        *,
        schema: type[Any] | pa.Schema | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or type(target).__name__
        self.schema = None if schema is None else schema_of(schema)
        self._target = target
        self.kinds = _FENCED if isinstance(target, FencedTarget) else _UNFENCED
        self.advice = "a target that has fence(line, epoch)"

    def open(self, context: SinkContext) -> None:
        """Do nothing: what the target needs is its own affair."""

    def write(self, batch: Batch) -> None:
        """Write the rows without a txid. Raises RowsRejected."""
        rows, rejected = self._taken(batch.pieces, batch.num_rows)
        self._put(rows, ())
        if rejected:
            raise RowsRejected(rejected)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs, if the target can; see the contract."""
        lines = [fence.line for fence in fences]
        check_fences(fences, self.committed(lines))
        if isinstance(self._target, FencedTarget):
            for fence in fences:
                self._target.fence(fence.line, fence.epoch)
        found = self.committed(lines)
        check_fences(fences, found)
        return [each._replace(epoch=fence.epoch) for fence, each in zip(fences, found, strict=True)]

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Ask the target."""
        return [Committed(line, *self._target.last(line)) for line in lines]

    def stage(self, group: Group) -> Staged:
        """Set apart the rows that do not fit, and those that the target refuses."""
        rows, rejected = self._taken(group.pieces, group.num_rows)
        return Staged(group.shares, len(rows), (rows,), rejected)

    def commit(self, staged: Staged) -> None:
        """Have the target write rows and txids; see the contract."""
        lines = [share.line for share in staged.shares]
        if not is_to_commit(staged.shares, self.committed(lines)):
            return
        (rows,) = staged.parts
        try:
            self._put(rows, staged.shares)
        except Exception:
            # Someone was in between: a successor, or an earlier try of ours.
            if is_to_commit(staged.shares, self.committed(lines)):
                raise

    def discard(self, staged: Staged) -> None:
        """Do nothing: the target has not seen the rows."""

    def close(self) -> None:
        """Do nothing."""

    def _taken(self, pieces: Sequence[Piece], num_rows: int) -> tuple[list[Any], dict[int, str]]:
        """The rows that are to be written, and by place why the others are not."""
        rows, rejected = fitting_rows(pieces, self.schema)
        if not isinstance(self._target, _RefusingTarget):
            return rows, rejected
        refused = self._target.refused(rows)
        check_rejected(refused, len(rows), self.name)
        if not refused:
            return rows, rejected
        places = [place for place in range(num_rows) if place not in rejected]
        rejected |= {places[row]: reason for row, reason in refused.items()}
        return [row for number, row in enumerate(rows) if number not in refused], rejected

    def _put(self, rows: list[Any], shares: Sequence[Share]) -> None:
        try:
            self._target.write(rows, shares)
        except RowsRejected as error:  # whoever heard of it would take the others for durable
            raise SinkFailed(
                f"target '{self.name}' rejected rows in write(), which writes all of them or "
                "nothing; refused(rows) is where it says which ones it does not take"
            ) from error
