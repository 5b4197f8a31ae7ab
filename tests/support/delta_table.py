"""A Delta table with its sinks, and what delta-rs and Spark see of it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from sinks import DeltaSink
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.acceptance import evidence
from topology.sink import Batch, Fence, Share, Sink, SinkContext

LINE = "orders[0]"
SCHEMA = pa.schema({"number": pa.int64(), "place": pa.string()})


class Table:
    """One table, its sinks, and others' view of it."""

    committer = (deltalake.DeltaTable, "create_write_transaction")
    refusal = deltalake.exceptions.CommitFailedError("Failed to commit transaction: 0")

    def __init__(self, warehouse: Path) -> None:
        self.warehouse, self.path = warehouse, warehouse / "orders"
        self.log = self.path / "_delta_log"
        self.storage = Storage(str(warehouse))
        self.racing = racing

    def sink(
        self, schema: pa.Schema = SCHEMA, *, exactly_once: bool = True, **options: Any
    ) -> DeltaSink[Any]:
        sink: DeltaSink[Any] = DeltaSink("orders", schema=schema, **options)
        sink.open(SinkContext("p", "s", {}, self.storage, None, exactly_once=exactly_once))
        return sink

    def fenced(self, *lines: str, epoch: int = 1, **options: Any) -> DeltaSink[Any]:
        sink = self.sink(**options)
        sink.fence([Fence(line, epoch) for line in lines or (LINE,)])
        return sink

    def theirs(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.path)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = evidence.read_table(self.path).to_pylist()
        return found

    def numbers(self) -> list[int]:
        return sorted(row["number"] for row in self.rows())

    def append(self, *numbers: int) -> None:
        """Append rows of others."""
        theirs = pa.Table.from_pylist(rows(*numbers, place="theirs"), SCHEMA)
        deltalake.write_deltalake(self.path, theirs, mode="append")

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def files(self) -> set[Path]:
        """The data files that lie there, whether they are part of the table or not."""
        return {path for path in self.path.rglob("*.parquet") if "_delta_log" not in str(path)}

    def entries(self) -> list[Path]:
        return sorted(self.log.glob("*.json"))

    def close(self) -> None:
        """Do nothing."""


class SparkTable(Table):
    """A table that Spark reads, and writes too."""

    def __init__(self, warehouse: Path, spark: SparkDriver) -> None:
        super().__init__(warehouse)
        self.spark = spark

    def sql(self, *statements: str) -> None:
        """Have Spark run statements in which TABLE_PATH is the table."""

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


def rows(*numbers: int, place: str | None = "x") -> list[dict[str, Any]]:
    return [{"number": number, "place": place} for number in numbers]


def write(sink: Sink[Any], given: list[dict[str, Any]], sequence: int = 1) -> None:
    sink.write(Batch(sequence, [given], len(given)))


def group(txid: int, *numbers: int, epoch: int = 1, line: str = LINE) -> Batch:
    share = Share(line, epoch, txid, 1, txid, txid + 1, "0" * 32, len(numbers))
    return Batch(txid, [rows(*numbers)], len(numbers), (share,))


def put(sink: Sink[Any], txid: int, *numbers: int, epoch: int = 1, line: str = LINE) -> None:
    sink.commit(sink.stage(group(txid, *numbers, epoch=epoch, line=line)))


def race(sink: Sink[Any], storage: Storage, line: str, number: int, last: int) -> None:
    """Commit so many transactions of one line, a row each."""
    sink.open(SinkContext("p", "s", {}, storage, None, exactly_once=True))
    sink.fence([Fence(line, 1)])
    for txid in range(1, last + 1):
        put(sink, txid, 1000 * number + txid, line=line)


def racing(storage: Storage, line: str, number: int, last: int) -> None:
    """Another process's part."""
    race(DeltaSink("orders", schema=SCHEMA), storage, line, number, last)


def _nothing() -> None:
    pass


def around_commit(
    monkeypatch: pytest.MonkeyPatch,
    table: Any,
    before: Callable[[], object] = _nothing,
    after: Callable[[], object] = _nothing,
) -> None:
    """Do something before and after the library's next commit."""
    library, name = table.committer
    original = getattr(library, name)

    def commit(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(library, name, original)
        before()
        done = original(*given, **named)
        after()
        return done

    monkeypatch.setattr(library, name, commit)
