"""A Delta table with its sinks, and what delta-rs and Spark see of it."""

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sinks import DeltaSink
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.acceptance import evidence
from tests.support.batches import LINE, SCHEMA, put, rows
from tests.support.patience import Limit, seconds
from tests.support.spark import stream
from topology.sink import Fence, Sink, SinkContext


class Table:
    committer = (deltalake.DeltaTable, "create_write_transaction")
    refusal = deltalake.exceptions.CommitFailedError("Failed to commit transaction: 0")

    def __init__(self, warehouse: Path) -> None:
        self.warehouse, self.path = warehouse, warehouse / "orders"
        self.log = self.path / "_delta_log"
        self.storage = Storage(str(warehouse))
        self.racing, self.racing_more = racing, ()

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
        return evidence.read_table(self.path).to_pylist()

    def numbers(self) -> list[int]:
        return sorted(row["number"] for row in self.rows())

    def listed_numbers(self) -> list[int]:
        """Read by delta-rs's own log, which knows checkpoints, and the files by Arrow."""
        files = [pq.ParquetFile(path).read(["number"]) for path in self.theirs().file_uris()]
        return sorted(number for file in files for number in file["number"].to_pylist())

    def append(self, *numbers: int) -> None:
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
    def __init__(self, warehouse: Path, spark: SparkDriver) -> None:
        super().__init__(warehouse)
        self.spark = spark

    def sql(self, *statements: str) -> None:
        """Have Spark run statements in which OURS is the table."""

        def run(session: Any) -> None:
            for statement in statements:
                session.sql(statement.replace("OURS", f"delta.`{self.path}`"))

        self.spark.run(run, group="sql")

    def read(self, where: str = "true") -> pa.Table:
        def job(session: Any) -> pa.Table:
            frame = session.read.format("delta").load(str(self.path)).where(where)
            return frame.toArrow()

        return self.spark.run(job, group="read")

    def stream(self, folder: Path) -> None:
        def job(session: Any) -> None:
            stream(session.readStream.format("delta").load(str(self.path)), folder)

        self.spark.run(job, group="stream")


def race(sink: Sink[Any], storage: Storage, line: str, number: int, last: int) -> None:
    sink.open(SinkContext("p", "s", {}, storage, None, exactly_once=True))
    sink.fence([Fence(line, 1)])
    for txid in range(1, last + 1):
        put(sink, txid, 1000 * number + txid, line=line)


def racing(storage: Storage, line: str, number: int, last: int) -> None:
    race(DeltaSink("orders", schema=SCHEMA), storage, line, number, last)


def started(table: Any, line: str, number: int, last: int) -> Any:
    """Another process that races; delta-rs does not survive fork()."""
    given = (table.storage, line, number, last, *table.racing_more)
    process = multiprocessing.get_context("spawn").Process(target=table.racing, args=given)
    process.start()
    return process


def race_together(table: Any, lines: Sequence[str], last: int) -> list[int]:
    """Have a process commit each line's transactions; the numbers that have to be there then."""
    racers = [started(table, line, number, last) for number, line in enumerate(lines)]
    for racer in racers:
        racer.join(seconds(120))
    assert [racer.exitcode for racer in racers] == [0] * len(lines)
    return [1000 * n + txid for n in range(len(lines)) for txid in range(1, last + 1)]


def beside(table: Any, last: int, maintain: Callable[[], object]) -> None:
    """Maintain a table for as long as another process writes its second line."""
    racer = started(table, "orders[1]", 1, last)
    limit = Limit(seconds(240))
    while racer.is_alive():
        assert not limit.passed
        maintain()
    racer.join()
    assert racer.exitcode == 0


def age(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


def _nothing() -> None:
    pass


def around(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    before: Callable[[Any], object] = lambda _: None,
    after: Callable[[Any], object] = lambda _: None,
) -> None:
    """Do something before and after the next such call. It gets what the method is of."""
    original = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        before(given[0])
        done = original(*given, **named)
        after(given[0])
        return done

    monkeypatch.setattr(owner, name, call)


def around_commit(
    monkeypatch: pytest.MonkeyPatch,
    table: Any,
    before: Callable[[], object] = _nothing,
    after: Callable[[], object] = _nothing,
) -> None:
    """Do something before and after the library's next commit."""
    around(monkeypatch, *table.committer, lambda _: before(), lambda _: after())
