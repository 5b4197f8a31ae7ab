"""The pipeline of the test kit, on a log in memory, with sinks that keep their rows."""

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa

from partition.assignment import AssignmentPolicy
from partition.consumer import Consumer, ConsumerPolicy
from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits
from partition.memory.ports import MemoryCatalogue, MemoryFetcher, MemoryLog, MemoryStore
from partition.records import Partition
from partition.recovery import Loss, Ways
from service.pipeline.build import (
    PipelinePolicy,
    Ports,
    build_pipeline,
    delivery_of,
    limits_of,
    sizes_of,
)
from service.pipeline.failures import ScreenPolicy
from service.pipeline.fences import EpochFencer
from service.testing.timeline import RecordingObserver
from sinks.memory import MemoryDeadLetters, MemorySink
from sinks.storage import Storage
from sinks.writer import WriteRetries
from topology.errors import InvalidTopology
from topology.reference import Reference, Rows
from topology.sink import Sink, SinkContext, innermost
from topology.spark_step import ThroughSpark
from topology.steps import SinkStep
from topology.topology import Topology
from transactions.transaction import TransactionPolicy

_CONTEXT = SinkContext(pipeline="test", sink="test", kafka={}, storage=Storage(""), spark=None)
_TURN_SECONDS = 0.005
_TURNS_OF_REST = 3  # a call that has just ended is on its way from its thread to ours
_EXPIRY_SECONDS = 1.0


class NotSettled(AssertionError):
    """Records were still in flight when the test kit's patience ended."""


class Bench:
    """A pipeline wired as in a run, except for servers and sinks. One thread owns all of it."""

    def __init__(
        self,
        topology: Topology,
        *,
        retries: RetryPolicy | None,
        screen: ScreenPolicy | None,
        references: Mapping[Reference, Rows],
        message_timeout_seconds: float,
        seed: int,
    ) -> None:
        """Nothing is opened yet. Raises InvalidTopology."""
        topology.validate()
        self.topology = topology
        self.now = 0.0
        """Seconds since the start."""
        names = [source.topic for source in topology.sources]
        self._partitions = {
            name: 1 for name in names if isinstance(name, str)
        }  # how many, by topic
        self.log = MemoryLog(self._partitions)
        self.dead_letters = MemoryDeadLetters()
        self.tables = {
            step.name: MemorySink[Any](step.name, schema=_schema_of(step.sink))
            for step in topology.steps()
            if isinstance(step, SinkStep)
        }
        """The sinks that keep the rows, by name."""
        self.recording = RecordingObserver(lambda: self.now)
        self.fetcher = MemoryFetcher(self.log, waits=False)
        self.store = MemoryStore()
        policy = ConsumerPolicy(
            _assignment(topology, retries, screen),
            **sizes_of(topology)._asdict(),
            records_per_second=limits_of(topology),
        )

        def make_consumer(
            notify: Callable[[Loss], Future[None]], fences: EpochFencer | None
        ) -> Consumer:
            ways = Ways(self.store, MemoryCatalogue(self.log), notify, fences)
            rng = random.Random(seed)  # noqa: S311  # a test wants the same numbers again
            topics = [source.topic for source in topology.sources]
            return Consumer(self.fetcher, ways, topics, policy, rng)

        self.pipeline = build_pipeline(
            topology,
            Ports(
                make_consumer,
                self.dead_letters,
                np.random.default_rng(seed),
                lambda: self.now,
                self.tables,
            ),
            PipelinePolicy(
                message_timeout_seconds,
                screen=screen or ScreenPolicy(),
                write_retries=WriteRetries(first_seconds=0, longest_seconds=0),
            ),
            [self.recording],
        )
        self.reader: Consumer = self.pipeline.consumer
        self.letters = self.pipeline.dead_letters
        self._called_later = [step for step in topology.bolts() if step.has_runner]
        self._keeps_transactions = topology.reliability == "exactly-once"
        self._references = dict(references)
        self._sent_to: set[Partition] = set()
        self._is_open = False

    @property
    def retrying(self) -> int:
        """Records that wait for their retry."""
        return sum(part.ledger.failed for part in self.reader.statistics(self.now))

    @property
    def unresolved(self) -> int:
        """Records that are not complete."""
        return sum(part.ledger.pending for part in self.reader.statistics(self.now))

    def open(self) -> None:
        """Load the reference tables and open all parts, unless that is done.

        Raises InvalidTopology where a run would have other reference tables than the test.
        """
        if not self._is_open:
            _check_references(self.topology, self._references)
            self._is_open = True
            for reference, rows in self._references.items():
                reference.load(rows)
            for sink in self.tables.values():
                sink.open(_CONTEXT)
            self.dead_letters.open(_CONTEXT)
            self.reader.open()
            self.pipeline.open()

    def close(self, timeout_seconds: float) -> None:
        """Close the bolts, end the threads, unload the reference tables. Idempotent."""
        if self._is_open:
            self._is_open = False
            self.pipeline.close(timeout_seconds)
            self.reader.close()
            for sink in self.tables.values():
                sink.close()
            for reference in self._references:
                reference.unload()

    def append(
        self,
        partition: Partition,
        payloads: Iterable[bytes | None],
        *,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
    ) -> None:
        """Append records to a partition, which is added if missing. Raises ValueError."""
        topic, number = partition.topic, partition.number
        if number < 0:
            raise ValueError(f"partition: found {number}, expected a whole number >= 0")
        if topic not in self._partitions:
            self._partitions[topic] = 1
            self.log.create_topic(topic)
        if number >= self._partitions[topic]:
            self.log.add_partitions(topic, number + 1 - self._partitions[topic])
            self._partitions[topic] = number + 1
        self._sent_to.add(partition)
        for payload in payloads:
            self.log.append(
                partition, payload, key=key, headers=tuple(headers), timestamp_ms=timestamp_ms
            )

    def advance(self, seconds: float, patience_seconds: float) -> None:
        """Let time pass, and settle at each due time. Raises NotSettled."""
        self.open()
        end = self.now + seconds
        while (due := self._next_due()) is not None and self.now < due <= end:
            self.now = due
            self.settle(patience_seconds)
        self.now = end
        self.settle(patience_seconds)

    def settle(self, patience_seconds: float, *, drain: bool = False) -> None:
        """Turn the loop until no record is in flight. Raises NotSettled."""
        self.open()
        patience_ends = time.monotonic() + patience_seconds
        # Transactions are staged by other threads before they are committed.
        works_elsewhere = self._keeps_transactions or self._called_later
        enough = _TURNS_OF_REST if works_elsewhere else 1
        resting = 0
        while True:
            moved = self.pipeline.step(flush=True, drain=drain)
            resting = resting + 1 if not moved and self._rests else 0
            if resting and self._is_all_taken() and (self.pipeline.is_idle or resting >= enough):
                return
            if time.monotonic() > patience_ends:
                raise NotSettled(f"records are still in flight after {patience_seconds} s")
            if not moved:
                self.pipeline.results.wait(_TURN_SECONDS)

    @property
    def _rests(self) -> bool:
        """Whether no thread works on anything: what is unresolved is kept, or waits its turn."""
        pipeline, steps = self.pipeline, self._called_later
        return (
            not any(map(pipeline.runners.backlog, steps))
            and not (steps and any(r.in_flight for r in pipeline.runners.statistics().values()))
            and pipeline.committer.is_idle
            # Rows of a transaction may wait for a record that is retried, and are at rest.
            and (
                self._keeps_transactions
                or not any(outlet.rows_pending for outlet in pipeline.outlets)
            )
            and not pipeline.dead_letters.pending
            and pipeline.results.is_empty
        )

    def _next_due(self) -> float | None:
        """Return the time of the next retry, tick or expiry."""
        dues = [manager.retries.due for _, manager in self.reader.assignment.owned()]
        dues += [self.reader.flow.wake, self.pipeline.router.next_tick]
        if self.unresolved > self.retrying:
            dues.append(self.now + _EXPIRY_SECONDS)
        due = min((due for due in dues if due is not None), default=math.inf)
        return due if due < math.inf else None

    def _is_all_taken(self) -> bool:
        """Whether every record is done, in flight, or held up by a rate limit."""
        parts = list(self.reader.statistics(self.now))
        return (
            self.reader.assignment.is_settled
            and self._sent_to <= {part.partition for part in parts}
            and all(
                self.reader.flow.is_held_up(part.partition.topic, self.now)
                or (
                    part.ledger.fetched_to == self.log.log_range(part.partition)[1]
                    and not part.ledger.waiting
                )
                for part in parts
            )
        )


def _check_references(topology: Topology, filled: Mapping[Reference, Rows]) -> None:
    for reference in filled:
        if reference not in topology.references:
            raise InvalidTopology(
                f"reference '{reference.name}' has rows in the test, but a run would not load it. "
                "Name it in topology.uses(...)"
            )
    for reference in topology.references:
        if reference not in filled and not reference.is_loaded:
            raise InvalidTopology(
                f"reference '{reference.name}' of topology '{topology.name}' has no rows in the "
                "test. Set references={...}"
            )


def _assignment(
    topology: Topology, retries: RetryPolicy | None, screen: ScreenPolicy | None
) -> AssignmentPolicy:
    return AssignmentPolicy(
        limits=InFlightLimits(max_record_bytes=screen.max_record_bytes if screen else None),
        retries=retries or RetryPolicy(jitter=0),
        discover_interval_seconds=0,
        # Time stands still, and each `send` may be a transaction.
        delivery=delivery_of(
            topology,
            TransactionPolicy(topology.transactions, max_active=100_000, plan_seconds=0),
        ),
    )


def _schema_of(sink: Sink[Any]) -> pa.Schema | None:
    """Return the schema that rows are checked against, as in a run."""
    if isinstance(sink, ThroughSpark):
        return None if sink.step.reads_source else sink.step.schema
    schema: pa.Schema | None = getattr(innermost(sink), "schema", None)
    return schema
