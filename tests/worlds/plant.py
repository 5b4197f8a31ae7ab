"""A whole pipeline in memory with a real table behind it, whatever the table lies on."""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog

from headrace import Record, bolt
from headrace.sinks import DeltaSink, IcebergSink, SinkContext, SparkSink
from service.health import HealthCheck
from service.snapshot import snapshot_of
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from sinks.writer import WriteRetries
from tests.acceptance import evidence, table_files
from tests.worlds.running import Works

QUICK = WriteRetries(first_seconds=0.05, longest_seconds=0.5)


class Row(TypedDict):
    number: int
    text: str


@bolt
def row_of(record: Record) -> Row:
    return Row(number=record.offset, text=(record.value or b"").decode())


def of_parquet(folder: Path) -> pa.Table:
    return pq.read_table(folder)


SINKS: dict[str, tuple[Callable[..., Any], Callable[[Path], pa.Table]]] = {
    "delta": (DeltaSink, evidence.read_table),
    "iceberg": (IcebergSink, table_files.of_iceberg),
    "parquet": (partial(SparkSink, format="parquet"), of_parquet),
}
KEEP_TRANSACTIONS = ["delta", "iceberg"]


class Plant(Works):
    """A pipeline into a table in `warehouse`."""

    patience_seconds = 120.0  # Spark takes longer than what others do in memory

    def __init__(self, kind: str, warehouse: Path, spark: SparkDriver, guarantee: str) -> None:
        make, self._read = SINKS[kind]
        self.folder = warehouse / "rows"
        # pyiceberg puts a table below its namespace.
        self.files = warehouse / "default" / "rows" if kind == "iceberg" else self.folder
        self.table = make("rows", schema=Row)
        exactly_once = guarantee == "exactly-once"
        super().__init__(
            row_of, sinks=[self.table], batch_rows=50, write_retries=QUICK,
            exactly_once="transactional" if exactly_once else None,
        )  # fmt: skip
        self.table.open(
            SinkContext(
                "faults", "rows", {}, Storage(str(warehouse)), spark, exactly_once=exactly_once
            )
        )

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.table.close()

    def drop(self) -> None:
        """Remove the table, as its format does."""
        if isinstance(self.table, IcebergSink):
            uri = f"sqlite:///{self.folder.parent}/iceberg.db"
            catalog = load_catalog("default", type="sql", uri=uri)
            catalog.drop_table(("default", self.folder.name))
            catalog.close()
        else:
            shutil.rmtree(self.folder)

    def numbers(self) -> Counter[int]:
        """How often each row is there."""
        return Counter(self._read(self.folder).column("number").to_pylist())

    def problems(self) -> tuple[str, ...]:
        """What /health/ready would say."""
        taken = snapshot_of(self.pipeline, time.monotonic())
        return HealthCheck(lambda: taken, lambda: taken.taken_at).ready().problems

    def retried(self) -> int:
        """How many tries of the sink's have failed."""
        return self.pipeline.outlets[0].writer.retries


CASES = [
    *((kind, "exactly-once") for kind in KEEP_TRANSACTIONS),
    *((kind, "at-least-once") for kind in SINKS),
]
