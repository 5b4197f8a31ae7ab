"""The test kit: a topology on payloads, without Kafka, ZooKeeper or Spark.

It is the real pipeline, on a log in memory, with sinks that keep their rows.
"""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from typing import Any, Self

import numpy as np
import pyarrow as pa

from partition.assignment import AssignmentPolicy
from partition.consumer import Consumer, ConsumerPolicy
from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits
from partition.memory.ports import MemoryCatalogue, MemoryFetcher, MemoryLog, MemoryStore
from partition.records import Partition
from partition.recovery import Loss, Ways
from service.observability.snapshot import snapshot_of
from service.pipeline import build
from service.pipeline.committers import EpochFencer
from service.pipeline.failures import ScreenPolicy
from service.testing.timeline import Event, RecordingObserver
from sinks.columns import rows_of
from sinks.memory import MemoryDeadLetters, MemorySink
from sinks.state.store import MemoryState, StateSink
from sinks.storage import Storage
from sinks.writer import WriteRetries
from topology.errors import InvalidTopology
from topology.record import Record, encode
from topology.reference import Reference, Rows
from topology.sink import Batch, DeadLetter, Sink, SinkContext, Staged, innermost
from topology.spark_step import ThroughSpark
from topology.state import LINE, TXID, State
from topology.steps import SinkStep
from topology.topology import Topology
from transactions.transaction import TransactionPolicy

_CONTEXT = SinkContext(pipeline="test", sink="test", kafka={}, storage=Storage(""), spark=None)
_TURN_SECONDS = 0.005
_TURNS_OF_REST = 3  # a call that has just ended is on its way from its thread to ours
_EXPIRY_SECONDS = 1.0


class NotSettled(AssertionError):
    """Records were still in flight, and nothing had moved, when the test kit's patience ended."""


class _StateTable(StateSink):
    """A state in memory, and the rows that it aggregated."""

    def __init__(self, state: State) -> None:
        self._place = MemoryState()
        super().__init__(self._place, state)
        self.rows: list[Any] = []

    def load(self, rows: "Rows | None") -> None:
        """Begin with these values, and follow what is committed."""
        if rows is not None:
            listed = self.state.table_of(rows).to_pylist()
            stored = [{**row, LINE: "", TXID: 0} for row in listed]
            table = pa.Table.from_pylist(stored, schema=self.shape.schema)
            self._place.update((), table.select(self.shape.row_key), lambda _stored: table)
        self.state.follow()
        self.state.use(self.state.read(self.state.fetch(_CONTEXT, self._place)))

    def stage(self, batch: Batch) -> Staged:
        staged = super().stage(batch)
        rows = list(rows_of(batch.pieces))
        kept = [row for place, row in enumerate(rows) if place not in staged.rejected]
        return replace(staged, parts=(*staged.parts, kept))

    def commit(self, staged: Staged) -> None:
        super().commit(staged)
        self.rows += staged.parts[1]


def _table_of(step: SinkStep) -> MemorySink[Any] | _StateTable:
    if isinstance(step.sink, StateSink):
        return _StateTable(step.sink.state)
    return MemorySink[Any](step.name, schema=_schema_of(step.sink))


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

        `references` has the rows of the topology's reference tables, from the start to `close`. A
        state that the topology aggregates need not be there: it begins empty, and can be looked
        up until `close`. Limits of records per second follow the test's time.
        """
        topology.validate()
        self._topology = topology
        self._patience = patience_seconds
        self._references = dict(references or {})
        self.now = 0.0
        """Seconds since the start."""
        names = [source.topic for source in topology.sources]
        self._partitions = {name: 1 for name in names if isinstance(name, str)}  # by topic
        self._log = MemoryLog(self._partitions)
        self._dead_letters = MemoryDeadLetters()
        self._tables = {step.name: _table_of(step) for step in topology.sink_steps()}
        self._states = [each for each in self._tables.values() if isinstance(each, _StateTable)]
        self._recording = RecordingObserver(lambda: self.now)
        self._store = MemoryStore()
        policy = ConsumerPolicy(
            _assignment(topology, retries, screen),
            **build.sizes_of(topology)._asdict(),
            records_per_second=build.limits_of(topology),
        )

        def make_consumer(
            notify: Callable[[Loss], Future[None]], fences: EpochFencer | None
        ) -> Consumer:
            fetcher = MemoryFetcher(self._log, waits=False)
            ways = Ways(self._store, MemoryCatalogue(self._log), notify, fences)
            rng = random.Random(seed)  # noqa: S311  # a test wants the same numbers again
            return Consumer(fetcher, ways, names, policy, rng)

        self._pipeline = build.build_pipeline(
            topology,
            build.Ports(
                make_consumer,
                self._dead_letters,
                np.random.default_rng(seed),
                lambda: self.now,
                self._tables,
            ),
            build.PipelinePolicy(
                message_timeout_seconds,
                screen=screen or ScreenPolicy(),
                write_retries=WriteRetries(first_seconds=0, longest_seconds=0),
            ),
            [self._recording],
        )
        self._reader: Consumer = self._pipeline.consumer
        self._source_of = cache(topology.source_of)
        self._called_later = [step for step in topology.bolts() if step.has_runner]
        self._keeps_transactions = topology.reliability == "exactly-once"
        self._sent_to: set[Partition] = set()
        self._is_open = False

    def send(
        self,
        *payloads: Any,
        key: bytes | str | None = None,
        headers: Mapping[str, Any] | Sequence[tuple[str, Any]] = (),
        timestamp_ms: int = 0,
        topic: str | None = None,
        partition: int = 0,
    ) -> Self:
        """Append records to a topic (by default the first source's) and run until all settle.

        A payload that is not bytes, text or None is encoded as JSON. A missing partition is
        added. A record has settled when it is acked, rejected, waits for its retry, for another
        record of its key or for its source's rate limit, or is kept by an advanced bolt. Raises
        NotSettled when nothing has moved for `patience_seconds`.
        """
        place = self._partition(self._topic(topic), partition)
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        for payload in payloads:
            self._log.append(
                place,
                payload if isinstance(payload, bytes) else encode(payload),
                key=encode(key) if isinstance(key, str) else key,
                headers=tuple([(name, encode(each)) for name, each in pairs]),
                timestamp_ms=timestamp_ms,
            )
        self._settle()
        return self

    def advance(self, seconds: float) -> Self:
        """Let time pass, and run until all records have settled.

        Retries, ticks, rate limits and timeouts take effect at their time, one after the other.
        """
        self.open()
        end = self.now + seconds
        while (due := self._next_due()) is not None and self.now < due <= end:
            self.now = due
            self._settle()
        self.now = end
        self._settle()
        return self

    def drain(self) -> Self:
        """Drain advanced bolts, as at the end of a run."""
        self._settle(drain=True)
        return self

    @property
    def acked(self) -> list[Record]:
        """Records that are complete: written or filtered, not rejected."""
        rejected = {_place_of(letter.record) for letter in self.rejected}
        acked = self._recording.acked
        return [record for record in acked if _place_of(record) not in rejected]

    @property
    def rejected(self) -> list[DeadLetter]:
        """Dead letters, with their reasons."""
        return list(self._dead_letters.letters)

    @property
    def rows(self) -> list[Any]:
        """Every row that reached a sink, sink by sink."""
        return [row for table in self._tables.values() for row in table.rows]

    def rows_of(self, sink: str) -> list[Any]:
        """The rows that reached the sink of this name. Raises ValueError if there is none."""
        if sink not in self._tables:
            raise ValueError(f"found sink '{sink}', expected {', '.join(self._tables)}")
        return list(self._tables[sink].rows)

    @property
    def retrying(self) -> int:
        """Records that wait for their retry."""
        return sum(part.ledger.failed for part in self._reader.statistics(self.now))

    @property
    def unresolved(self) -> int:
        """Records that are not complete: they wait for their retry, or a bolt keeps them."""
        return sum(part.ledger.pending for part in self._reader.statistics(self.now))

    @property
    def timeline(self) -> list[Event]:
        """The events of all records, in order."""
        return list(self._recording.events)

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
        from service.observability.metrics import metric_values  # noqa: PLC0415

        return metric_values(snapshot_of(self._pipeline, self.now))

    def open(self) -> None:
        """Load the reference tables and open the bolts, unless that is done.

        Raises InvalidTopology where a run would have other reference tables than the test.
        """
        if self._is_open:
            return
        aggregated = [table.state for table in self._states]
        _check_references(self._topology, self._references, aggregated)
        self._is_open = True
        for reference, rows in self._references.items():
            if reference not in aggregated:
                reference.load(rows)
        for sink in self._tables.values():
            sink.open(_CONTEXT)
        for table in self._states:
            table.load(self._references.get(table.state))
        self._dead_letters.open(_CONTEXT)
        self._reader.open()
        self._pipeline.open()

    def close(self) -> None:
        """Close the bolts, end the threads, unload the reference tables. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._pipeline.close(self._patience)
        self._reader.close()
        for sink in self._tables.values():
            sink.close()
        for reference in {*self._references, *(table.state for table in self._states)}:
            reference.unload()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _topic(self, name: str | None) -> str:
        """Return the topic of this name, or the first source's. Raises ValueError."""
        sources = self._topology.sources
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

    def _partition(self, topic: str, number: int) -> Partition:
        """Return a partition, which is added if missing. Raises ValueError."""
        if number < 0:
            raise ValueError(f"partition: found {number}, expected a whole number >= 0")
        if topic not in self._partitions:
            self._partitions[topic] = 1
            self._log.create_topic(topic)
        if number >= self._partitions[topic]:
            self._log.add_partitions(topic, number + 1 - self._partitions[topic])
            self._partitions[topic] = number + 1
        partition = Partition(topic, number)
        self._sent_to.add(partition)
        return partition

    def _settle(self, *, drain: bool = False) -> None:
        """Turn the loop until no record is in flight. Raises NotSettled."""
        self.open()
        patience_ends = time.monotonic() + self._patience
        # Transactions are staged by other threads before they are committed.
        works_elsewhere = self._keeps_transactions or self._called_later
        enough = _TURNS_OF_REST if works_elsewhere else 1
        resting = 0
        while True:
            moved = self._pipeline.step(flush=True, drain=drain)
            self._catch_up()
            resting = resting + 1 if not moved and self._rests else 0
            if (
                resting
                and self._is_all_processed()
                and (self._pipeline.is_idle or resting >= enough)
            ):
                return
            if moved:  # it may have taken long, as under a debugger
                patience_ends = time.monotonic() + self._patience
            elif time.monotonic() > patience_ends:
                raise NotSettled(
                    "records are still in flight and nothing has moved for "
                    f"{self._patience:g} s: {self._kept()}"
                )
            else:
                self._pipeline.results.wait(_TURN_SECONDS)

    def _kept(self) -> str:
        """Name what keeps records in flight."""
        pipeline, kept = self._pipeline, []
        for name, calls in pipeline.runners.statistics().items():
            if waiting := calls.waiting + calls.held:
                kept.append(f"{waiting} values wait for a call of bolt '{name}'")
            if calls.in_flight:
                kept.append(f"{calls.in_flight} calls of bolt '{name}' have not returned")
        kept += [
            f"{outlet.rows_pending} rows wait in sink '{outlet.name}'"
            for outlet in pipeline.outlets
            if outlet.rows_pending
        ]
        if letters := pipeline.dead_letters.pending:
            kept.append(f"{letters} dead letters are not acknowledged")
        return "; ".join(kept) or "no step has one; they wait to be emitted"

    def _catch_up(self) -> None:
        for table in self._states:
            if table.state.has_news:
                self._pipeline.settle()
                table.state.catch_up()

    @property
    def _rests(self) -> bool:
        """Whether no thread works on anything: what is unresolved is kept, or waits its turn."""
        pipeline, steps = self._pipeline, self._called_later
        return (
            not any(map(pipeline.runners.backlog, steps))
            and not (steps and any(r.in_flight for r in pipeline.runners.statistics().values()))
            and not (steps and pipeline.runners.is_ticking)
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
        dues = [manager.retries.due for _, manager in self._reader.assignment.owned()]
        dues += [self._reader.flow.wake, self._pipeline.router.next_tick]
        if self.unresolved > self.retrying:
            dues.append(self.now + _EXPIRY_SECONDS)
        due = min((due for due in dues if due is not None), default=math.inf)
        return due if due < math.inf else None

    def _is_all_processed(self) -> bool:
        """Whether every record is done, in flight, or held up by a rate limit."""
        parts = list(self._reader.statistics(self.now))
        return (
            self._reader.assignment.is_settled
            and self._sent_to <= {part.partition for part in parts}
            and all(
                self._reader.flow.is_held_up(part.partition.topic, self.now)
                or (
                    part.ledger.fetched_to == self._log.log_range(part.partition)[1]
                    and not part.ledger.waiting
                )
                for part in parts
            )
        )


topology_test = TopologyTest


def _place_of(record: Record) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset


def _check_references(
    topology: Topology, filled: Mapping[Reference, Rows], aggregated: Sequence[Reference]
) -> None:
    for reference in filled:
        if reference not in (*topology.references, *aggregated):
            raise InvalidTopology(
                f"reference '{reference.name}' has rows in the test, but a run would not load it. "
                "Name it in topology.uses(...)"
            )
    for reference in topology.references:
        if reference not in (*filled, *aggregated) and not reference.is_loaded:
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
        delivery=build.delivery_of(
            topology, TransactionPolicy(topology.transactions, max_active=100_000, plan_seconds=0)
        ),
    )


def _schema_of(sink: Sink[Any]) -> pa.Schema | None:
    if isinstance(sink, ThroughSpark):
        return None if sink.step.reads_source else sink.step.schema
    schema: pa.Schema | None = getattr(innermost(sink), "schema", None)
    return schema
