"""The test kit: a topology on payloads, without Kafka, ZooKeeper or Spark.

It is the real pipeline, with its reader on a log in memory and its sinks replaced by
ones that keep their rows, so what it shows is what a run would do.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from partition.assignment import AssignmentPolicy
from partition.chunk import Partition
from partition.manager import Window
from partition.memory import MemoryCatalogue, MemoryFetcher, MemoryLog, MemoryStore
from partition.retries import RetryPolicy
from service.figures import snapshot_of
from service.pacing import limits_of
from service.pipeline import PipelinePolicy
from service.reader import ReaderPolicy
from service.screen import ScreenPolicy
from service.testing.chaos_sink import ChaosSink
from service.testing.timeline import Event, Timeline
from service.testing.watched import WatchedLetters, WatchedPipeline, WatchedReader
from sinks.memory import MemoryDeadLetters, MemorySink
from sinks.writer import WriteRetries
from topology.errors import InvalidTopology
from topology.record import Record
from topology.reference import Reference, Rows
from topology.sink import DeadLetter, Sink, SinkContext, innermost
from topology.steps import SinkStep
from topology.topology import Topology

_TURN_SECONDS = 0.005
_TURNS_OF_REST = 3  # a call that has just ended is on its way from its thread to ours
_EXPIRY_SECONDS = 1.0
_CONTEXT = SinkContext(pipeline="test", sink="test", kafka={}, warehouse="", spark=None)


class NotSettled(AssertionError):
    """Records were still on their way when the test kit's patience ended."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the pipeline under test is made of."""

    fetcher: MemoryFetcher
    store: MemoryStore
    reader: WatchedReader
    letters: WatchedLetters
    pipeline: WatchedPipeline


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
        references: Mapping[Reference, Rows] | None = None,
        message_timeout_seconds: float = 30.0,
        patience_seconds: float = 30.0,
        seed: int = 0,
    ) -> None:
        """Nothing is opened yet. Raises InvalidTopology.

        `references` has the rows of the topology's reference tables: they are loaded at the
        start and unloaded by `close`. Limits of records per second are kept by the test's time.
        """
        topology.validate()
        self._topology = topology
        self._patience = patience_seconds
        self._now = 0.0
        names = [source.topic for source in topology.sources]
        self._topics = {name: 1 for name in names if isinstance(name, str)}
        self._log = MemoryLog(self._topics)
        self._sent_to: set[Partition] = set()
        self._letters_sink = MemoryDeadLetters()
        self._tables = {
            step.name: MemorySink[Any](
                step.name, schema=getattr(innermost(step.sink), "schema", None)
            )
            for step in topology.steps()
            if isinstance(step, SinkStep)
        }
        self._sinks = {
            step.name: _stand_in(step.sink, self._tables[step.name])
            for step in topology.steps()
            if isinstance(step, SinkStep)
        }
        self._timeline = Timeline()
        self._fetcher = MemoryFetcher(self._log)
        self._store = MemoryStore()
        self._letters = WatchedLetters(self._timeline, lambda: self._now, self._letters_sink)
        self._reader = WatchedReader(
            self._timeline,
            lambda: self._now,
            self._fetcher,
            self._store,
            MemoryCatalogue(self._log),
            self._letters.notify,
            names,
            ReaderPolicy(
                _assignment(topology, retries, screen), records_per_second=limits_of(topology)
            ),
            random.Random(seed),  # noqa: S311  # a test wants the same numbers again
            on_assigned=self._tell_assigned,
            on_revoked=self._tell_revoked,
        )
        self._pipeline: WatchedPipeline = WatchedPipeline(
            topology,
            self._reader,
            self._letters,
            PipelinePolicy(
                message_timeout_seconds,
                screen=screen or ScreenPolicy(),
                write_retries=WriteRetries(first_seconds=0, longest_seconds=0),
            ),
            np.random.default_rng(seed),
            clock=lambda: self._now,
            sinks=self._sinks,
        )
        self._references = dict(references or {})
        self._is_open = False

    def send(
        self,
        *payloads: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
        topic: str | None = None,
        partition: int = 0,
    ) -> Self:
        """Append records to a topic (the first source's) and run until all have settled.

        A partition that the topic has not yet is added to it. A record has settled when it is
        acked, rejected, waits for its retry, for another record of its key or for its source's
        rate limit, or is kept by an advanced bolt. Raises NotSettled when that takes longer than
        the patience.
        """
        place = self._place(self._topic(topic), partition)
        for payload in payloads:
            self._log.append(
                place, payload, key=key, headers=tuple(headers), timestamp_ms=timestamp_ms
            )
        return self._settle()

    def advance(self, seconds: float) -> Self:
        """Let time pass, and run until all records have settled.

        Retries and ticks that fall due on the way happen at their time, one after the other, and
        so do records that a rate limit lets pass. A record that a bolt keeps too long expires as
        it does in a run.
        """
        self._open()
        end = self._now + seconds
        while (due := self._next_due()) is not None and self._now < due <= end:
            self._now = due
            self._settle()
        self._now = end
        return self._settle()

    def drain(self) -> Self:
        """Ask advanced bolts for what they keep, as a run does that ends."""
        return self._settle(drain=True)

    @property
    def now(self) -> float:
        """How many seconds have passed since the start."""
        return self._now

    @property
    def acked(self) -> list[Record]:
        """Records that are complete: sunk or filtered, not rejected."""
        rejected = {_place_of(letter.record) for letter in self.rejected}
        return [record for record in self._reader.acked if _place_of(record) not in rejected]

    @property
    def rejected(self) -> list[DeadLetter]:
        """Dead letters, with their reasons."""
        return list(self._letters_sink.letters)

    @property
    def rows(self) -> list[Any]:
        """Every row that reached a sink, sink by sink."""
        return [row for table in self._tables.values() for row in table.rows]

    def rows_of(self, sink: str) -> list[Any]:
        """The rows that reached the sink of this name. Raises ValueError if there is none."""
        if sink not in self._tables:
            raise ValueError(f"sink '{sink}'; allowed are {', '.join(self._tables)}")
        return list(self._tables[sink].rows)

    @property
    def retrying(self) -> int:
        """Records that wait for their retry."""
        return sum(part.ledger.failed for part in self._reader.statistics(self._now))

    @property
    def unresolved(self) -> int:
        """Records that are not complete: they wait for their retry, or a bolt keeps them."""
        return sum(part.ledger.pending for part in self._reader.statistics(self._now))

    @property
    def timeline(self) -> list[Event]:
        """What happened to all records, in order."""
        return list(self._timeline.events)

    def history(self, offset: int, *, partition: int = 0, topic: str | None = None) -> list[Event]:
        """What happened to one record of a topic (the first source's), in order."""
        return self._timeline.of(Partition(self._topic(topic), partition), offset)

    @property
    def metrics(self) -> dict[str, float]:
        """The figures that `/metrics` would show now, by name and labels as it writes them.

        So `headrace_service_sunk_records_total`, or
        `headrace_topology_failed_tuples_total{step="parse"}`.
        """
        # Not above: whoever only tests needs no client of Prometheus.
        from service.metrics import figures  # noqa: PLC0415

        parts = _Parts(self._fetcher, self._store, self._reader, self._letters, self._pipeline)
        return figures(snapshot_of(parts, self._now))

    def close(self) -> None:
        """Close the bolts and end the threads."""
        if self._is_open:
            self._is_open = False
            self._pipeline.close(self._patience)
            self._reader.close()
            for sink in self._sinks.values():
                sink.close()
            for reference in self._references:
                reference.unload()

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
            _check_references(self._topology, self._references)
            self._is_open = True
            for reference, rows in self._references.items():
                reference.load(rows)
            for sink in self._sinks.values():
                sink.open(_CONTEXT)
            self._letters_sink.open(_CONTEXT)
            self._reader.open()
            self._pipeline.open()

    def _tell_assigned(self, partition: Partition) -> None:
        self._pipeline.partition_assigned(partition)

    def _tell_revoked(self, partition: Partition) -> None:
        self._pipeline.partition_revoked(partition)

    def _topic(self, name: str | None) -> str:
        """The topic of this name, or the first source's."""
        topic = name or self._topology.sources[0].topic
        if not isinstance(topic, str):
            raise ValueError(_PATTERN)  # noqa: TRY004 - the value of `topic` is missing
        try:
            self._topology.source_of(topic)
        except KeyError:
            labels = ", ".join(source.label for source in self._topology.sources)
            raise ValueError(f"topic '{topic}' is not read; allowed are {labels}") from None
        return topic

    def _place(self, topic: str, number: int) -> Partition:
        """The partition to send to; it is made if it is not there yet."""
        if number < 0:
            raise ValueError(f"partition={number}; 0 or more is allowed")
        if topic not in self._topics:
            self._topics[topic] = 1
            self._log.create_topic(topic)
        if number >= self._topics[topic]:
            self._log.add_partitions(topic, number + 1 - self._topics[topic])
            self._topics[topic] = number + 1
        place = Partition(topic, number)
        self._sent_to.add(place)
        return place

    def _next_due(self) -> float | None:
        """When something happens next by itself, or None."""
        dues = [self._reader.next_due(), self._pipeline.next_tick]
        if self.unresolved > self.retrying:
            dues.append(self._now + _EXPIRY_SECONDS)
        return min((due for due in dues if due is not None), default=None)

    def _settle(self, *, drain: bool = False) -> Self:
        self._open()
        patience_ends = time.monotonic() + self._patience
        pipeline = self._pipeline
        enough = _TURNS_OF_REST if pipeline.works_elsewhere else 1
        resting = 0
        while True:
            moved = pipeline.step(flush=True, drain=drain)
            resting = resting + 1 if not moved and pipeline.rests else 0
            if resting and self._is_all_taken() and (pipeline.is_idle or resting >= enough):
                return self
            if time.monotonic() > patience_ends:
                raise NotSettled(f"records are still on their way after {self._patience} s")
            if not moved:
                pipeline.wait(_TURN_SECONDS)

    def _is_all_taken(self) -> bool:
        """Whether every record that was sent is done or on its way, or may not set out yet."""
        parts = list(self._reader.statistics(self._now))
        return (
            self._reader.is_settled
            and self._sent_to <= {part.partition for part in parts}
            and all(
                self._reader.is_held_up(part.partition.topic, self._now)
                or (
                    part.ledger.fetched_to == self._log.log_range(part.partition)[1]
                    and not part.ledger.waiting
                )
                for part in parts
            )
        )


_PATTERN = "the first source is a pattern; say which topic is meant with topic="


def topology_test(
    topology: Topology,
    *,
    retries: RetryPolicy | None = None,
    screen: ScreenPolicy | None = None,
    references: Mapping[Reference, Rows] | None = None,
    message_timeout_seconds: float = 30.0,
    patience_seconds: float = 30.0,
    seed: int = 0,
) -> TopologyTest:
    """Make a test of a topology; the options are TopologyTest's."""
    return TopologyTest(
        topology,
        retries=retries,
        screen=screen,
        references=references,
        message_timeout_seconds=message_timeout_seconds,
        patience_seconds=patience_seconds,
        seed=seed,
    )


def _check_references(topology: Topology, filled: Mapping[Reference, Rows]) -> None:
    """Raise InvalidTopology where a run would have other reference tables than the test."""
    for reference in filled:
        if reference not in topology.references:
            raise InvalidTopology(
                f"reference '{reference.name}' has rows in the test, but a run would not load it; "
                "name it in topology.uses(...)"
            )
    for reference in topology.references:
        if reference not in filled and not reference.is_loaded:
            raise InvalidTopology(
                f"reference '{reference.name}' of topology '{topology.name}' has no rows in the "
                "test; give them in references={...}"
            )


def _assignment(
    topology: Topology, retries: RetryPolicy | None, screen: ScreenPolicy | None
) -> AssignmentPolicy:
    return AssignmentPolicy(
        window=Window(max_record_bytes=screen.max_record_bytes if screen else None),
        retries=retries or RetryPolicy(jitter=0),
        discover_interval_seconds=0,
        commit_ahead=topology.reliability == "at-most-once",
    )


def _stand_in(sink: Sink[Any], table: MemorySink[Any]) -> Sink[Any]:
    """What takes a sink's place: `table`, behind the chaos that is in front of the sink."""
    return sink.around(_stand_in(sink.sink, table)) if isinstance(sink, ChaosSink) else table


def _place_of(record: Record) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset
