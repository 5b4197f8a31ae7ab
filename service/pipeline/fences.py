"""Raises the epochs of newly claimed partitions in every sink, before they are read."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from partition.errors import Fenced
from partition.interfaces import StoredOffset
from partition.records import Partition, Position, Resumed, TransactionKind, Transactions
from sinks.writer import FencesRaised
from topology.errors import SinkFenced
from topology.sink import Fence
from transactions.rows import resumed


class FencedSink(Protocol):
    """A sink's end, as far as fences go."""

    @property
    def name(self) -> str:
        """The step's name."""

    def fence(self, fences: list[Fence]) -> None:
        """Raise epochs in the background; FencesRaised comes."""


@dataclass(slots=True)
class _Request:
    """A partition's fence, and what the sinks said of it so far."""

    partition: Partition
    fence: Fence
    ended: Future[Mapping[str, int]]
    committed: dict[str, int] = field(default_factory=dict)


class Fences:
    """The sinks' part in opening a partition; `partition.recovery` calls it.

    Whoever had the partition before may still be about to commit. So each sink is first told the
    new epoch, and then asked what it has (ADR 0031: claim, fence, read, fetch). What is asked
    at the same time goes to a sink in one call. The owner thread calls everything.
    """

    def __init__(self, kind: TransactionKind, sinks: Iterable[FencedSink] = ()) -> None:
        self._kind = kind
        self._sinks = {sink.name: sink for sink in sinks}
        self._waiting: defaultdict[str, list[_Request]] = defaultdict(list)
        self._asked: dict[str, list[_Request]] = {}

    def bind(self, sinks: Iterable[FencedSink]) -> None:
        """Learn which sinks there are, before anything is asked: the spark engine makes them."""
        self._sinks = {sink.name: sink for sink in sinks}

    def fence(self, partition: Partition, epoch: int) -> Future[Mapping[str, int]]:
        """Fence a partition in every sink; ends with the txid that each has committed.

        Fails with partition.errors.Fenced when a sink knows of a later owner.
        """
        ended: Future[Mapping[str, int]] = Future()
        request = _Request(partition, Fence(str(partition), epoch), ended)
        for name in self._sinks:
            self._waiting[name].append(request)
        return ended

    def begin(self, partition: Partition, position: Position) -> Resumed:  # noqa: ARG002 - see Fencing
        """How a partition's transactions start that has none yet."""
        return Resumed(position, Transactions(self._kind))

    def resume(
        self, partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
    ) -> Resumed:
        """How they go on; see `transactions.rows`, which raises."""
        return resumed(partition, stored, committed, self._kind)

    def submit(self) -> None:
        """Hand what waits to the sinks that have answered what they were asked before."""
        for name, sink in self._sinks.items():
            if name in self._asked:
                continue
            waiting = [each for each in self._waiting.pop(name, []) if not each.ended.done()]
            if waiting:
                self._asked[name] = waiting
                sink.fence([each.fence for each in waiting])

    def take(self, sink: str, raised: FencesRaised) -> None:
        """Learn what a sink answered. Raises what ends the run."""
        asked = self._asked.pop(sink)
        if isinstance(raised.error, SinkFenced):
            for each in asked:
                if each.fence.line == raised.error.line:
                    _fail(each, raised.error)
                else:
                    self._waiting[sink].append(each)
            return
        if raised.error is not None:
            raise raised.error
        for each, found in zip(asked, raised.committed, strict=True):
            each.committed[sink] = found.txid
            if len(each.committed) == len(self._sinks) and not each.ended.done():
                each.ended.set_result(each.committed)


def _fail(request: _Request, error: SinkFenced) -> None:
    if not request.ended.done():
        request.ended.set_exception(Fenced(request.partition, str(error)))
