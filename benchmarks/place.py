"""A place for one run's table: a warehouse of its own, and the Spark that the run uses.

The Spark outlives the service that writes the table, so that the table can be read afterwards.
Each run has a JVM of its own, or, where all run together, the process has one for all.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from benchmarks import order_table
from benchmarks.children import TIMEOUT_SECONDS
from benchmarks.job import Figures, Job
from benchmarks.kinds import Kind
from headrace import Topology
from service import wiring as service_parts
from service.config import Config
from service.jars.resolver import resolve
from service.storage_config import StorageConfig
from service.wiring import Parts, wire
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.support.seaweed import BUCKET, KEY_ID, SECRET

KAFKA_SOURCE = "kafka-source"
_ALL_JARS = ("delta", "iceberg", KAFKA_SOURCE)
_S3_JARS = ("s3a",)
# Code that runs once or twice is not worth compiling well. Java would then keep 48 MB for it, which
# one Spark for all suites may fill.
LIGHT = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}


class HeldSpark(SparkDriver):
    """A driver that only `end` closes. It starts with its first job."""

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Not yet."""

    def end(self) -> None:
        """Stop Spark."""
        super().close()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table of a kind lies, and a Spark that has what the kind needs."""

    kind: Kind
    folder: Path
    config: Mapping[str, Any]
    storage: Storage
    spark: HeldSpark

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self.storage.uri(order_table.NAME)

    def prepare(self, parts: Parts) -> None:
        """Create the table, and have the service use this Spark, if it needs any."""
        if parts.spark is not None:
            parts.spark = self.spark
            self.spark.run(lambda session: self.kind.create(session, self.uri), group="create")

    def wired(self, target: str) -> Callable[[Topology, Config], Parts]:
        """What makes the parts of a run on the spark engine, which uses this Spark, too."""

        def wired(topology: Topology, config: Config) -> Parts:
            with mock.patch.object(service_parts, "spark_for", return_value=self.spark):
                return wire(topology, config, target)

        return wired

    def contents(self) -> Figures:
        """What is in the table."""
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
        with _spark((*kind.jars, *jars), storage.spark_conf(), together=job.together) as spark:
            yield Place(kind, Path(folder), config, storage, spark)


_shared: list[HeldSpark] = []


@contextmanager
def _spark(
    jars: tuple[str, ...], conf: Mapping[str, str], *, together: bool
) -> Iterator[HeldSpark]:
    if together:
        if not _shared:
            _shared.append(_driver(tuple({*_ALL_JARS, *jars}), {**conf, **LIGHT}))
        yield _shared[0]
        return
    spark = _driver(jars, conf)
    try:
        yield spark
    finally:
        spark.end()


def _driver(jars: tuple[str, ...], conf: Mapping[str, str]) -> HeldSpark:
    return HeldSpark(
        "headrace-bench",
        conf,
        jars=lambda: [jar for name in jars for jar in resolve(name)],
        job_deadline_seconds=TIMEOUT_SECONDS,
    )


def end_shared() -> None:
    """Stop the Spark that all runs of this process have shared."""
    while _shared:
        _shared.pop().end()
