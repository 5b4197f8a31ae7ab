"""The test kit: a topology on payloads, without Kafka, ZooKeeper or Spark.

It is the real pipeline, on a log in memory, with sinks that keep their rows.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import Any, Self

from partition.ledger import RetryPolicy
from partition.records import Partition
from service.observability.snapshot import snapshot_of
from service.pipeline.failures import ScreenPolicy
from service.testing.bench import Bench
from service.testing.timeline import Event
from topology.record import Record
from topology.reference import Reference, Rows
from topology.sink import DeadLetter
from topology.topology import Topology


class TopologyTest:
    """Sends payloads through a topology and shows the outcome of each record.

    Time stands still until `advance`, so retries wait for it. Use it in a `with`, or call
    `close`, to close the bolts.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        retries: RetryPolicy | None = None,
        screen: ScreenPolicy | None = None,
        references: Mapping[Reference, Rows] | None = None,
        message_timeout_seconds: float = 30.0,
        patience_seconds: float = 30.0,
        seed: int = 0,
    ) -> None:
        """Nothing is opened yet. Raises InvalidTopology.

        `references` has the rows of the topology's reference tables, from the start to `close`.
        Limits of records per second follow the test's time.
        """
        self._bench = Bench(
            topology,
            retries=retries,
            screen=screen,
            references=references or {},
            message_timeout_seconds=message_timeout_seconds,
            seed=seed,
        )
        self._source_of = cache(topology.source_of)
        self._patience = patience_seconds

    def send(
        self,
        *payloads: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
        topic: str | None = None,
        partition: int = 0,
    ) -> Self:
        """Append records to a topic (by default the first source's) and run until all settle.

        A missing partition is added. A record has settled when it is acked, rejected, waits for
        its retry, for another record of its key or for its source's rate limit, or is kept by an
        advanced bolt. Raises NotSettled after `patience_seconds`.
        """
        place = Partition(self._topic(topic), partition)
        self._bench.append(place, payloads, key=key, headers=headers, timestamp_ms=timestamp_ms)
        self._bench.settle(self._patience)
        return self

    def advance(self, seconds: float) -> Self:
        """Let time pass, and run until all records have settled.

        Retries, ticks, rate limits and timeouts take effect at their time, one after the other.
        """
        self._bench.advance(seconds, self._patience)
        return self

    def drain(self) -> Self:
        """Drain advanced bolts, as at the end of a run."""
        self._bench.settle(self._patience, drain=True)
        return self

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self._bench.now

    @property
    def acked(self) -> list[Record]:
        """Records that are complete: written or filtered, not rejected."""
        rejected = {_place_of(letter.record) for letter in self.rejected}
        acked = self._bench.recording.acked
        return [record for record in acked if _place_of(record) not in rejected]

    @property
    def rejected(self) -> list[DeadLetter]:
        """Dead letters, with their reasons."""
        return list(self._bench.dead_letters.letters)

    @property
    def rows(self) -> list[Any]:
        """Every row that reached a sink, sink by sink."""
        return [row for table in self._bench.tables.values() for row in table.rows]

    def rows_of(self, sink: str) -> list[Any]:
        """The rows that reached the sink of this name. Raises ValueError if there is none."""
        if sink not in self._bench.tables:
            raise ValueError(f"found sink '{sink}', expected {', '.join(self._bench.tables)}")
        return list(self._bench.tables[sink].rows)

    @property
    def retrying(self) -> int:
        """Records that wait for their retry."""
        return self._bench.retrying

    @property
    def unresolved(self) -> int:
        """Records that are not complete: they wait for their retry, or a bolt keeps them."""
        return self._bench.unresolved

    @property
    def timeline(self) -> list[Event]:
        """The events of all records, in order."""
        return list(self._bench.recording.events)

    def history(self, offset: int, *, partition: int = 0, topic: str | None = None) -> list[Event]:
        """Return the events of one record of a topic (by default the first source's)."""
        wanted = self._topic(topic), partition, offset
        return [e for e in self.timeline if (e.topic, e.partition, e.offset) == wanted]

    @property
    def metrics(self) -> dict[str, float]:
        """The figures that `/metrics` would show now, by name and labels as it writes them.

        So `headrace_service_written_records_total`, or
        `headrace_topology_failed_tuples_total{step="parse"}`.
        """
        # Not above: whoever only tests needs no client of Prometheus.
        from service.observability.metrics import figures  # noqa: PLC0415

        return figures(snapshot_of(self._bench.pipeline, self._bench.now))

    def _topic(self, name: str | None) -> str:
        """Return the topic of this name, or the first source's. Raises ValueError."""
        sources = self._bench.topology.sources
        topic = name or sources[0].topic
        if not isinstance(topic, str):
            message = "the first source is a pattern. Name a topic with topic="
            raise ValueError(message)  # noqa: TRY004 - the value of `topic` is missing
        try:
            self._source_of(topic)
        except KeyError:
            labels = ", ".join(source.label for source in sources)
            raise ValueError(f"found topic '{topic}', expected {labels}") from None
        return topic

    def close(self) -> None:
        """Close the bolts and end the threads."""
        self._bench.close(self._patience)

    def __enter__(self) -> Self:
        """Open the bolts."""
        self._bench.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the bolts."""
        self.close()


topology_test = TopologyTest


def _place_of(record: Record) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset
