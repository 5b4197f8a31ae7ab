"""The partitions of the spark engine's driver: owned as on the local engine, and read by others."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from partition.assignment import Assignment
from partition.commits import OffsetCommitter
from partition.consumer import ConsumerPolicy, SourceHealth
from partition.interfaces import Fetcher, TopicName
from partition.manager import PartitionStatistics
from partition.recovery import Ways
from service.spark_engine.planner import LogEndTracker


class RangeOwner:
    """Claims and recovers partitions, and stores how far each is done. The owner calls everything.

    What `Consumer` is to the local engine, without records: `ends` stands where a fetcher does.
    """

    def __init__(
        self,
        client: Fetcher,
        ways: Ways,
        ends: LogEndTracker,
        sources: Sequence[TopicName],
        policy: ConsumerPolicy,
        rng: random.Random,
    ) -> None:
        """`client` reads nothing: it commits to the consumer group, if the policy says so."""
        self.ends = ends
        self.assignment = Assignment(ends, ways, sources, policy.assignment, rng)
        """Which partitions are ours."""
        self._ways = ways
        self._client = client
        self._mirrors = policy.mirror
        self.offsets = OffsetCommitter(
            ways.store,
            self.assignment,
            policy.commit_interval_seconds,
            client if policy.mirror else None,
        )

    def open(self) -> None:
        """Open the store, the client and the catalogue. Raises what they raise."""
        self._ways.store.open()
        self._client.open()
        if not self._mirrors:  # it was opened so that wrong properties are found
            self._client.close()
        self._ways.catalogue.open()

    def close(self) -> None:
        """Close all of them; what is not committed stays so."""
        self.ends.close()
        self._client.close()
        self._ways.catalogue.close()
        self._ways.store.close()

    def commit(self, now: float, *, force: bool = False) -> None:
        """Store what moved; see `OffsetCommitter.commit`."""
        if self._mirrors:
            self._client.fetch(1, 0.0)  # it hears what became of commits to the group
        for _index, manager in self.assignment.owned():
            self.offsets.note(manager)  # what is planned is stored at once
        self.offsets.commit(now, force=force)

    def health(self, now: float) -> SourceHealth:
        """How well Kafka and ZooKeeper are."""
        return SourceHealth(
            kafka_available=self.ends.available,
            store_available=self._ways.store.available,
            mirror_failures=self._client.mirror_failures,
            commit_seconds=self.offsets.seconds(now),
        )

    def statistics(self, now: float) -> Iterator[PartitionStatistics]:
        """Where each partition stands that was opened."""
        for assigned in self.assignment:
            if assigned.manager is not None:
                log = self.ends.log_range(assigned.partition)
                yield replace(
                    assigned.manager.statistics(now),
                    log_end=None if log is None else log[1],
                    lost=dict(assigned.lost),
                    epoch=assigned.epoch,
                )
