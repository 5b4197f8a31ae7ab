"""The catalogue of metrics: every metric is declared here and read from snapshots.

Nothing is counted twice: the figures are the pipeline's own, turned into samples when
Prometheus asks.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from partition.latency import Latencies
from partition.records import Partition
from service.observability.snapshot import Snapshot
from topology.monitoring import Distribution

CONTENT_TYPE = CONTENT_TYPE_LATEST
Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]
Samples = list[tuple[Labels, float]]
Distributions = list[tuple[Labels, Distribution | Latencies]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: a counter's name is given without the `_total` that Prometheus adds.

    A histogram has `distributions` instead of samples.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Snapshot], Samples] = lambda _snapshot: []
    distributions: Callable[[Snapshot], Distributions] = lambda _snapshot: []


def _each(
    prefix: str, labels: tuple[str, ...], rows: Callable[[Snapshot], Iterable[tuple[Labels, T]]]
) -> Callable[[str, Kind, str, Callable[[T], float | None]], Metric]:
    """Return a constructor of metrics with a sample for each row of which the figure is known."""

    def metric(name: str, kind: Kind, text: str, read: Callable[[T], float | None]) -> Metric:
        def samples(snapshot: Snapshot) -> Samples:
            figures = ((found, read(row)) for found, row in rows(snapshot))
            return [(found, float(figure)) for found, figure in figures if figure is not None]

        return Metric(f"headrace_{prefix}{name}", kind, text, labels, samples)

    return metric


def _labels(partition: Partition) -> tuple[str, str]:
    return partition.topic, str(partition.number)


def _halted(snapshot: Snapshot) -> Samples:
    """Also of partitions that could not even be opened, which have no other figures."""
    known = {part.partition for part in snapshot.partitions} | set(snapshot.halted)
    return [(_labels(each), float(each in snapshot.halted)) for each in sorted(known)]


def _lost(snapshot: Snapshot) -> Samples:
    return [
        ((*_labels(part.partition), reason), float(count))
        for part in snapshot.partitions
        for reason, count in sorted(part.lost.items())
    ]


def _failing_seconds(since: float | None, snapshot: Snapshot) -> float:
    return 0.0 if since is None else max(0.0, snapshot.taken_at - since)


_PARTITION = ("topic", "partition")
_STEP = ("step",)

_total = _each("", (), lambda s: [((), s)])
_partition = _each(
    "partition_", _PARTITION, lambda s: [(_labels(p.partition), p) for p in s.partitions]
)
_sink = _each("sinks_", ("sink",), lambda s: [((each.sink,), each) for each in s.sinks])
_runner = _each("topology_", _STEP, lambda s: [((step,), r) for step, r in s.runners.items()])
_reference = _each(
    "topology_reference_", ("reference",), lambda s: [((r.reference,), r) for r in s.references]
)


def _step(
    name: str, kind: Kind, text: str, read: Callable[[Snapshot], Mapping[str, float]]
) -> Metric:
    def rows(snapshot: Snapshot) -> list[tuple[Labels, float]]:
        return [((step,), figure) for step, figure in sorted(read(snapshot).items())]

    return _each("", _STEP, rows)(name, kind, text, float)


CATALOGUE: tuple[Metric, ...] = (
    _partition("read_records", "counter", "Records emitted for the first time.", lambda p: p.read),
    _partition("retried_records", "counter", "Emissions of a record after its first.",
               lambda p: p.retried),
    Metric("headrace_partition_dead_letters", "counter",
           "Dead letters sent of the partition's records; after a crash one may be sent again.",
           _PARTITION,
           lambda s: [((t, str(p)), float(n)) for (t, p), n in sorted(s.dead_letters.items())]),
    _partition("commit_age_seconds", "gauge",
               "How long the stored offset has stood still short of the log's end; 0 if it is "
               "there.", lambda p: p.commit_age_seconds),
    _partition("owner_epoch", "gauge",
               "The epoch under which the partition is ours: how often it has been claimed.",
               lambda p: p.epoch),
    _partition("ignored_resolutions", "counter", "Late, repeated or unknown acks and fails.",
               lambda p: p.ledger.ignored),
    _partition("last_completed_offset", "gauge",
               "Lowest offset that is not resolved: the next to read after a crash.",
               lambda p: p.ledger.last_completed_offset),
    _partition("committed_offset", "gauge", "The last completed offset last stored in ZooKeeper.",
               lambda p: p.committed),
    _partition("emitted_offset", "gauge", "The next offset to emit.",
               lambda p: p.ledger.emitted_to),
    _partition("pending_records", "gauge", "Records fetched or emitted and not resolved.",
               lambda p: p.ledger.pending),
    _partition("waiting_records", "gauge", "Records fetched and not emitted.",
               lambda p: p.ledger.waiting),
    _partition("failed_records", "gauge", "Records that wait for their retry.",
               lambda p: p.ledger.failed),
    _partition("pending_bytes", "gauge",
               "Payload held for records from the last completed offset on.",
               lambda p: p.pending_bytes),
    _partition("lag_records", "gauge", "Offsets between what is committed and the log's end.",
               lambda p: p.lag),
    _partition("open_transactions", "gauge",
               "Transactions that are recorded and not committed in every sink (exactly once).",
               lambda p: p.open_transactions),
    _partition("committed_transactions", "gauge",
               "The last txid that every sink has committed, so how many ever (exactly once).",
               lambda p: p.committed_txid),
    _partition("log_start_offset", "gauge",
               "The log's first offset, as the client last heard of it.", lambda p: p.log_start),
    _partition("log_end_offset", "gauge",
               "The next offset to be written, as the client last heard of it.",
               lambda p: p.log_end),
    _partition("oldest_pending_seconds", "gauge",
               "How long ago the oldest unresolved record was fetched; 0 if none is unresolved.",
               lambda p: p.oldest_pending_seconds),
    _partition("fetch_latency_seconds", "gauge",
               "From the time stamp of the newest record fetched to its arrival here.",
               lambda p: p.fetch_latency_seconds),
    Metric("headrace_partition_end_to_end_latency_seconds", "histogram",
           "From a record's Kafka time stamp to its commit. None on the spark engine.", ("topic",),
           distributions=lambda s: [((t,), e.end_to_end) for t, e in sorted(s.latencies.items())]),
    Metric("headrace_partition_processing_latency_seconds", "histogram",
           "From a record's fetch to its commit. None on the spark engine.", ("topic",),
           distributions=lambda s: [((t,), e.processing) for t, e in sorted(s.latencies.items())]),
    _partition("transaction_wait_seconds", "gauge",
               "How long a transaction that a producer has not ended has held readers up; else 0.",
               lambda p: p.transaction_wait_seconds),
    Metric("headrace_partition_source_lost_records", "counter",
           "Records the source lost, or that policy skipped, by reason.", (*_PARTITION, "reason"),
           _lost),
    Metric("headrace_partition_halted_state", "gauge",
           "1 while nothing more of the partition is read, because it cannot go on.", _PARTITION,
           _halted),
    _total("partition_unmirrored_commits", "counter",
           "Commits of a partition that the consumer group did not take; nothing depends on it.",
           lambda s: s.mirror_failures),
    _step("topology_failed_tuples", "counter",
          "Tries of a record that failed and were not final, by the step that failed: each was "
          "followed by a retry or, when those were used up, by a dead letter. What a bolt or sink "
          "rejects for good is not among them.", lambda s: s.failures),
    Metric("headrace_topology_dead_letters", "counter",
           "Dead letters sent, by the step that gave up and the class of its last error.",
           ("step", "error"),
           lambda s: [(key, float(n)) for key, n in sorted(s.dead_letter_causes.items())]),
    _step("topology_executed_tuples", "counter",
          "Values that a bolt was called with, retries included. On the spark engine bolts run "
          "elsewhere, and none are counted.",
          lambda s: {step: times.count for step, times in s.call_times.items()}),
    Metric("headrace_topology_call_seconds", "histogram",
           "How long a bolt took for a value: each call of a blocking bolt, and of an async one "
           "those of 16 of its workers, for all; of others the mean of those called together.",
           _STEP, distributions=lambda s: [((k,), d) for k, d in sorted(s.call_times.items())]),
    _runner("running_calls", "gauge",
            "Calls that run, of a bolt that is async, blocking, ordered or in tasks.",
            lambda r: r.in_flight),
    _runner("waiting_tuples", "gauge",
            "Tuples whose call has not started: for want of a worker, or behind their key.",
            lambda r: r.waiting),
    _runner("holding_records", "gauge",
            "Failed records that others of their key or partition wait for.", lambda r: r.held),
    _runner("abandoned_calls", "gauge", "Calls past their time-out that have not returned yet.",
            lambda r: r.abandoned),
    _runner("timed_out_calls", "counter", "Calls that took too long.", lambda r: r.timeouts),
    _runner("late_calls", "counter", "Calls that returned after their time-out, to no effect.",
            lambda r: r.late),
    _step("topology_failed_ticks", "counter", "Ticks of a bolt that raised or took too long.",
          lambda s: s.failed_ticks),
    _reference("rows", "gauge", "Rows of a reference table that look-ups are answered from.",
               lambda r: r.rows),
    _reference("age_seconds", "gauge", "How long ago the reading of these rows began.",
               lambda r: r.age_seconds),
    _reference("loads", "counter",
               "Loads of a reference table that were put in place, the first among them.",
               lambda r: r.loads),
    _reference("failed_loads", "counter",
               "Refreshes of a reference table that failed; the rows before stay in place.",
               lambda r: r.failed_loads),
    _total("acker_pending_trees", "gauge", "Trees begun and not resolved.",
           lambda s: s.acker.in_flight),
    _total("acker_acked_trees", "counter", "Trees completed.", lambda s: s.acker.acked),
    _total("acker_failed_trees", "counter", "Trees failed by a bolt.", lambda s: s.acker.failed),
    _total("acker_expired_trees", "counter", "Trees failed by their time-out.",
           lambda s: s.acker.expired),
    _total("acker_ignored_messages", "counter", "Late, repeated or unknown messages to the acker.",
           lambda s: s.acker.ignored),
    _total("acker_unanchored_tuples", "counter",
           "Tuples emitted without a tree: nobody waits for them.", lambda s: s.acker.unanchored),
    _sink("written_rows", "counter", "Rows durable in the sink.", lambda s: s.rows_written),
    _sink("rejected_rows", "counter",
          "Rows that do not fit the sink; their records are dead-lettered.",
          lambda s: s.rows_rejected),
    _sink("written_batches", "counter", "Micro-batches written.", lambda s: s.write_times.count),
    _sink("write_seconds", "counter", "Time spent committing; staging goes on meanwhile.",
          lambda s: s.write_times.seconds),
    _sink("written_bytes", "counter",
          "What those rows have as columns, before compression; rows that come one by one are "
          "estimated, rejected ones included. None on the spark engine.",
          lambda s: s.bytes_written),
    Metric("headrace_sinks_batch_seconds", "histogram",
           "How long a micro-batch, or a commit of transactions, took from its first try until it "
           "was durable.", ("sink",),
           distributions=lambda s: [((each.sink,), each.write_times) for each in s.sinks]),
    Metric("headrace_sinks_failing_seconds", "gauge",
           "For how long the batch in hand has failed; 0 while all is well.", ("sink",),
           lambda s: [((e.sink,), _failing_seconds(e.failing_since, s)) for e in s.sinks]),
    _sink("retried_writes", "counter", "Tries of a batch that failed.", lambda s: s.retries),
    _sink("pending_rows", "gauge", "Rows on their way.", lambda s: s.rows_pending),
    _total("sinks_dead_letters_pending_records", "gauge",
           "Dead letters the broker has not acknowledged.", lambda s: s.dead_letters_pending),
    _total("sinks_dead_letters_waiting_seconds", "gauge",
           "How long dead letters have waited without one being acknowledged; 0 if none waits.",
           lambda s: s.dead_letters_waiting_seconds),
    _total("sinks_dead_letters_refused_records", "counter",
           "Deliveries of a dead letter that failed and are tried again.",
           lambda s: s.dead_letters_refused),
    _total("service_written_records", "counter", "Records resolved with every row durable.",
           lambda s: s.written),
    _total("service_filtered_records", "counter", "Records dropped on purpose.",
           lambda s: s.filtered),
    _total("service_dead_lettered_records", "counter", "Records resolved by a durable dead letter.",
           lambda s: s.dead_lettered),
    _total("service_held_back_state", "gauge",
           "1 while a slow sink, bolt or dead-letter topic holds new records back.",
           lambda s: s.held_back),
    _step("service_held_back_seconds", "counter",
          "Time in which something full held new records back: a step, `dead-letters` or `trees`.",
          lambda s: s.held_back_seconds),
    _total("service_kafka_available_state", "gauge", "1 while Kafka answers.",
           lambda s: s.kafka_available),
    _total("service_zookeeper_available_state", "gauge", "1 while ZooKeeper answers.",
           lambda s: s.store_available),
    _total("service_commit_seconds", "gauge",
           "How long the last write of offsets took, or the one under way if that is longer.",
           lambda s: s.commit_seconds),
    _total("service_spark_running_state", "gauge",
           "1 while Spark's JVM is there, where one is used.",
           lambda s: s.spark.is_running if s.spark else None),
    _total("service_spark_restarts", "counter", "Times that Spark's JVM was started anew.",
           lambda s: s.spark.restarts if s.spark else None),
    _total("service_traced_records", "counter",
           "Records whose way was traced, where tracing is on.",
           lambda s: s.traces.traced if s.traces else None),
    _total("service_untraced_records", "counter",
           "Records that were to be traced and were not, as too many were at that moment.",
           lambda s: s.traces.skipped if s.traces else None),
    _total("service_range_groups_failing_seconds", "gauge",
           "For how long a group of ranges has failed on Spark's executors; 0 while all is well.",
           lambda s: _failing_seconds(s.apart.failing_since, s)),
    _total("service_retried_range_groups", "counter",
           "Tries of a group of ranges that failed on Spark's executors.",
           lambda s: s.apart.retries),
    _total("service_taken_partitions", "counter", "Times that a partition became this replica's.",
           lambda s: s.moves.taken),
    _total("service_released_partitions", "counter",
           "Times that a partition ceased to be this replica's, for whatever reason.",
           lambda s: s.moves.released),
    _total("service_fenced_partitions", "counter",
           "Times that a partition was refused to this replica because it has a later owner.",
           lambda s: s.moves.fenced),
    _total("service_snapshot_age_seconds", "gauge",
           "How old these figures are; it grows while something holds the loop.",
           lambda s: max(0.0, time.monotonic() - s.taken_at)),
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
    limits = [*map(floatToGoString, spread.bounds), "+Inf"]
    return list(zip(limits, accumulate(spread.counts), strict=True))


class Metrics(Collector):
    """The newest snapshot in Prometheus' text form. Any thread may ask."""

    def __init__(self, snapshot: Callable[[], Snapshot | None]) -> None:
        self._snapshot = snapshot
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def exposition(self) -> bytes:
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
