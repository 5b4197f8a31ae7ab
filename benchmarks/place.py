"""A place for one run's table: a warehouse of its own, and the Spark that the run uses.

The Spark outlives the service that writes the table, so that the table can be read afterwards.
Each run has a JVM of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import order_table
from benchmarks.child import TIMEOUT_SECONDS, Figures, Job
from benchmarks.order_table import PRICED
from headrace import Topology
from service.config.connections import StorageConfig
from service.config.settings import Config
from service.jars.resolver import resolve
from service.wiring import Parts, spark_of, wire
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.support.seaweed import BUCKET, KEY_ID, SECRET


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of table. A table is in a folder that nobody else uses.

    `create` makes one, with no rows, in a session with the jars; `start` starts a query of
    Structured Streaming that writes into it; `files` are those with the rows.
    """

    jars: tuple[str, ...]
    create: Callable[[Any, str], None]
    start: Callable[[Any, str], Any]
    files: Callable[["Place"], list[str]]


KAFKA_SOURCE = "kafka-source"


_S3_JARS = ("s3a",)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table of a kind lies, and a Spark that has what the kind needs."""

    kind: Kind
    folder: Path
    config: Mapping[str, Any]
    storage: Storage
    spark: SparkDriver

    @property
    def uri(self) -> str:
        return self.storage.uri(order_table.NAME)

    def wire(self, topology: Topology, config: Config, target: str | None = None) -> Parts:
        """Wire a run; if it needs a Spark, with this one, which first creates the table."""
        if spark_of(topology, config) is None:
            return wire(topology, config)
        self.spark.run(lambda session: self.kind.create(session, self.uri), group="create")
        return wire(topology, config, target, self.spark)

    def contents(self) -> Figures:
        return order_table.contents(self.storage, self.kind.files(self))._asdict()


@contextmanager
def place(job: Job, kind: Kind, *jars: str) -> Iterator[Place]:
    """A place for this job, with these jars beside those of the kind.

    `config` is what a service is told of it. What is on a local disk is gone at the end.
    """
    with TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder:
        catalogue = {"type": "sql", "uri": f"sqlite:///{folder}/iceberg.db"}
        config: dict[str, Any] = {"warehouse": folder, "catalogs": {"default": catalogue}}
        if job.endpoint:
            config |= {"warehouse": f"s3://{BUCKET}/{job.pipeline}", "endpoint": job.endpoint}
            config |= {"access_key_id": KEY_ID, "secret_access_key": SECRET}
            jars += _S3_JARS
        storage = StorageConfig.model_validate(config).storage()
        spark = SparkDriver(
            "headrace-bench",
            storage.spark_conf(),
            jars=lambda: [jar for name in (*kind.jars, *jars) for jar in resolve(name)],
            job_deadline_seconds=TIMEOUT_SECONDS,
        )
        try:
            yield Place(kind, Path(folder), config, storage, spark)
        finally:
            spark.close()


_ICEBERG_PROPERTIES = "'write.parquet.compression-codec' = 'snappy'"  # as Spark's Parquet has it


def _columns() -> str:
    from sinks.spark.frames import spark_schema  # noqa: PLC0415 - see sinks/__init__

    fields = spark_schema(PRICED).fields
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)


def _create_delta(session: Any, uri: str) -> None:
    session.sql(f"CREATE TABLE delta.`{uri}` ({_columns()}) USING delta")


def delta_files(storage: Storage, uri: str) -> list[str]:
    from deltalake import DeltaTable  # noqa: PLC0415 - an extra

    options = storage.object_store_options(uri)
    return DeltaTable(uri, storage_options=options).file_uris()


def _iceberg_table(uri: str) -> str:
    """The table's name in a catalogue of its folder, which is made where it is not known yet."""
    folder, _, name = uri.rpartition("/")
    return f"{folder.rpartition('/')[2].replace('-', '_')}.`{name}`"


def _create_iceberg(session: Any, uri: str) -> None:
    table = _iceberg_table(uri)
    catalogue = f"spark.sql.catalog.{table.partition('.')[0]}"
    session.conf.set(catalogue, "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"{catalogue}.type", "hadoop")
    session.conf.set(f"{catalogue}.warehouse", uri.rpartition("/")[0])
    session.conf.set(f"{catalogue}.cache-enabled", "false")  # others commit, too
    session.sql(
        f"CREATE TABLE {table} ({_columns()}) USING iceberg TBLPROPERTIES ({_ICEBERG_PROPERTIES})"
    )


def _iceberg_files(there: "Place") -> list[str]:
    def read(session: Any) -> list[str]:
        files = session.table(f"{_iceberg_table(there.uri)}.files").select("file_path").collect()
        return [row.file_path for row in files]

    return there.spark.run(read, group="files")


def _catalogued_files(there: "Place") -> list[str]:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra

    given = {**there.storage.catalog_properties(), **there.storage.catalogs["default"]}
    table = load_catalog("default", **given).load_table(("default", there.uri.rpartition("/")[2]))
    return [each.file.file_path for each in table.scan().plan_files()]


DELTA = Kind(
    jars=("delta",),
    create=_create_delta,
    start=lambda writer, uri: writer.format("delta").start(uri),
    files=lambda there: delta_files(there.storage, there.uri),
)


ICEBERG = Kind(
    jars=("iceberg",),
    create=_create_iceberg,
    start=lambda writer, uri: writer.format("iceberg").toTable(_iceberg_table(uri)),
    files=_iceberg_files,
)


CATALOGUED = Kind(  # ours makes it
    jars=(),
    create=lambda _session, _uri: None,
    start=lambda _writer, _uri: None,
    files=_catalogued_files,
)
