"""How long stored offsets have stood still, as snapshots see it. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from partition.chunk import Partition
from partition.statistics import PartitionStatistics


class CommitAges:
    """Remembers when each partition's stored offset moved, or was at the log's end, last.

    The owner thread calls it, as often as it takes snapshots: so exact are the ages. A partition
    that was away begins anew.
    """

    def __init__(self) -> None:
        self._since: dict[Partition, tuple[int, float]] = {}

    def of(
        self, partitions: Iterable[PartitionStatistics], now: float
    ) -> Iterator[PartitionStatistics]:
        """The same figures with their `commit_age_seconds`."""
        known, self._since = self._since, {}
        for part in partitions:
            committed, since = known.get(part.partition, (part.committed, now))
            if committed != part.committed or not part.lag:
                since = now
            self._since[part.partition] = part.committed, since
            yield replace(part, commit_age_seconds=max(0.0, now - since))
