"""The wiring of the spark engine, beside `service.wiring`."""

import random
from collections.abc import Callable
from pathlib import Path

from partition.consumer import ConsumerPolicy
from partition.delivery import DeliveryFactory
from partition.interfaces import Catalogue, Fetcher, OffsetStore
from partition.kafka.kafka_catalogue import KafkaCatalogue
from partition.ledger import CommitProgress, Ledger
from partition.records import Partition, Resumed, TransactionKind
from partition.recovery import Ways
from service.config import Config
from service.failpoints import consumer_with_places, with_places
from service.pipeline.build import sizes_of
from service.pipeline.context import ResultQueue
from service.pipeline.dead_letter_sender import DeadLetterSender
from service.pipeline.fences import EpochFencer
from service.pipeline.sink_buffer import writer_of
from service.spark_engine.cluster import OnSpark, SharedFolder
from service.spark_engine.engine import SparkEngine
from service.spark_engine.planner import LogEndTracker
from service.spark_engine.range_buffer import RangeBuffer
from service.spark_engine.range_owner import RangeOwner
from service.spark_engine.task import TaskSettings
from sinks.names import local_path
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from topology.errors import InvalidTopology
from topology.topology import Topology
from transactions.groups import RangePolicy
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import TransactionPolicy

_SPOOL = ".headrace-spool"


def check_runs_on_spark(topology: Topology) -> None:
    """Raise InvalidTopology unless the spark engine can run the topology."""
    if topology.reliability != "exactly-once":
        raise InvalidTopology(
            f"topology '{topology.name}' is {topology.reliability}; the engine \"spark\" runs "
            'topologies that are exactly-once, the engine "local" runs all'
        )


def range_delivery(
    kind: TransactionKind, policy: RangePolicy
) -> DeliveryFactory[PartitionTransactions]:
    """What makes a partition's transactions of ranges."""
    lines = TransactionPolicy(kind, max_active=policy.max_active, by_executors=True)

    def make(
        partition: Partition, ledger: Ledger, progress: CommitProgress, resumed: Resumed | None
    ) -> PartitionTransactions:
        return PartitionTransactions(partition, ledger, progress, resumed, lines)

    return make


def spark_engine(
    topology: Topology,
    config: Config,
    *,
    name: str,
    target: str | None,
    spark: SparkDriver,
    client: Fetcher,
    catalogue: Catalogue,
    store: OffsetStore,
    policy: ConsumerPolicy,
    at: Callable[[str], object],
) -> SparkEngine:
    """Make the engine; `target` is where executors find the topology, "module:topology"."""
    results = ResultQueue()
    steps = topology.sink_steps()
    sinks = [with_places(step.sink, at) for step in steps]
    buffers = [
        RangeBuffer(step, writer_of(step, sink, results.put), sink)
        for step, sink in zip(steps, sinks, strict=True)
    ]
    fencer = EpochFencer(topology.transactions, {each.name: each.writer for each in buffers})
    sink = topology.dead_letters.sink
    if sink is None:  # Topology.validate has seen to that
        raise AssertionError
    letters = DeadLetterSender(with_places(sink, at))
    spare = dict(config.kafka)
    ends = LogEndTracker(catalogue, config.spark.poll_seconds, lambda: KafkaCatalogue(spare))
    topics = [source.topic for source in topology.sources]

    def make_owner(store: OffsetStore) -> RangeOwner:
        ways = Ways(store, catalogue, letters.send_notice, fencer)
        return RangeOwner(client, ways, ends, topics, policy, random.SystemRandom())

    storage = config.storage.storage()
    folder = local_path(f"{storage.warehouse}/{_SPOOL}/{name.replace('/', '_')}")
    settings = _settings_of(topology, config, name, target or "", storage)
    return SparkEngine(
        topology,
        consumer_with_places(make_owner, store, at),
        letters,
        buffers,
        results,
        OnSpark(spark, job_deadline_seconds=config.spark.job_deadline_seconds),
        SharedFolder(folder, topology.references),
        settings,
        ranges=config.range_policy(),
        at=at,
    )


def _settings_of(
    topology: Topology, config: Config, name: str, target: str, storage: Storage
) -> TaskSettings:
    sizes = sizes_of(topology, config.pipeline.fetch_records, config.pipeline.chunk_records)
    return TaskSettings(
        pipeline=name,
        target=target,
        paths=(str(Path.cwd()),),
        kafka=config.kafka,
        storage=storage,
        retries=config.retries.policy(),
        screen=config.screen(),
        message_timeout_seconds=config.pipeline.message_timeout_seconds,
        fetch_records=sizes.fetch_records,
        chunk_records=sizes.chunk_records,
        max_pending=config.pipeline.max_pending,
        max_pending_bytes=config.pipeline.max_pending_bytes,
        log_level=config.logs.level,
    )
