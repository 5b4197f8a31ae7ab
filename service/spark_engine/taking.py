"""The sinks' side of a task: rows are staged as they come, and kept for the driver to commit."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from partition.chunk import Partition
from partition.store import StoredOffset
from partition.transaction import Resumed, TransactionKind
from service.fences import Fences
from service.spark_engine.refusals import Reasons, origins, reason_of
from service.spark_engine.task import TaskRange
from topology.errors import SinkFailed
from topology.sink import (
    Batch,
    Committed,
    Fence,
    Piece,
    Share,
    Sink,
    SinkContext,
    Staged,
    Stager,
)
from transactions.rows import rows_at

log = structlog.get_logger()

_EVERY_TXID = 1 << 62  # a sink that has a range's rows already has those of all its parts


class TakingSink(Sink[Any]):
    """Stands in a task for a sink step: a stager stages, and a commit only remembers.

    `refused` names, by line and offset of their record, rows that the real sink did not take
    before: they are rejected here, so that their record gets its letter. Threads as in the
    contract; `taken` and `discard_all` are for the owner, when nothing is under way.
    """

    def __init__(
        self,
        name: str,
        stager: Stager | None,
        refused: Mapping[str, Mapping[int, Reasons]],
    ) -> None:
        self.name = name
        self._stager = stager
        self._refused = refused
        self._made: list[Staged] = []  # and not discarded
        self.taken: list[Staged] = []
        """What was staged of done transactions, in their order."""

    def open(self, context: SinkContext) -> None:
        """Do nothing: the driver has opened the real sink."""

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Say that nothing is committed: the driver has fenced the real sink."""
        return [Committed(line, epoch, 0) for line, epoch in fences]

    def stage(self, group: Batch) -> Staged:
        """Stage the rows, less those that were refused. Raises as the stager does."""
        refused = self._refused_rows(group)
        kept = np.delete(np.arange(group.num_rows), list(refused))
        if not len(kept):
            return Staged(group.shares, 0, (), refused)
        if self._stager is None:
            raise SinkFailed(f"sink '{self.name}': the task came without its stager")
        staged = self._stager.stage(_only(group, kept) if refused else group)
        self._made.append(staged)
        rejected = {int(kept[row]): reason for row, reason in staged.rejected.items()}
        return Staged(group.shares, staged.num_rows, (staged,), refused | rejected)

    def commit(self, staged: Staged) -> None:
        """Keep what the stager has made."""
        self.taken.extend(staged.parts)

    def discard(self, staged: Staged) -> None:
        """Have the stager discard it."""
        for part in staged.parts:
            self._discard(part)

    def discard_all(self) -> None:
        """Discard all that was made: the task has failed. What cannot be discarded stays."""
        self.taken.clear()
        for staged in list(self._made):
            try:
                self._discard(staged)
            except Exception as error:  # noqa: BLE001 - nobody sees what is left
                log.warning("sink_discard_failed", sink=self.name, error=str(error))

    def close(self) -> None:
        """Do nothing."""

    def _discard(self, staged: Staged) -> None:
        if self._stager is not None:
            self._stager.discard(staged)
        self._made = [each for each in self._made if each is not staged]

    def _refused_rows(self, group: Batch) -> dict[int, str]:
        """Why rows are not to be staged, by their places in the group."""
        found: dict[int, str] = {}
        if not self._refused or group.offsets is None:
            return found
        for row, (line, offset, place) in origins(group, self._refused):
            reason = reason_of(self._refused[line][offset], place)
            if reason is not None:
                found[row] = reason
        return found


class TaskFences(Fences):
    """The sinks' part in opening a task's ranges: each begins anew, and is the driver's.

    Sinks that a range skips have all that its transactions here may hold.
    """

    def __init__(self, kind: TransactionKind, ranges: Sequence[TaskRange]) -> None:
        super().__init__(kind)
        self._skips = {each.partition: each.skips for each in ranges}

    def fence(self, partition: Partition, epoch: int) -> Future[Mapping[str, int]]:  # noqa: ARG002 - the driver's epoch counts
        """Say at once that nothing is committed: the driver has fenced the real sinks."""
        answered: Future[Mapping[str, int]] = Future()
        answered.set_result({})
        return answered

    def resume(
        self, partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
    ) -> Resumed:
        """How the range's transactions begin."""
        skips = dict.fromkeys(self._skips[partition], _EVERY_TXID)
        return replace(super().resume(partition, stored, committed), skips=skips)


def _only(group: Batch, kept: npt.NDArray[np.int64]) -> Batch:
    """The rows of a group at these places, ascending."""
    pieces: list[Piece] = []
    start = 0
    for piece in group.pieces:
        places = _within(kept, start, len(piece))
        start += len(piece)
        if len(places):
            pieces.append(rows_at(piece, places))
    shares: list[Share] = []
    start = 0
    for share in group.shares:
        shares.append(replace(share, num_rows=len(_within(kept, start, share.num_rows))))
        start += share.num_rows
    offsets = None if group.offsets is None else group.offsets[kept]
    return Batch(group.sequence, pieces, len(kept), tuple(shares), offsets)


def _within(places: npt.NDArray[np.int64], start: int, length: int) -> npt.NDArray[np.int64]:
    """Those of ascending places that lie in a run, counted from its start."""
    low, high = np.searchsorted(places, [start, start + length])
    return places[low:high] - start
