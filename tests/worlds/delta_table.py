"""A Delta table with its sinks, and Spark's view of it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from sinks import DeltaSink
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from topology.sink import Batch, SinkContext
from topology.transactional import Group, Share

LINE = "orders[0]"
SCHEMA = pa.schema({"number": pa.int64(), "place": pa.string()})


class Table:
    """One table, its sinks, and Spark's view of it."""

    def __init__(self, warehouse: Path, spark: SparkDriver) -> None:
        self.warehouse, self.spark = warehouse, spark
        self.path = warehouse / "orders"
        self.sinks: list[DeltaSink[Any]] = []

    def sink(
        self,
        schema: pa.Schema = SCHEMA,
        kind: type[DeltaSink[Any]] = DeltaSink,
        *,
        exactly_once: bool = False,
        **options: Any,
    ) -> DeltaSink[Any]:
        self.sinks.append(kind("orders", schema=schema, **options))
        context = SinkContext(
            "pipeline",
            "sink",
            {},
            Storage(str(self.warehouse)),
            self.spark,
            exactly_once=exactly_once,
        )
        self.sinks[-1].open(context)
        return self.sinks[-1]

    def sql(self, *statements: str) -> None:
        def run(session: Any) -> None:
            for statement in statements:
                session.sql(statement.replace("TABLE_PATH", f"delta.`{self.path}`"))

        self.spark.run(run, group="sql")

    def read(self, where: str = "true") -> pa.Table:
        def job(session: Any) -> pa.Table:
            frame = session.read.format("delta").load(str(self.path)).where(where)
            table: pa.Table = frame.toArrow()
            return table

        return self.spark.run(job, group="read")

    def numbers(self, where: str = "true") -> list[int]:
        found: list[Any] = self.read(where)["number"].to_pylist()
        return sorted(found)

    def files(self) -> set[Path]:
        """Ours: Spark leaves an empty one when it makes the table."""
        found = {path for path in self.path.rglob("*.parquet") if "_delta_log" not in path.parts}
        return {path for path in found if not path.name.startswith("part-00000")}

    def engines(self) -> list[str]:
        """Who wrote each commit."""
        commits = sorted((self.path / "_delta_log").glob("*.json"))
        lines = [json.loads(line) for path in commits for line in path.read_text().splitlines()]
        infos = [line["commitInfo"] for line in lines if "commitInfo" in line]
        return [info["engineInfo"].split("-")[0] for info in infos]


def rows(*numbers: int, place: str | None = "x") -> list[dict[str, Any]]:
    return [{"number": number, "place": place} for number in numbers]


def write(sink: DeltaSink[Any], given: list[dict[str, Any]], sequence: int = 1) -> None:
    sink.write(Batch(sequence, [given], len(given)))


def group(txid: int, *numbers: int, epoch: int = 1) -> Group:
    share = Share(LINE, epoch, txid, 1, txid, txid + 1, "0" * 32, len(numbers))
    return Group(txid, (share,), [rows(*numbers)], len(numbers))
