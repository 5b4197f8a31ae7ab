"""Raises the epochs of newly claimed partitions in every sink, before they are read."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from partition.errors import Fenced
from partition.interfaces import StoredOffset
from partition.records import Partition, Resumed, TransactionKind
from sinks.writer import SinkWriter
from topology.errors import SinkFenced
from topology.sink import Committed, Fence
from transactions.transaction import resumed


@dataclass(frozen=True, slots=True)
class _Request:
    partition: Partition
    fence: Fence
    ended: Future[Mapping[str, int]]
    committed: dict[str, int] = field(default_factory=dict)  # by sink, as they answer


@dataclass(slots=True)
class _SinkRequests:
    writer: SinkWriter
    waiting: list[_Request] = field(default_factory=list)
    asked: list[_Request] = field(default_factory=list)
    answer: Future[list[Committed]] | None = None


class EpochFencer:
    """Fences partitions in every sink as they are opened: a `partition.recovery.Fencing`.

    The former owner of a partition may still be about to commit. So each sink first gets the new
    epoch, and then says what it has (ADR 0031: claim, fence, read, fetch). Requests that wait at
    the same time go to a sink in one call. The owner thread calls everything.
    """

    def __init__(self, kind: TransactionKind, writers: Mapping[str, SinkWriter]) -> None:
        self.kind = kind
        self._sinks = {name: _SinkRequests(writer) for name, writer in writers.items()}

    def fence(self, partition: Partition, epoch: int) -> Future[Mapping[str, int]]:
        request = _Request(partition, Fence(str(partition), epoch), Future())
        for sink in self._sinks.values():
            sink.waiting.append(request)
        return request.ended

    def resume(
        self, partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
    ) -> Resumed:
        return resumed(partition, stored, committed, self.kind)

    def poll(self) -> None:
        """Take the sinks' answers, and ask them what waits. Raises SinkFailed, WriterStopped."""
        for name, sink in self._sinks.items():
            if sink.answer is not None:
                if not sink.answer.done():
                    continue
                self._take(name, sink, sink.answer)
                sink.answer = None
            # A request ends early if another sink refused it.
            sink.asked = [each for each in sink.waiting if not each.ended.done()]
            sink.waiting = []
            if sink.asked:
                sink.answer = sink.writer.fence([each.fence for each in sink.asked])

    def _take(self, name: str, sink: _SinkRequests, answer: Future[list[Committed]]) -> None:
        try:
            committed = answer.result()
        except SinkFenced as error:
            for each in sink.asked:
                if each.fence.line != error.line:
                    sink.waiting.append(each)
                elif not each.ended.done():
                    each.ended.set_exception(Fenced(each.partition, str(error)))
            return
        for each, found in zip(sink.asked, committed, strict=True):
            each.committed[name] = found.txid
            if len(each.committed) == len(self._sinks) and not each.ended.done():
                each.ended.set_result(each.committed)
