"""Tables are maintained while a service writes them, and Spark reads every row once."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.support.postgres_server import EmbeddedPostgres
from sinks import IcebergSink
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.support import delta_table
from tests.support.delta_table import LINE, SCHEMA, group, write
from tests.support.iceberg_table import SparkTable, racing
from tests.support.patience import seconds
from topology.sink import Committed, Fence, SinkContext

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TARGET_BYTES = 1024 * 1024
SECOND = "orders[1]"
STRANGE = [" a/b=c:%41 ..", "x", "é ü", "50%", "", None, "a%2Fb", "#q?", "a+b"]


@pytest.fixture
def table(tmp_path: Path, spark: SparkDriver, postgres: EmbeddedPostgres) -> Iterator[SparkTable]:
    made = SparkTable(tmp_path, spark, postgres)
    yield made
    made.close()


def maintaining(table: SparkTable) -> IcebergSink[Any]:
    """A sink as `headrace tables` opens it, with a Spark that knows the catalogue."""
    spark: Any = SimpleNamespace(run=lambda job, **_: table._run(job))
    sink: IcebergSink[Any] = IcebergSink(table.name, schema=SCHEMA, catalog="lake")
    sink.open(SinkContext("p", "s", {}, table.storage, spark))
    table.sinks.append(sink)
    return sink


def age(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


def beside(racer: Any, maintain: Callable[[], object]) -> None:
    """Maintain a table for as long as a process writes it, and at least once."""
    racer.start()
    deadline = time.monotonic() + seconds(240)
    while racer.is_alive():
        assert time.monotonic() < deadline
        maintain()
    racer.join()
    assert racer.exitcode == 0


@pytest.mark.parametrize("partition_by", [[], ["place"], ["truncate(2, place)"]])
def test_iceberg_vacuum_removes_only_orphans(table: SparkTable, partition_by: list[str]) -> None:
    sink = table.fenced(partition_by=partition_by)
    write(table.sink(exactly_once=False), [{"number": 3, "place": each} for each in STRANGE])
    named = table.files()
    sink.stage(group(1, 7))
    (left,) = table.files() - named
    for path in table.folder().rglob("*.*"):
        age(path, 8)
    sink.stage(group(2, 8))
    (young,) = table.files() - named - {left}
    assert maintaining(table).vacuum(168, dry_run=True).files_removed == 1
    assert left.exists()
    assert maintaining(table).vacuum(168).files_removed == 1
    assert table.files() == named | {young}
    assert table.read()["number"].to_pylist() == [3] * len(STRANGE)
    sink.commit(sink.stage(group(1, 1)))
    assert table.read("number = 1").num_rows == 1


def test_iceberg_writer_loses_nothing_during_maintenance(
    table: SparkTable,
) -> None:
    """Promise 3: 0 lost, 0 twice."""
    sink = table.fenced()
    sink.commit(sink.stage(group(1, 1)))
    with table.theirs().transaction() as change:  # so that our own commits remove many, too
        change.set_properties(
            {
                "history.expire.max-snapshot-age-ms": "1",
                "history.expire.min-snapshots-to-keep": "1",
            }
        )
    figures = {"compacted": 0, "orphans": 0, "snapshots": 0}

    def maintain() -> None:
        orphan = table.folder() / "data" / f"part-{figures['orphans']}.parquet"
        orphan.write_bytes(b"left by a process that was killed")
        age(orphan, 8)
        figures["compacted"] += maintaining(table).compact(TARGET_BYTES).files_replaced
        figures["orphans"] += maintaining(table).vacuum(24).files_removed
        figures["snapshots"] += maintaining(table).expire().versions_removed

    maintain()
    context = multiprocessing.get_context("spawn")
    written = (table.storage, SECOND, 1, 30, table.name)
    beside(context.Process(target=racing, args=written), maintain)
    maintain()
    assert min(figures.values()) > 0, figures
    wanted = [1, *range(1001, 1031)]
    assert sorted(table.read()["number"].to_pylist()) == wanted
    assert table.numbers() == wanted
    lines = [LINE, SECOND]
    assert table.sink().committed(lines) == [Committed(LINE, 1, 1), Committed(SECOND, 1, 30)]


def test_delta_writer_loses_nothing_during_maintenance(tmp_path: Path, spark: SparkDriver) -> None:
    """Promise 3: 0 lost, 0 twice."""
    table = delta_table.SparkTable(tmp_path, spark)
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    sink.commit(sink.stage(delta_table.group(1, 1)))
    figures = {"compacted": 0, "orphans": 0}

    def maintain() -> None:
        orphan = table.path / f"part-{figures['orphans']}.parquet"
        orphan.write_bytes(b"left by a process that was killed")
        age(orphan, 8)
        for path in sorted((table.path / "_delta_log").glob("[0-9]*"))[:-5]:
            age(path, 31)
        figures["compacted"] += table.sink().compact(TARGET_BYTES).files_replaced
        figures["orphans"] += table.sink().vacuum(24).files_removed
        table.sink().expire()

    context = multiprocessing.get_context("spawn")
    written = (Storage(str(tmp_path)), SECOND, 1, 30)
    beside(context.Process(target=delta_table.racing, args=written), maintain)
    assert min(figures.values()) > 0, figures
    assert table.numbers() == [1, *range(1001, 1031)]
    assert not (table.path / "_delta_log" / f"{0:020d}.json").exists()
    table.sql("OPTIMIZE TABLE_PATH")
    sink = table.sink(exactly_once=True)
    lines = [LINE, SECOND]
    assert sink.committed(lines) == [Committed(LINE, 1, 1), Committed(SECOND, 1, 30)]
