"""Raises the epochs of newly claimed partitions in every sink, before they are read."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from partition.errors import Fenced
from partition.interfaces import StoredOffset
from partition.records import Partition, Position, Resumed, TransactionKind, Transactions
from topology.errors import SinkFenced
from topology.sink import Committed, Fence
from transactions.transaction import resumed


class FencingWriter(Protocol):
    """A sink's writer, as far as fences go."""

    def fence(self, fences: Sequence[Fence]) -> Future[list[Committed]]:
        """Raise epochs in the background; see `SinkWriter.fence`."""


@dataclass(frozen=True, slots=True)
class _Request:
    partition: Partition
    fence: Fence
    ended: Future[Mapping[str, int]]
    committed: dict[str, int] = field(default_factory=dict)  # by sink, as they answer


class _Asked(NamedTuple):
    answer: Future[list[Committed]]
    requests: list[_Request]


class EpochFencer:
    """Fences partitions in every sink as they are opened: a `partition.recovery.Fencing`.

    The former owner of a partition may still be about to commit. So each sink first gets the new
    epoch, and then says what it has (ADR 0031: claim, fence, read, fetch). Requests that wait at
    the same time go to a sink in one call. The owner thread calls everything.
    """

    def __init__(self, kind: TransactionKind, writers: Mapping[str, FencingWriter]) -> None:
        """`writers` are the sinks', by their steps' names."""
        self._kind = kind
        self._writers = writers
        self._waiting: dict[str, list[_Request]] = {name: [] for name in writers}
        self._asked: dict[str, _Asked] = {}

    def fence(self, partition: Partition, epoch: int) -> Future[Mapping[str, int]]:
        request = _Request(partition, Fence(str(partition), epoch), Future())
        for waiting in self._waiting.values():
            waiting.append(request)
        return request.ended

    def begin(self, partition: Partition, position: Position) -> Resumed:
        del partition
        return Resumed(position, Transactions(self._kind))

    def resume(
        self, partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
    ) -> Resumed:
        return resumed(partition, stored, committed, self._kind)

    def poll(self) -> None:
        """Take the sinks' answers, and ask them what waits. Raises SinkFailed, WriterStopped."""
        for name, writer in self._writers.items():
            asked = self._asked.get(name)
            if asked is not None:
                if not asked.answer.done():
                    continue
                del self._asked[name]
                self._take(name, asked)
            # A request ends early if another sink refused it.
            waiting = [each for each in self._waiting[name] if not each.ended.done()]
            self._waiting[name] = []
            if waiting:
                answer = writer.fence([each.fence for each in waiting])
                self._asked[name] = _Asked(answer, waiting)

    def _take(self, sink: str, asked: _Asked) -> None:
        try:
            committed = asked.answer.result()
        except SinkFenced as error:
            for each in asked.requests:
                if each.fence.line != error.line:
                    self._waiting[sink].append(each)
                elif not each.ended.done():
                    each.ended.set_exception(Fenced(each.partition, str(error)))
            return
        for each, found in zip(asked.requests, committed, strict=True):
            each.committed[sink] = found.txid
            if len(each.committed) == len(self._writers) and not each.ended.done():
                each.ended.set_result(each.committed)
