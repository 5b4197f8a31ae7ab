"""The wiring of the spark engine, beside `service.parts`."""

from collections.abc import Callable
from pathlib import Path

from partition.consumer import Consumer
from partition.delivery import DeliveryFactory
from partition.interfaces import Catalogue, Fetcher
from partition.kafka.kafka_catalogue import KafkaCatalogue
from partition.kafka.kafka_fetcher import KafkaFetcher
from partition.ledger import CommitProgress, Ledger
from partition.records import Partition, Resumed, TransactionKind
from service.config import Config
from service.pipeline.dead_letters import DeadLetterSender
from service.pipeline.fences import Fences
from service.sizes import sizes_of
from service.spark_engine.cluster import OnSpark, SharedFolder
from service.spark_engine.engine import SparkEngine, SparkPolicy
from service.spark_engine.no_fetcher import NoFetcher
from service.spark_engine.planner import Ends
from service.spark_engine.task import TaskSettings
from sinks.names import local_path
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from topology.errors import InvalidTopology
from topology.sink import Scalar
from topology.topology import Topology
from transactions.groups import RangePolicy
from transactions.partition_transactions import PartitionTransactions, TransactionPolicy

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


def driver_fetcher(
    config: Config, kafka: dict[str, Scalar], catalogue: Catalogue
) -> tuple[Fetcher, Ends]:
    """What stands where the local engine fetches, and where the logs' ends are known."""
    ends = Ends(catalogue, config.spark.poll_seconds, lambda: KafkaCatalogue(kafka))
    fetcher = NoFetcher(ends, KafkaFetcher(kafka), mirrors=config.pipeline.mirror_to_group)
    return fetcher, ends


def spark_engine(
    topology: Topology,
    config: Config,
    *,
    name: str,
    target: str | None,
    storage: Storage,
    spark: SparkDriver,
    reader: Consumer,
    letters: DeadLetterSender,
    ends: Ends,
    fences: Fences,
    at: Callable[[str], object],
) -> SparkEngine:
    """The engine; `target` is where executors find the topology, "module:topology"."""
    folder = local_path(f"{storage.warehouse}/{_SPOOL}/{name.replace('/', '_')}")
    return SparkEngine(
        topology,
        reader,
        letters,
        ends,
        OnSpark(spark, job_deadline_seconds=config.spark.job_deadline_seconds),
        SharedFolder(folder, topology.references),
        SparkPolicy(
            _settings_of(topology, config, name, target or "", storage), config.range_policy()
        ),
        fences,
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
