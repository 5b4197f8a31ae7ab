"""Partitions whose leader is gone: nothing is heard of them, while the others go on."""

from collections.abc import Collection, Mapping
from concurrent.futures import Future

from partition.interfaces import Fetched, LogEnd
from partition.memory import MemoryCatalogue
from partition.records import Partition
from tests.support.faulty_kafka import FaultyLog
from tests.worlds.tasking import CountingFetcher


class SilentFetcher(CountingFetcher):
    """Tells nothing of some partitions."""

    def __init__(self, log: FaultyLog, silent: Collection[Partition] = ()) -> None:
        super().__init__(log)
        self.silent = silent
        self.at_most = 1_000_000  # so many records are brought at once

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        paused = self._paused.copy()
        self._paused.update(self.silent)
        try:
            return super().fetch(min(max_records, self.at_most), timeout_seconds)
        finally:
            self._paused.clear()
            self._paused.update(paused)


class SilentCatalogue(MemoryCatalogue):
    """Cannot tell where the logs of some partitions end."""

    def __init__(self, log: FaultyLog) -> None:
        super().__init__(log)
        self.silent: Collection[Partition] = ()

    def ends(self, partitions: Collection[Partition]) -> Future[Mapping[Partition, LogEnd]]:
        return super().ends({each for each in partitions if each not in self.silent})
