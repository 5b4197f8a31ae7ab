"""The test kit: a topology on payloads, without Kafka, ZooKeeper or Spark.

It is the real pipeline, with its reader on a log in memory and its sinks replaced by
ones that keep their rows, so what it shows is what a run would do.
"""

import random
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from partition.assignment import AssignmentPolicy
from partition.chunk import Partition
from partition.manager import Window
from partition.memory import MemoryCatalogue, MemoryFetcher, MemoryLog, MemoryStore
from partition.retries import RetryPolicy
from service.letters import Letters
from service.pipeline import Pipeline, PipelinePolicy
from service.reader import Owners, Reader, ReaderPolicy
from service.screen import ScreenPolicy
from sinks.memory import MemoryDeadLetters, MemorySink
from topology.record import Record
from topology.sink import DeadLetter, SinkContext
from topology.topology import SinkStep, Topology

_CONTEXT = SinkContext(pipeline="test", sink="test", kafka={}, warehouse="", spark=None)


class NotSettled(AssertionError):
    """Records were still on their way when the test kit's patience ended."""


class TopologyTest:
    """Sends payloads through a topology and shows what became of them.

    Time stands still until `advance`, so retries wait for it. Use it in a `with`, or call
    `close`, to have the bolts closed.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        retries: RetryPolicy | None = None,
        screen: ScreenPolicy | None = None,
        patience_seconds: float = 30.0,
        seed: int = 0,
    ) -> None:
        topology.validate()
        self._topology = topology
        self._patience = patience_seconds
        self._now = 0.0
        names = [source.topic for source in topology.sources]
        self._topics = {name: 1 for name in names if isinstance(name, str)}
        self._log = MemoryLog(self._topics)
        self._sent_to: set[Partition] = set()
        self._letters_sink = MemoryDeadLetters()
        self._sinks = {
            step.name: MemorySink[Any](step.name, schema=getattr(step.sink, "schema", None))
            for step in topology.steps()
            if isinstance(step, SinkStep)
        }
        letters = Letters(self._letters_sink)
        self._reader = _WatchedReader(
            MemoryFetcher(self._log),
            MemoryStore(),
            MemoryCatalogue(self._log),
            letters.notify,
            names,
            ReaderPolicy(
                AssignmentPolicy(
                    window=Window(max_record_bytes=screen.max_record_bytes if screen else None),
                    retries=retries or RetryPolicy(jitter=0),
                    discover_interval_seconds=0,
                )
            ),
            random.Random(seed),  # noqa: S311  # a test wants the same numbers again
        )
        self._pipeline = Pipeline(
            topology,
            self._reader,
            letters,
            PipelinePolicy(screen=screen or ScreenPolicy()),
            np.random.default_rng(seed),
            clock=lambda: self._now,
            sinks=self._sinks,
        )
        self._is_open = False

    def send(
        self,
        *payloads: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
        topic: str | None = None,
    ) -> Self:
        """Append records to a topic (the first source's) and run until all have settled.

        A record has settled when it is acked, rejected, or waits for its retry. Raises
        NotSettled when that takes longer than the patience.
        """
        name = topic or self._topology.sources[0].topic
        if not isinstance(name, str):
            message = "the first source is a pattern; say which topic the payloads go to"
            raise ValueError(message)  # noqa: TRY004 - the value of `topic` is missing
        self._topology.source_of(name)
        partition = Partition(name, 0)
        if partition not in self._sent_to and name not in self._topics:
            self._log.create_topic(name)
        self._sent_to.add(partition)
        for payload in payloads:
            self._log.append(
                partition, payload, key=key, headers=tuple(headers), timestamp_ms=timestamp_ms
            )
        return self._settle()

    def advance(self, seconds: float) -> Self:
        """Let time pass, so that retries fall due, and run until all records have settled."""
        self._now += seconds
        return self._settle()

    @property
    def acked(self) -> list[Record]:
        """Records that are complete: sunk or filtered, not rejected."""
        rejected = {(d.record.topic, d.record.offset) for d in self.rejected}
        return [r for r in self._reader.acked if (r.topic, r.offset) not in rejected]

    @property
    def rejected(self) -> list[DeadLetter]:
        """Dead letters, with their reasons."""
        return list(self._letters_sink.letters)

    @property
    def rows(self) -> list[Any]:
        """Every row that reached a sink, sink by sink."""
        return [row for sink in self._sinks.values() for row in sink.rows]

    def rows_of(self, sink: str) -> list[Any]:
        """The rows that reached the sink of this name."""
        return list(self._sinks[sink].rows)

    @property
    def retrying(self) -> int:
        """Records that wait for their retry."""
        return sum(part.ledger.failed for part in self._reader.statistics(self._now))

    def close(self) -> None:
        """Close the bolts and end the threads."""
        if self._is_open:
            self._is_open = False
            self._pipeline.close(self._patience)
            self._reader.close()

    def __enter__(self) -> Self:
        """Open the bolts."""
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the bolts."""
        self.close()

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._letters_sink.open(_CONTEXT)
            self._reader.open()
            self._pipeline.open()

    def _settle(self) -> Self:
        self._open()
        patience_ends = time.monotonic() + self._patience
        while self._pipeline.step(flush=True) or not self._has_settled():
            if time.monotonic() > patience_ends:
                raise NotSettled(f"records are still on their way after {self._patience} s")
        return self

    def _has_settled(self) -> bool:
        parts = list(self._reader.statistics(self._now))
        return (
            self._reader.is_settled
            and self._pipeline.is_idle
            and self._sent_to <= {part.partition for part in parts}
            and all(
                part.ledger.fetched_to == self._log.log_range(part.partition)[1]
                and part.ledger.pending == part.ledger.failed
                for part in parts
            )
        )


class _WatchedReader(Reader):
    """A reader that remembers the records it acked."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.acked: list[Record] = []

    def ack(self, owners: Owners) -> None:
        """Remember the records, then resolve them."""
        messages = [self.message(owner) for owner in owners.tolist()]
        self.acked += [Record(message.value(), message) for message in messages]
        super().ack(owners)


def topology_test(topology: Topology, **options: Any) -> TopologyTest:
    """Make a test of a topology; `options` are TopologyTest's."""
    return TopologyTest(topology, **options)
