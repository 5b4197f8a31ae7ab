"""The driver's fetcher: it delivers nothing, because executors read the records."""

from collections.abc import Iterable, Mapping

from partition.interfaces import Fetched, Fetcher
from partition.records import Partition, Position
from service.spark_engine.planner import Ends


class NoFetcher:
    """A `Fetcher` of nothing, that knows where the logs end. The owner thread calls everything.

    What is committed to the consumer group, too, goes to a client that reads nothing.
    """

    def __init__(self, ends: Ends, client: Fetcher, *, mirrors: bool = False) -> None:
        """`client` is opened, so that wrong properties are found here, and reads nothing.

        It stays open only if it `mirrors` what is committed.
        """
        self._ends = ends
        self._client = client
        self._mirrors = mirrors

    @property
    def available(self) -> bool:
        """Whether the cluster has answered the last question."""
        return self._ends.available

    @property
    def mirror_failures(self) -> int:
        """Commits to the consumer group that could not be made."""
        return self._client.mirror_failures

    def open(self) -> None:
        """Make the client. Raises KafkaMisconfigured."""
        self._client.open()
        if not self._mirrors:
            self._client.close()

    def add(self, positions: Mapping[Partition, Position]) -> None:
        """Do nothing: what is planned says where executors read."""

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Forget where their logs end."""
        for partition in partitions:
            self._ends.forget(partition)

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        """Return nothing, but hear what became of commits to the group."""
        if self._mirrors:
            self._client.fetch(max_records, timeout_seconds)
        return Fetched()

    def pause(self, partition: Partition) -> None:
        """Do nothing."""

    def resume(self, partition: Partition) -> None:
        """Do nothing."""

    def log_range(self, partition: Partition) -> tuple[int | None, int] | None:
        """Return where a log ends; its start is not asked for."""
        end = self._ends.of(partition)
        return None if end is None else (None, end.offset)

    def transaction_wait_seconds(self, partition: Partition) -> float:
        """Nothing is read here, so nothing is heard of it."""
        del partition
        return 0.0

    def mirror(self, positions: Mapping[Partition, Position]) -> None:
        """Commit positions to the consumer group too, without waiting."""
        if self._mirrors:
            self._client.mirror(positions)

    def close(self) -> None:
        """Let go of the client, and of the question that is out."""
        self._ends.close()
        self._client.close()
