"""Wires a topology to its servers: the only module that knows all packages."""

import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from partition.assignment import Assignment
from partition.consumer import Consumer, ConsumerPolicy
from partition.interfaces import Catalogue, Fetcher
from partition.kafka.kafka_catalogue import KafkaCatalogue
from partition.kafka.kafka_fetcher import KafkaFetcher
from partition.offsets.holdings import NodeNames
from partition.offsets.offset_store import OffsetStore
from partition.recovery import Loss, Ways
from partition.replicas.balance import Copartitions, Member
from partition.replicas.heartbeat import Heartbeats
from partition.zookeeper.zookeeper_store import ZooKeeperStore
from service.config.settings import Config
from service.errors import BadConfig
from service.jars.resolver import resolve
from service.membership import GroupMembership, copartitions_of
from service.pipeline import build
from service.pipeline.committers import EpochFencer
from service.pipeline.loop import Pipeline
from service.pipeline.reference_tables import References
from service.spark_engine.engine import SparkEngine, check_runs_on_spark, spark_engine
from sinks.names import is_uri, local_path
from sinks.references import needs_spark, read_reference
from sinks.spark.driver import SparkDriver
from sinks.spark.settings import check_installed
from sinks.spark.spark_sink import SparkSink
from sinks.storage import option_text, spark_jars
from sinks.tables.iceberg import IcebergSink
from sinks.tables.table import TableSink
from topology.errors import missing_extra
from topology.reference import Reference
from topology.sink import DeadLetterSink, Sink, SinkContext, chain_of, innermost
from topology.spark_step import ThroughSpark
from topology.state import State
from topology.topology import Topology

if TYPE_CHECKING:
    from service.observability.tracing import Tracing

_TABLES = (SparkSink, TableSink)  # they have a path
_MOMENT_SECONDS = 0.5
_SPARK_SECONDS = 10.0
_SPANS_SECONDS = 2.0


class Deadline:
    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._ends - self._clock())


@dataclass(slots=True)
class Parts:
    """A pipeline and all that it is connected to."""

    topology: Topology
    config: Config
    fetcher: Fetcher
    store: OffsetStore
    catalogue: Catalogue
    references: References
    membership: GroupMembership
    pipeline: Pipeline | SparkEngine
    spark: SparkDriver | None = None
    tracing: "Tracing | None" = None
    closes_spark: bool = True  # False: whoever started it does

    @property
    def name(self) -> str:
        return self.config.pipeline.name or self.topology.name

    @property
    def dead_letter_sink(self) -> DeadLetterSink:
        return _dead_letter_sink(self.topology)

    def open(self) -> None:
        """Open sinks, then the consumer, then the bolts: what receives before what sends.

        The fetcher's client comes first: it waits for nobody, and rejects invalid properties.
        The dead letters' producer tells of an absent broker before anything starts Spark. Then
        come the reference tables, which bolts may look into as soon as they open.
        """
        self.fetcher.open()
        if self.tracing is not None:
            self.tracing.open()
        self.dead_letter_sink.open(self.context("dead-letters"))
        self.references.open()
        for step in self.topology.sink_steps():
            step.sink.open(self.context(step.name))
        self.pipeline.consumer.open()
        self.pipeline.open()

    def context(self, sink: str) -> SinkContext:
        return SinkContext(
            pipeline=self.name,
            sink=sink,
            kafka=self.config.kafka,
            storage=self.config.storage.storage(),
            spark=self.spark,
            exactly_once=self.topology.reliability == "exactly-once",
        )

    def close(self, deadline: Deadline) -> None:
        """Close everything, also what never opened, in the order opposite to `open`.

        What does not end by the deadline, or a moment after it, is left behind or killed.
        """
        with ExitStack() as closing:  # last in, first out; one that raises stops no other
            if self.spark is not None and self.closes_spark:
                spark = self.spark
                closing.callback(lambda: spark.close(min(_SPARK_SECONDS, deadline.left)))
            if self.tracing is not None:
                tracing = self.tracing
                closing.callback(lambda: tracing.close(min(_SPANS_SECONDS, deadline.left)))
            closing.callback(lambda: self.references.close(min(_MOMENT_SECONDS, deadline.left)))
            for step in self.topology.sink_steps():
                closing.callback(step.sink.close)
            closing.callback(self.dead_letter_sink.close)
            closing.callback(self.pipeline.consumer.close)
            closing.callback(lambda: self.pipeline.close(max(_MOMENT_SECONDS, deadline.left)))

    @property
    def table(self) -> str | None:
        """The local path or URI of the first table; None if there is no table."""
        sinks = [innermost(step.sink) for step in self.topology.sink_steps()]
        paths = [sink.path for sink in sinks if isinstance(sink, _TABLES)]
        if not paths or paths[0] is None:
            return None
        return str(local_path(paths[0]) or paths[0])

    @property
    def uses_warehouse(self) -> bool:
        """Whether tables lie in the warehouse, as far as is known before they are opened."""
        sinks = [innermost(step.sink) for step in self.topology.sink_steps()]
        return is_uri(self.config.storage.warehouse) or any(
            isinstance(sink, _TABLES) for sink in sinks
        )


def wire(
    topology: Topology,
    config: Config,
    target: str | None = None,
    given_spark: SparkDriver | None = None,
) -> Parts:
    """Make a pipeline and its connections; open nothing. Raises InvalidTopology, SinkFailed.

    `target` is where executors find the topology, "module:name"; only a run on the spark engine
    needs it. A Spark that is given is used, and not closed.
    """
    topology.validate()
    on_spark = config.pipeline.engine == "spark"
    if on_spark:
        check_runs_on_spark(topology)
    name = config.pipeline.name or topology.name
    kafka = dict(config.kafka)
    if config.pipeline.mirror_to_group:
        kafka.setdefault("group.id", f"headrace-{name}")
    catalogue = KafkaCatalogue(kafka)
    fetcher = KafkaFetcher(kafka)
    store = ZooKeeperStore(
        config.zookeeper.hosts,
        NodeNames(config.zookeeper.root, name, name, topology.name),
        session_timeout_seconds=config.zookeeper.session_timeout_seconds,
        kazoo_options=config.zookeeper.security().kazoo_options(),
    )
    sizes = build.sizes_of(topology, config.pipeline.fetch_records, config.pipeline.chunk_records)
    cut = config.transaction_policy(topology.transactions)
    if on_spark:
        cut = replace(cut, max_active=config.range_policy().max_active, by_executors=True)
    policy = ConsumerPolicy(
        assignment=config.assignment(build.delivery_of(topology, cut)),
        commit_interval_seconds=config.pipeline.commit_interval_seconds,
        fetch_records=sizes.fetch_records,
        chunk_records=sizes.chunk_records,
        mirror=config.pipeline.mirror_to_group,
        records_per_second=build.limits_of(topology),
    )
    topics = [source.topic for source in topology.sources]

    def make_consumer(
        notify: Callable[[Loss], Future[None]], fences: EpochFencer | None
    ) -> Consumer:
        ways = Ways(store, catalogue, notify, fences)
        return Consumer(fetcher, ways, topics, policy, random.SystemRandom())

    spark = given_spark or spark_of(topology, config)
    tracing = _tracing(config, name)
    if on_spark and spark is not None:
        pipeline: Pipeline | SparkEngine = spark_engine(
            topology,
            config,
            name=name,
            target=target,
            spark=spark,
            client=fetcher,
            catalogue=catalogue,
            store=store,
            policy=policy,
        )
    else:
        ports = build.Ports(
            make_consumer,
            _dead_letter_sink(topology),
            np.random.Generator(np.random.SFC64(int.from_bytes(os.urandom(16)))),
        )
        tracked = build.PipelinePolicy(config.pipeline.message_timeout_seconds, config.screen())
        observers = [] if tracing is None else [tracing.traces]
        pipeline = build.build_pipeline(topology, ports, tracked, observers)
    references = References(
        topology.references,
        partial(read_table, spark, config, name),
        before_change=pipeline.settle,
        follows=not on_spark,  # there executors look up, in what was loaded
    )
    membership = _membership(config, store, name, pipeline.consumer.assignment, topology)
    clients, owns = (fetcher, store, catalogue), given_spark is None
    return Parts(topology, config, *clients, references, membership, pipeline, spark, tracing, owns)


def _dead_letter_sink(topology: Topology) -> DeadLetterSink:
    sink = topology.dead_letters.sink
    if sink is None:  # Topology.validate has rejected it
        raise AssertionError
    return sink


def _tracing(config: Config, pipeline: str) -> "Tracing | None":
    """Return the tracing of records, or None if it is off. Raises BadConfig without the extra."""
    if config.tracing.endpoint is None:
        return None
    try:
        from service.observability.tracing import Tracing  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        found = missing_extra(f"an endpoint, which needs '{error.name}'", "tracing")
        raise BadConfig("configuration", "tracing.endpoint", found, "none without it") from error
    return Tracing(config.tracing, pipeline, np.random.default_rng())


def _for_one_host(topology: Topology, config: Config) -> str | None:
    """Return the reason for which only one replica may run, or None."""
    storage = config.storage.storage()
    sinks = [step.sink for step in topology.sink_steps()]
    for sink in (each for outer in sinks for each in chain_of(outer)):
        if isinstance(sink, IcebergSink) and sink.is_for_one_host(storage):
            return (
                f"catalogue '{sink.catalog}' of table '{sink.table}' is a SQLite file, for one "
                'host only. Use PostgreSQL (uri = "postgresql+psycopg://…") or a REST catalogue '
                f"in [storage.catalogs.{sink.catalog}]"
            )
    return None


def _membership(
    config: Config, store: ZooKeeperStore, name: str, assignment: Assignment, topology: Topology
) -> GroupMembership:
    policy = replace(config.membership(), alone=_for_one_host(topology, config))
    me = Member(
        name=policy.name,
        process=uuid.uuid4().hex,
        host=socket.gethostname(),
        since_ms=int(time.time() * 1000),
        headrace=version("headrace"),
    )
    on_spark = config.pipeline.engine == "spark"
    copartitions = Copartitions(all_to_one=True) if on_spark else copartitions_of(topology)
    heartbeats = Heartbeats(config.zookeeper.root, name, me, copartitions)
    return GroupMembership(store, heartbeats, assignment, policy, copartitions)


def read_table(
    spark: SparkDriver | None, config: Config, name: str, reference: Reference
) -> pa.Table:
    """Read the rows of a reference table or state. Raises ReferenceLoadFailed."""
    storage = config.storage.storage()
    if isinstance(reference, State):
        return reference.fetch(SinkContext(name, reference.name, config.kafka, storage, spark))
    return read_reference(reference, storage, spark)


def spark_of(topology: Topology, config: Config) -> SparkDriver | None:
    """The Spark that sinks, reference tables and the engine need, or None when they need none.

    Raises SinkFailed, naming them, without PySpark.
    """
    storage = config.storage.storage()
    sinks = [each for step in topology.sink_steps() for each in chain_of(step.sink)]
    tables = [each for each in topology.references if not isinstance(each, State)]
    tables = [each for each in tables if needs_spark(each, storage)]
    needing = ['engine "spark"'] if config.pipeline.engine == "spark" else []
    needing += [f"reference '{each.name}'" for each in tables]
    needing += [_named(each) for each in sinks if each.needs_spark]
    if not needing:
        return None
    check_installed(", ".join(dict.fromkeys(needing)))
    sets = {jar for each in sinks for jar in each.needs_jars}
    sets.update(jar for table in tables for jar in spark_jars(table.place))
    if any(table.format in ("delta", "table") for table in tables):
        sets.add("delta")
    return spark_driver(config.pipeline.name or topology.name, config, sets)


def spark_driver(name: str, config: Config, sets: Iterable[str]) -> SparkDriver:
    """A Spark that its first job starts, with these sets of jars and what the warehouse needs."""
    storage = config.storage.storage()
    return SparkDriver(
        app_name=f"headrace-{name}",
        conf={
            **storage.spark_conf(),
            **{key: option_text(value) for key, value in config.spark.conf.items()},
        },
        jars=partial(jars_of, sorted({*sets, *spark_jars(storage.warehouse)})),
        job_deadline_seconds=config.spark.job_deadline_seconds,
    )


def _named(sink: Sink[object]) -> str:
    if isinstance(sink, ThroughSpark):
        return f"Spark step '{sink.step.name}'"
    return f"sink '{sink.name}'"


def jars_of(sets: Sequence[str]) -> list[Path]:
    """The jars of some sets, each once. Raises as `resolve` does."""
    return list(dict.fromkeys(jar for each in sets for jar in resolve(each)))
