"""Raises the epochs of newly claimed partitions in every sink, before they are read."""

from collections.abc import Mapping

from partition.errors import Fenced
from partition.interfaces import StoredOffset
from partition.records import Partition, Resumed, TransactionKind
from partition.recovery import Chain
from sinks.writer import SinkWriter
from topology.errors import SinkFenced
from topology.sink import Fence
from transactions.transaction import resumed


class EpochFencer:
    """Fences partitions in every sink as they are opened: a `partition.recovery.Fencing`.

    The former owner of a partition may still be about to commit. So each sink first gets the new
    epoch, and then says what it has (ADR 0031: claim, fence, read, fetch).
    """

    def __init__(self, kind: TransactionKind, writers: Mapping[str, SinkWriter]) -> None:
        self.kind = kind
        self._writers = writers  # by their sinks' steps

    def fence(self, partition: Partition, epoch: int) -> Chain[Mapping[str, int]]:
        fence = Fence(str(partition), epoch)
        answers = {name: writer.fence(fence) for name, writer in self._writers.items()}
        committed: dict[str, int] = {}
        for name, answer in answers.items():
            try:
                committed[name] = yield answer
            except SinkFenced as error:
                raise Fenced(partition, str(error)) from error
        return committed

    def resume(
        self, partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
    ) -> Resumed:
        return resumed(partition, stored, committed, self.kind)
