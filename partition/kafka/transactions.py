"""How long a transaction that a producer has not ended holds readers up, by the statistics."""

from collections.abc import Mapping
from typing import Any

from partition.records import Partition


class OpenTransactions:
    """Since when each log's last stable offset has stood still below its end.

    Readers of what is committed get nothing from there on, and no error; an offset that does not
    move is of one transaction, as each that ends moves it. The owner thread calls it.
    """

    def __init__(self) -> None:
        self._held: dict[Partition, tuple[int, float]] = {}  # where, and since when
        self._now = 0.0

    def take(self, told: Mapping[str, Any]) -> None:
        """Take librdkafka's statistics."""
        self._now = told.get("ts", 0) / 1e6
        held: dict[Partition, tuple[int, float]] = {}
        for topic, facts in told.get("topics", {}).items():
            for name, log in facts.get("partitions", {}).items():
                stable = log.get("ls_offset", -1)
                if not 0 <= stable < log.get("hi_offset", -1):
                    continue
                partition = Partition(topic, int(name))
                was = self._held.get(partition)
                same = was is not None and was[0] == stable
                held[partition] = was if same and was is not None else (stable, self._now)
        self._held = held

    def seconds(self, partition: Partition, position: int) -> float:
        """How long a reader that has come to `position` has waited there; 0 if it does not."""
        stable, since = self._held.get(partition, (-1, 0.0))
        return self._now - since if stable == position else 0.0

    def clear(self) -> None:
        """Forget everything."""
        self._held = {}
