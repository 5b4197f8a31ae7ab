"""The catalogue of metrics: every metric is declared here and read from snapshots.

Nothing is counted twice: the figures are the pipeline's own, turned into samples when
Prometheus asks.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from partition.latency import Latencies
from partition.manager import PartitionStatistics
from service.observability.snapshot import SinkStatistics, Snapshot
from service.pipeline.reference_tables import ReferenceStatistics
from topology.monitoring import Distribution
from topology.workers.runners import RunnerStatistics

CONTENT_TYPE = CONTENT_TYPE_LATEST
Samples = list[tuple[tuple[str, ...], float]]
Distributions = list[tuple[tuple[str, ...], Distribution | Latencies]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: a counter's name is given without the `_total` that Prometheus adds.

    A histogram has `distributions` instead of samples.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Snapshot], Samples] = lambda _snapshot: []
    distributions: Callable[[Snapshot], Distributions] = lambda _snapshot: []


def _total(read: Callable[[Snapshot], float | None]) -> Callable[[Snapshot], Samples]:
    """One sample, if the figure is known."""
    return lambda snapshot: [
        ((), float(figure)) for figure in [read(snapshot)] if figure is not None
    ]


def _per_partition(
    read: Callable[[PartitionStatistics], float | None],
) -> Callable[[Snapshot], Samples]:
    """One sample for each partition of which the figure is known."""
    return lambda snapshot: [
        ((part.partition.topic, str(part.partition.number)), float(figure))
        for part in snapshot.partitions
        if (figure := read(part)) is not None
    ]


def _halted(snapshot: Snapshot) -> Samples:
    """Also of partitions that could not even be opened, which have no other figures."""
    known = {part.partition for part in snapshot.partitions} | set(snapshot.halted)
    return [
        ((each.topic, str(each.number)), float(each in snapshot.halted)) for each in sorted(known)
    ]


def _lost(snapshot: Snapshot) -> Samples:
    return [
        ((part.partition.topic, str(part.partition.number), reason), float(count))
        for part in snapshot.partitions
        for reason, count in sorted(part.lost.items())
    ]


def _per_sink(read: Callable[[SinkStatistics], float]) -> Callable[[Snapshot], Samples]:
    return lambda s: [((sink.sink,), float(read(sink))) for sink in s.sinks]


def _failing_seconds(since: float | None, snapshot: Snapshot) -> float:
    return 0.0 if since is None else max(0.0, snapshot.taken_at - since)


def _per_reference(read: Callable[[ReferenceStatistics], float]) -> Callable[[Snapshot], Samples]:
    return lambda s: [((each.reference,), float(read(each))) for each in s.references]


def _per_runner(read: Callable[[RunnerStatistics], float]) -> Callable[[Snapshot], Samples]:
    return lambda s: [((step,), float(read(each))) for step, each in sorted(s.runners.items())]


def _per_step(snapshot: Snapshot) -> Samples:
    return [((step,), float(count)) for step, count in sorted(snapshot.failures.items())]


_PARTITION = ("topic", "partition")
_SINK = ("sink",)
_REFERENCE = ("reference",)
_STEP = ("step",)

CATALOGUE: tuple[Metric, ...] = (
    Metric("headrace_partition_read_records", "counter",
           "Records emitted for the first time.", _PARTITION, _per_partition(lambda p: p.read)),
    Metric("headrace_partition_retried_records", "counter",
           "Emissions of a record after its first.", _PARTITION,
           _per_partition(lambda p: p.retried)),
    Metric("headrace_partition_dead_letters", "counter",
           "Dead letters sent of the partition's records; after a crash one may be sent again.",
           _PARTITION,
           lambda s: [((t, str(p)), float(n)) for (t, p), n in sorted(s.dead_letters.items())]),
    Metric("headrace_partition_commit_age_seconds", "gauge",
           "How long the stored offset has stood still short of the log's end; 0 if it is there.",
           _PARTITION, _per_partition(lambda p: p.commit_age_seconds)),
    Metric("headrace_partition_owner_epoch", "gauge",
           "The epoch under which the partition is ours: how often it has been claimed.",
           _PARTITION, _per_partition(lambda p: p.epoch)),
    Metric("headrace_partition_ignored_resolutions", "counter",
           "Late, repeated or unknown acks and fails.", _PARTITION,
           _per_partition(lambda p: p.ledger.ignored)),
    Metric("headrace_partition_last_completed_offset", "gauge",
           "Lowest offset that is not resolved: the next to read after a crash.", _PARTITION,
           _per_partition(lambda p: p.ledger.last_completed_offset)),
    Metric("headrace_partition_committed_offset", "gauge",
           "The last completed offset last stored in ZooKeeper.", _PARTITION,
           _per_partition(lambda p: p.committed)),
    Metric("headrace_partition_emitted_offset", "gauge",
           "The next offset to emit.", _PARTITION, _per_partition(lambda p: p.ledger.emitted_to)),
    Metric("headrace_partition_pending_records", "gauge",
           "Records fetched or emitted and not resolved.", _PARTITION,
           _per_partition(lambda p: p.ledger.pending)),
    Metric("headrace_partition_waiting_records", "gauge",
           "Records fetched and not emitted.", _PARTITION,
           _per_partition(lambda p: p.ledger.waiting)),
    Metric("headrace_partition_failed_records", "gauge",
           "Records that wait for their retry.", _PARTITION,
           _per_partition(lambda p: p.ledger.failed)),
    Metric("headrace_partition_pending_bytes", "gauge",
           "Payload held for records from the last completed offset on.", _PARTITION,
           _per_partition(lambda p: p.pending_bytes)),
    Metric("headrace_partition_lag_records", "gauge",
           "Offsets between what is committed and the log's end.", _PARTITION,
           _per_partition(lambda p: p.lag)),
    Metric("headrace_partition_open_transactions", "gauge",
           "Transactions that are recorded and not committed in every sink (exactly once).",
           _PARTITION, _per_partition(lambda p: p.open_transactions)),
    Metric("headrace_partition_committed_transactions", "gauge",
           "The last txid that every sink has committed, so how many ever (exactly once).",
           _PARTITION, _per_partition(lambda p: p.committed_txid)),
    Metric("headrace_partition_log_start_offset", "gauge",
           "The log's first offset, as the client last heard of it.", _PARTITION,
           _per_partition(lambda p: p.log_start)),
    Metric("headrace_partition_log_end_offset", "gauge",
           "The next offset to be written, as the client last heard of it.", _PARTITION,
           _per_partition(lambda p: p.log_end)),
    Metric("headrace_partition_oldest_pending_seconds", "gauge",
           "How long ago the oldest unresolved record was fetched; 0 if none is unresolved.",
           _PARTITION, _per_partition(lambda p: p.oldest_pending_seconds)),
    Metric("headrace_partition_fetch_latency_seconds", "gauge",
           "From the time stamp of the newest record fetched to its arrival here.", _PARTITION,
           _per_partition(lambda p: p.fetch_latency_seconds)),
    Metric("headrace_partition_end_to_end_latency_seconds", "histogram",
           "From a record's Kafka time stamp to its commit. None on the spark engine.", ("topic",),
           distributions=lambda s: [((t,), e.end_to_end) for t, e in sorted(s.latencies.items())]),
    Metric("headrace_partition_processing_latency_seconds", "histogram",
           "From a record's fetch to its commit. None on the spark engine.", ("topic",),
           distributions=lambda s: [((t,), e.processing) for t, e in sorted(s.latencies.items())]),
    Metric("headrace_partition_transaction_wait_seconds", "gauge",
           "How long a transaction that a producer has not ended has held readers up; else 0.",
           _PARTITION, _per_partition(lambda p: p.transaction_wait_seconds)),
    Metric("headrace_partition_source_lost_records", "counter",
           "Records the source lost, or that policy skipped, by reason.",
           (*_PARTITION, "reason"), _lost),
    Metric("headrace_partition_halted_state", "gauge",
           "1 while nothing more of the partition is read, because it cannot go on.", _PARTITION,
           _halted),
    Metric("headrace_partition_unmirrored_commits", "counter",
           "Commits of a partition that the consumer group did not take; nothing depends on it.",
           (), _total(lambda s: s.mirror_failures)),
    Metric("headrace_topology_failed_tuples", "counter",
           "Tries of a record that failed and were not final, by the step that failed: each was "
           "followed by a retry or, when those were used up, by a dead letter. What a bolt or sink "
           "rejects for good is not among them.",
           _STEP, _per_step),
    Metric("headrace_topology_dead_letters", "counter",
           "Dead letters sent, by the step that gave up and the class of its last error.",
           ("step", "error"),
           lambda s: [(key, float(n)) for key, n in sorted(s.dead_letter_causes.items())]),
    Metric("headrace_topology_executed_tuples", "counter",
           "Values that a bolt was called with, retries included. On the spark engine bolts run "
           "elsewhere, and none are counted.",
           _STEP, lambda s: [((k,), float(d.count)) for k, d in sorted(s.call_times.items())]),
    Metric("headrace_topology_call_seconds", "histogram",
           "How long a bolt took for a value: each call of a blocking bolt, and of an "
           "async one those of 16 of its workers, for all; of others the mean of those called "
           "together.",
           _STEP, distributions=lambda s: [((k,), d) for k, d in sorted(s.call_times.items())]),
    Metric("headrace_topology_running_calls", "gauge",
           "Calls that run, of a bolt that is async, blocking, ordered or in tasks.",
           _STEP, _per_runner(lambda r: r.in_flight)),
    Metric("headrace_topology_waiting_tuples", "gauge",
           "Tuples whose call has not started: for want of a worker, or behind their key.",
           _STEP, _per_runner(lambda r: r.waiting)),
    Metric("headrace_topology_holding_records", "gauge",
           "Failed records that others of their key or partition wait for.",
           _STEP, _per_runner(lambda r: r.held)),
    Metric("headrace_topology_abandoned_calls", "gauge",
           "Calls past their time-out that have not returned yet.",
           _STEP, _per_runner(lambda r: r.abandoned)),
    Metric("headrace_topology_timed_out_calls", "counter", "Calls that took too long.",
           _STEP, _per_runner(lambda r: r.timeouts)),
    Metric("headrace_topology_late_calls", "counter",
           "Calls that returned after their time-out, to no effect.",
           _STEP, _per_runner(lambda r: r.late)),
    Metric("headrace_topology_failed_ticks", "counter",
           "Ticks of a bolt that raised or took too long.", _STEP,
           lambda s: [((step,), float(count)) for step, count in sorted(s.failed_ticks.items())]),
    Metric("headrace_topology_reference_rows", "gauge",
           "Rows of a reference table that look-ups are answered from.", _REFERENCE,
           _per_reference(lambda r: r.rows)),
    Metric("headrace_topology_reference_age_seconds", "gauge",
           "How long ago the reading of these rows began.", _REFERENCE,
           _per_reference(lambda r: r.age_seconds)),
    Metric("headrace_topology_reference_loads", "counter",
           "Loads of a reference table that were put in place, the first among them.", _REFERENCE,
           _per_reference(lambda r: r.loads)),
    Metric("headrace_topology_reference_failed_loads", "counter",
           "Refreshes of a reference table that failed; the rows before stay in place.", _REFERENCE,
           _per_reference(lambda r: r.failed_loads)),
    Metric("headrace_acker_pending_trees", "gauge", "Trees begun and not resolved.", (),
           _total(lambda s: s.acker.in_flight)),
    Metric("headrace_acker_acked_trees", "counter", "Trees completed.", (),
           _total(lambda s: s.acker.acked)),
    Metric("headrace_acker_failed_trees", "counter", "Trees failed by a bolt.", (),
           _total(lambda s: s.acker.failed)),
    Metric("headrace_acker_expired_trees", "counter", "Trees failed by their time-out.", (),
           _total(lambda s: s.acker.expired)),
    Metric("headrace_acker_ignored_messages", "counter",
           "Late, repeated or unknown messages to the acker.", (),
           _total(lambda s: s.acker.ignored)),
    Metric("headrace_acker_unanchored_tuples", "counter",
           "Tuples emitted without a tree: nobody waits for them.", (),
           _total(lambda s: s.acker.unanchored)),
    Metric("headrace_sinks_written_rows", "counter", "Rows durable in the sink.", _SINK,
           _per_sink(lambda s: s.rows_written)),
    Metric("headrace_sinks_rejected_rows", "counter",
           "Rows that do not fit the sink; their records are dead-lettered.", _SINK,
           _per_sink(lambda s: s.rows_rejected)),
    Metric("headrace_sinks_written_batches", "counter", "Micro-batches written.", _SINK,
           _per_sink(lambda s: s.write_times.count)),
    Metric("headrace_sinks_write_seconds", "counter",
           "Time spent committing; staging goes on meanwhile.", _SINK,
           _per_sink(lambda s: s.write_times.seconds)),
    Metric("headrace_sinks_written_bytes", "counter",
           "What those rows have as columns, before compression; rows that come one by one are "
           "estimated, rejected ones included. None on the spark engine.", _SINK,
           lambda s: [((each.sink,), float(each.bytes_written))
                      for each in s.sinks if each.bytes_written is not None]),
    Metric("headrace_sinks_batch_seconds", "histogram",
           "How long a micro-batch, or a commit of transactions, took from its first try until it "
           "was durable.", _SINK,
           distributions=lambda s: [((each.sink,), each.write_times) for each in s.sinks]),
    Metric("headrace_sinks_failing_seconds", "gauge",
           "For how long the batch in hand has failed; 0 while all is well.", _SINK,
           lambda s: [((e.sink,), _failing_seconds(e.failing_since, s)) for e in s.sinks]),
    Metric("headrace_sinks_retried_writes", "counter", "Tries of a batch that failed.", _SINK,
           _per_sink(lambda s: s.retries)),
    Metric("headrace_sinks_pending_rows", "gauge", "Rows on their way.", _SINK,
           _per_sink(lambda s: s.rows_pending)),
    Metric("headrace_sinks_dead_letters_pending_records", "gauge",
           "Dead letters the broker has not acknowledged.", (),
           _total(lambda s: s.dead_letters_pending)),
    Metric("headrace_sinks_dead_letters_waiting_seconds", "gauge",
           "How long dead letters have waited without one being acknowledged; 0 if none waits.", (),
           _total(lambda s: s.dead_letters_waiting_seconds)),
    Metric("headrace_sinks_dead_letters_refused_records", "counter",
           "Deliveries of a dead letter that failed and are tried again.", (),
           _total(lambda s: s.dead_letters_refused)),
    Metric("headrace_service_written_records", "counter",
           "Records resolved with every row durable.", (), _total(lambda s: s.written)),
    Metric("headrace_service_filtered_records", "counter",
           "Records dropped on purpose.", (), _total(lambda s: s.filtered)),
    Metric("headrace_service_dead_lettered_records", "counter",
           "Records resolved by a durable dead letter.", (), _total(lambda s: s.dead_lettered)),
    Metric("headrace_service_held_back_state", "gauge",
           "1 while a slow sink, bolt or dead-letter topic holds new records back.", (),
           _total(lambda s: s.held_back)),
    Metric("headrace_service_held_back_seconds", "counter",
           "Time in which something full held new records back: a step, `dead-letters` or `trees`.",
           _STEP, lambda s: [((name,), spent) for name, spent in s.held_back_seconds.items()]),
    Metric("headrace_service_kafka_available_state", "gauge", "1 while Kafka answers.", (),
           _total(lambda s: s.kafka_available)),
    Metric("headrace_service_zookeeper_available_state", "gauge", "1 while ZooKeeper answers.",
           (), _total(lambda s: s.store_available)),
    Metric("headrace_service_commit_seconds", "gauge",
           "How long the last write of offsets took, or the one under way if that is longer.",
           (), _total(lambda s: s.commit_seconds)),
    Metric("headrace_service_spark_running_state", "gauge",
           "1 while Spark's JVM is there, where one is used.", (),
           _total(lambda s: s.spark.is_running if s.spark else None)),
    Metric("headrace_service_spark_restarts", "counter",
           "Times that Spark's JVM was started anew.", (),
           _total(lambda s: s.spark.restarts if s.spark else None)),
    Metric("headrace_service_traced_records", "counter",
           "Records whose way was traced, where tracing is on.", (),
           _total(lambda s: s.traces.traced if s.traces else None)),
    Metric("headrace_service_untraced_records", "counter",
           "Records that were to be traced and were not, as too many were at that moment.", (),
           _total(lambda s: s.traces.skipped if s.traces else None)),
    Metric("headrace_service_range_groups_failing_seconds", "gauge",
           "For how long a group of ranges has failed on Spark's executors; 0 while all is well.",
           (), _total(lambda s: _failing_seconds(s.apart.failing_since, s))),
    Metric("headrace_service_retried_range_groups", "counter",
           "Tries of a group of ranges that failed on Spark's executors.", (),
           _total(lambda s: s.apart.retries)),
    Metric("headrace_service_taken_partitions", "counter",
           "Times that a partition became this replica's.", (), _total(lambda s: s.moves.taken)),
    Metric("headrace_service_released_partitions", "counter",
           "Times that a partition ceased to be this replica's, for whatever reason.", (),
           _total(lambda s: s.moves.released)),
    Metric("headrace_service_fenced_partitions", "counter",
           "Times that a partition was refused to this replica because it has a later owner.", (),
           _total(lambda s: s.moves.fenced)),
    Metric("headrace_service_snapshot_age_seconds", "gauge",
           "How old these figures are; it grows while something holds the loop.", (),
           _total(lambda s: max(0.0, time.monotonic() - s.taken_at))),
)  # fmt: skip


def metric_values(snapshot: Snapshot) -> dict[str, float]:
    """Every sample by its name and labels, written as in Prometheus' text form."""
    found: dict[str, float] = {}
    for metric in CATALOGUE:
        name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
        samples = [(name, labels, figure) for labels, figure in metric.samples(snapshot)]
        for labels, spread in metric.distributions(snapshot):
            samples.append((f"{name}_count", labels, float(spread.count)))
            samples.append((f"{name}_sum", labels, spread.seconds))
        for full, labels, figure in samples:
            named = ",".join(f'{k}="{v}"' for k, v in zip(metric.labels, labels, strict=True))
            found[f"{full}{{{named}}}" if named else full] = figure
    return found


_FAMILIES: dict[str, Callable[..., Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _buckets(spread: Distribution | Latencies) -> list[tuple[str, int]]:
    """Return Prometheus' cumulative buckets."""
    limits = [*map(floatToGoString, spread.bounds), "+Inf"]
    return list(zip(limits, accumulate(spread.counts), strict=True))


class Metrics(Collector):
    """The newest snapshot in Prometheus' text form. Any thread may ask."""

    def __init__(self, snapshot: Callable[[], Snapshot | None]) -> None:
        self._snapshot = snapshot
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def exposition(self) -> bytes:
        """Return the body of `/metrics`; before the first snapshot it is empty."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Any]:
        snapshot = self._snapshot()
        if snapshot is None:
            return
        for metric in CATALOGUE:
            family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.samples(snapshot):
                family.add_metric(labels, value)
            for labels, spread in metric.distributions(snapshot):
                family.add_metric(labels, _buckets(spread), spread.seconds)
            yield family
