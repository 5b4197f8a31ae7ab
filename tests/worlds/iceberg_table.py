"""An Iceberg table with its sinks, and what Spark and Iceberg's library see of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from sinks import IcebergSink
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from topology.sink import Batch, SinkContext
from topology.transactional import Group, Share

LINE = "orders[0]"
SCHEMA = pa.schema({"number": pa.int64(), "place": pa.string()})


class Table:
    """One table, its sinks, and others' view of it."""

    def __init__(self, warehouse: Path, spark: SparkDriver, name: str = "orders") -> None:
        self.warehouse, self.spark, self.name = warehouse, spark, name
        self.path = warehouse / name
        self.sinks: list[IcebergSink[Any]] = []

    def sink(
        self, schema: pa.Schema = SCHEMA, *, exactly_once: bool = False, **options: Any
    ) -> IcebergSink[Any]:
        self.sinks.append(IcebergSink(self.name, schema=schema, **options))
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

    def java(self, work: Callable[[Any], Any]) -> Any:
        """Give Iceberg's own table to `work`, as another program would have it."""
        return self.spark.run(lambda session: work(loaded(session, self.path)), group="java")

    def append(self, *numbers: int, place: str | None = "theirs") -> None:
        """Append as Spark does."""
        self.spark.run(lambda session: appended(session, self.path, numbers, place), group="append")

    def read(self, where: str = "true") -> pa.Table:
        def job(session: Any) -> pa.Table:
            readable(session)
            frame = session.read.format("iceberg").load(str(self.path)).where(where)
            table: pa.Table = frame.toArrow()
            return table

        return self.spark.run(job, group="read")

    def numbers(self, where: str = "true") -> list[int]:
        found: list[Any] = self.read(where)["number"].to_pylist()
        return sorted(found)

    def files(self) -> set[Path]:
        """The data files that lie there, whether they are part of the table or not."""
        return set((self.path / "data").rglob("*.parquet"))

    def properties(self) -> dict[str, str]:
        return dict(self.java(lambda table: dict(table.properties())))


def readable(session: Any) -> None:
    """Let Spark itself read Iceberg tables: that asks a file system for its scheme.

    The one that we run Spark with, which starts no process per file, has none. The commits of
    the sink under test go by that one all the same.
    """
    session.conf.set("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem")
    session.conf.set("fs.file.impl.disable.cache", "true")


def loaded(session: Any, path: Path) -> Any:
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    tables = session._jvm.org.apache.iceberg.hadoop.HadoopTables(configuration)
    return tables.load(f"file://{path}")


def appended(session: Any, path: Path, numbers: Any, place: str | None = "theirs") -> None:
    readable(session)
    rows = [(number, place) for number in numbers]
    frame = session.createDataFrame(rows, "number long, place string")
    frame.write.format("iceberg").mode("append").save(str(path))


def planned(table: Any, *filters: Any) -> list[str]:
    """The files that a reader with these filters looks into."""
    scan = table.newScan()
    for each in filters:
        scan = scan.filter(each)
    tasks = scan.planFiles()
    every, found = tasks.iterator(), []
    while every.hasNext():
        found.append(every.next().file().location())
    tasks.close()
    return found


def rows(*numbers: int, place: str | None = "x") -> list[dict[str, Any]]:
    return [{"number": number, "place": place} for number in numbers]


def write(sink: IcebergSink[Any], given: list[dict[str, Any]], sequence: int = 1) -> None:
    sink.write(Batch(sequence, [given], len(given)))


def share(txid: int, *, epoch: int = 1, line: str = LINE, num_rows: int = 1) -> Share:
    return Share(line, epoch, txid, 1, txid, txid + 1, "0" * 32, num_rows)


def group(txid: int, *numbers: int, epoch: int = 1) -> Group:
    given = share(txid, epoch=epoch, num_rows=len(numbers))
    return Group(txid, (given,), [rows(*numbers)], len(numbers))
