"""The pipeline under test: the real one, on a log in memory, with sinks that keep their rows."""

import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from partition.assignment import AssignmentPolicy
from partition.consumer import Consumer, ConsumerPolicy
from partition.manager import InFlightLimits
from partition.memory import MemoryCatalogue, MemoryFetcher, MemoryLog, MemoryStore
from partition.recovery import Loss, Ways
from partition.retry import RetryPolicy
from service.gates import delivery_of, limits_of
from service.pipeline.failures import ScreenPolicy
from service.pipeline.fences import Fences
from service.sizes import sizes_of
from service.testing.recording import RecordingObserver
from service.wiring import PipelinePolicy, Ports, build_pipeline
from sinks.memory import MemoryDeadLetters, MemorySink
from sinks.storage import Storage
from sinks.tries import WriteRetries
from topology.errors import InvalidTopology
from topology.reference import Reference, Rows
from topology.sink import Sink, SinkContext, innermost
from topology.spark_step import ThroughSpark
from topology.steps import SinkStep
from topology.topology import Topology
from transactions.partition_transactions import TransactionPolicy

_CONTEXT = SinkContext(pipeline="test", sink="test", kafka={}, storage=Storage(""), spark=None)


class Bench:
    """The parts of a run, wired as `service.parts` does, but for its servers and its sinks.

    The thread that makes it owns all of it. Time stands still: `now` is what its owner sets.
    """

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
        self.topics = {name: 1 for name in names if isinstance(name, str)}
        """How many partitions each topic has."""
        self.log = MemoryLog(self.topics)
        self.dead_letters = MemoryDeadLetters()
        steps = [step for step in topology.steps() if isinstance(step, SinkStep)]
        self.tables = {
            step.name: MemorySink[Any](step.name, schema=_schema_of(step.sink)) for step in steps
        }
        """What keeps the rows, by the sink's name."""
        self.recording = RecordingObserver(lambda: self.now)
        self.fetcher = MemoryFetcher(self.log, waits=False)
        self.store = MemoryStore()
        self.pipeline = build_pipeline(
            topology,
            Ports(
                partial(self._reader, _assignment(topology, retries, screen), seed),
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
        self._is_open = False

    def _reader(
        self,
        assignment: AssignmentPolicy,
        seed: int,
        notify: Callable[[Loss], Future[None]],
        fences: Fences | None,
    ) -> Consumer:
        return Consumer(
            self.fetcher,
            Ways(self.store, MemoryCatalogue(self.log), notify, fences),
            [source.topic for source in self.topology.sources],
            ConsumerPolicy(
                assignment,
                **sizes_of(self.topology)._asdict(),
                records_per_second=limits_of(self.topology),
            ),
            random.Random(seed),  # noqa: S311  # a test wants the same numbers again
        )

    @property
    def works_elsewhere(self) -> bool:
        """Whether there is any bolt that is called on another thread, or whose calls may wait.

        So are sinks that keep transactions, which are staged before they are committed.
        """
        return self._keeps_transactions or bool(self._called_later)

    @property
    def rests(self) -> bool:
        """Whether no thread works on anything: what is unresolved is kept, or waits its turn."""
        pipeline, steps = self.pipeline, self._called_later
        return (
            not any(map(pipeline.runners.backlog, steps))
            and not any(pipeline.runners.statistics(step).in_flight for step in steps)
            and pipeline.committer.is_idle
            # Rows of a transaction may wait for a record that is retried, and are at rest.
            and (
                self._keeps_transactions
                or not any(outlet.rows_pending for outlet in pipeline.outlets)
            )
            and not pipeline.dead_letters.pending
            and pipeline.results.is_empty
        )

    @property
    def retrying(self) -> int:
        """Records that wait for their retry."""
        return sum(part.ledger.failed for part in self.reader.statistics(self.now))

    @property
    def unresolved(self) -> int:
        """Records that are not complete."""
        return sum(part.ledger.pending for part in self.reader.statistics(self.now))

    def open(self) -> None:
        """Load the reference tables and open all parts, if that is not done yet.

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
        """Close the bolts, end the threads, unload the reference tables. Does nothing twice."""
        if self._is_open:
            self._is_open = False
            self.pipeline.close(timeout_seconds)
            self.reader.close()
            for sink in self.tables.values():
                sink.close()
            for reference in self._references:
                reference.unload()


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
    """What is rejected here as it would be in a run; before a Spark step that is what goes in."""
    if isinstance(sink, ThroughSpark):
        return None if sink.step.reads_source else sink.step.schema
    schema: pa.Schema | None = getattr(innermost(sink), "schema", None)
    return schema
