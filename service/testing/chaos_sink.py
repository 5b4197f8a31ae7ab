"""A sink that misbehaves by a seed, in front of a sink that does not."""

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa

from service.testing.chaos import ChaosError, check_chances, draws
from sinks.rows import rows_of
from topology.errors import RowsRejected, SinkBusy
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

_BUSY_SECONDS = 0.01


@dataclass(slots=True)
class ChaosSinkCounts:
    """What a ChaosSink did: tries of a batch or a commit, and of them those that it spoiled."""

    writes: int = 0
    busy: int = 0
    failed_before: int = 0  # nothing was written
    failed_after: int = 0  # everything was written, and comes again
    rejected_rows: int = 0


class ChaosSink(TransactionalSink[Row]):
    """Stands in front of a sink and makes some of its writes fail.

    A try of a batch raises SinkBusy with the chance `busy`, fails with the chance
    `fail_before` with nothing written, and with the chance `fail_after` after all of it was
    written, so that its rows come twice; it takes up to `delay_seconds` longer. Each row is
    rejected with the chance `reject`, always or never. Which these are depends on the seed, on
    the number of the batch and the try, and on the row's `repr`. `counts` says what was done.

    In front of a sink that keeps transactions it keeps them as well: commits fail as writes do,
    and with `fail_after` they are done and only their reply is lost.

    The test kit replaces the sink behind it by one that keeps its rows. Raises ValueError
    for a chance that is none.
    """

    kinds: frozenset[Kind] = frozenset()  # those of the sink behind it

    def __init__(
        self,
        sink: Sink[Row],
        *,
        seed: int,
        busy: float = 0.0,
        fail_before: float = 0.0,
        fail_after: float = 0.0,
        reject: float = 0.0,
        delay_seconds: float = 0.0,
    ) -> None:
        check_chances(busy=busy, fail_before=fail_before, fail_after=fail_after)
        check_chances(reject=reject)
        if delay_seconds < 0:
            raise ValueError(f"delay_seconds={delay_seconds}; 0 or more is allowed")
        self.name = sink.name
        self.batch_rows = sink.batch_rows
        self.sink = sink
        self.counts = ChaosSinkCounts()
        self._seed = seed
        self._busy = busy
        self._fail_before = fail_before
        self._fail_after = fail_after
        self._reject = reject
        self._delay_seconds = delay_seconds
        self._trying: int | str | None = None
        self._tries = 0
        self._staged = 0

    def around(self, sink: Sink[Row]) -> "ChaosSink[Row]":
        """The same chaos in front of another sink; both count in the same `counts`."""
        other = copy(self)
        other.sink = sink
        return other

    def open(self, context: SinkContext) -> None:
        """Open the inner sink."""
        self.sink.open(context)

    def write(self, batch: Batch) -> None:
        """Write the batch, or fail; see the class."""
        fails_after = self._may_fail(batch.sequence, f"batch {batch.sequence}")
        rejected = self._write_good(batch)
        if fails_after:
            self._fail_after_it(f"batch {batch.sequence}")
        if rejected:
            raise RowsRejected(rejected)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs in the inner sink."""
        return self._behind.fence(fences)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """What the inner sink says."""
        return self._behind.committed(lines)

    def stage(self, group: Group) -> Staged:
        """Stage in the inner sink what is not to be rejected."""
        rejected = self._refused(group.pieces)
        if group.number != self._staged:
            self._staged = group.number
            self._count_rejected(rejected)
        good = [index for index in range(group.num_rows) if index not in rejected]
        kept = group
        if rejected:
            shares = _without_rows(group.shares, rejected)
            kept = Group(group.number, shares, _without(group.pieces, rejected), len(good))
        staged = self._behind.stage(kept)
        rejected |= {good[index]: reason for index, reason in staged.rejected.items()}
        return replace(staged, shares=group.shares, rejected=rejected)

    def commit(self, staged: Staged) -> None:
        """Commit in the inner sink, or fail; see the class."""
        shares = ", ".join(f"{share.line} {share.txid}" for share in staged.shares)
        fails_after = self._may_fail(shares, shares)
        self._behind.commit(staged)
        if fails_after:
            self._fail_after_it(shares)

    def discard(self, staged: Staged) -> None:
        """Discard it in the inner sink."""
        self._behind.discard(staged)

    def close(self) -> None:
        """Close the inner sink."""
        self.sink.close()

    @property
    def _behind(self) -> TransactionalSink[Row]:
        """The inner sink, where a topology was allowed to be exactly-once."""
        return cast("TransactionalSink[Row]", self.sink)

    def _may_fail(self, work: int | str, what: str) -> bool:
        """Fail before the work, or say whether to fail after it."""
        if work != self._trying:
            self._trying, self._tries = work, 0
        self._tries += 1
        self.counts.writes += 1
        chance, delay = draws(self._seed, work, self._tries)
        if self._delay_seconds:
            time.sleep(delay * self._delay_seconds)
        if chance < self._busy:
            self.counts.busy += 1
            raise SinkBusy(_BUSY_SECONDS)
        if chance < self._busy + self._fail_before:
            self.counts.failed_before += 1
            raise ChaosError(f"chaos fails {what} before it is written")
        return chance < self._busy + self._fail_before + self._fail_after

    def _fail_after_it(self, what: str) -> None:
        self.counts.failed_after += 1
        raise ChaosError(f"chaos fails {what} after it was written")

    def _write_good(self, batch: Batch) -> dict[int, str]:
        """Write what is not to be rejected; return what was, by either of the two sinks."""
        rejected = self._refused(batch.pieces)
        if self._tries == 1:
            self._count_rejected(rejected)
        good = [index for index in range(batch.num_rows) if index not in rejected]
        if not good:
            return rejected
        pieces = _without(batch.pieces, rejected) if rejected else batch.pieces
        try:
            self.sink.write(Batch(batch.sequence, pieces, len(good)))
        except RowsRejected as rejection:
            rejected |= {good[index]: reason for index, reason in rejection.reasons.items()}
        return rejected

    def _refused(self, pieces: list[Piece]) -> dict[int, str]:
        if not self._reject:
            return {}
        return {
            index: "chaos rejects this row"
            for index, row in enumerate(rows_of(pieces))
            if draws(self._seed, "row", repr(row))[0] < self._reject
        }

    def _count_rejected(self, rejected: dict[int, str]) -> None:
        self.counts.rejected_rows += len(rejected)


def _without_rows(shares: Sequence[Share], rejected: dict[int, str]) -> tuple[Share, ...]:
    """The shares with fewer rows."""
    fewer: list[Share] = []
    start = 0
    for share in shares:
        end = start + share.num_rows
        gone = sum(start <= index < end for index in rejected)
        fewer.append(replace(share, num_rows=share.num_rows - gone))
        start = end
    return tuple(fewer)


def _without(pieces: list[Piece], rejected: dict[int, str]) -> list[Piece]:
    """The pieces without the rejected rows."""
    kept: list[Piece] = []
    start = 0
    for piece in pieces:
        good = [place for place in range(len(piece)) if start + place not in rejected]
        start += len(piece)
        if isinstance(piece, pa.RecordBatch):
            kept.append(piece.take(pa.array(good, pa.int64())))
        else:
            kept.append([piece[place] for place in good])
    return [piece for piece in kept if len(piece)]
