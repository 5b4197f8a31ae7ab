"""Groups that are staged as executors do it: in parts, by copies of a sink's stager."""

import pickle
from collections.abc import Sequence
from typing import Any

from topology.sink import Batch, Committed, Fence, Piece, Sink, SinkContext, Staged, Stager


def copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own


def staged_apart(stager: Stager | None, *groups: Batch) -> list[Staged]:
    """Stage each group by a stager of its own, as in other processes."""
    return [copied(copied(stager).stage(copied(group))) for group in groups]


def halves(group: Batch) -> tuple[Batch, Batch]:
    """The same rows as two groups, none of which knows how many rows its shares have there."""
    first: list[Piece] = []
    second: list[Piece] = []
    left = group.num_rows // 2
    for piece in group.pieces:
        length = min(left, len(piece))
        first.append(piece[:length])
        second.append(piece[length:])
        left -= length
    taken = group.num_rows // 2
    return (
        Batch(group.sequence, first, taken, group.shares),
        Batch(group.sequence, second, group.num_rows - taken, group.shares),
    )


class StagedApart(Sink[Any]):
    """A sink whose groups are staged in two parts, elsewhere."""

    def __init__(self, inner: Sink[Any]) -> None:
        self.inner = inner
        self.name, self.needs_spark, self.kinds = inner.name, inner.needs_spark, inner.kinds

    def open(self, context: SinkContext) -> None:
        self.inner.open(context)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        return self.inner.fence(fences)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        return self.inner.committed(lines)

    def stage(self, group: Batch) -> Staged:
        parts = staged_apart(self.inner.stager(), *halves(group))
        return self.inner.joined(group.shares, parts)

    def commit(self, staged: Staged) -> None:
        self.inner.commit(staged)

    def discard(self, staged: Staged) -> None:
        self.inner.discard(staged)

    def close(self) -> None:
        self.inner.close()
