"""Tables are maintained while a service writes them, and Spark reads every row once."""

from types import SimpleNamespace
from typing import Any

import pytest

from sinks import IcebergSink
from tests.support.batches import LINE, SCHEMA, STRANGE, group, write
from tests.support.delta_table import age, beside
from tests.support.iceberg_table import EXPIRE_AT_ONCE, SparkTable
from topology.sink import Committed, SinkContext

pytestmark = pytest.mark.integration
TARGET_BYTES = 1024 * 1024
SECOND = "orders[1]"
LAST = 12


@pytest.fixture
def table(tmp_path, spark, postgres):
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


@pytest.mark.parametrize("partition_by", [[], ["place"], ["truncate(2, place)"]])
def test_iceberg_vacuum_removes_only_orphans(table, partition_by):
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


def test_iceberg_writer_loses_nothing_during_maintenance(table):
    """Promise 3: 0 lost, 0 twice."""
    sink = table.fenced()
    sink.commit(sink.stage(group(1, 1)))
    table.set_properties(EXPIRE_AT_ONCE)  # so that our own commits remove many, too
    figures = {"compacted": 0, "orphans": 0, "snapshots": 0}

    def maintain() -> None:
        orphan = table.folder() / "data" / f"part-{figures['orphans']}.parquet"
        orphan.write_bytes(b"left by a process that was killed")
        age(orphan, 8)
        figures["compacted"] += maintaining(table).compact(TARGET_BYTES).files_replaced
        figures["orphans"] += maintaining(table).vacuum(24).files_removed
        figures["snapshots"] += maintaining(table).expire().versions_removed

    maintain()
    beside(table, LAST, maintain)
    maintain()
    assert min(figures.values()) > 0, figures
    wanted = [1, *range(1001, 1001 + LAST)]
    assert sorted(table.read()["number"].to_pylist()) == wanted
    assert table.numbers() == wanted
    lines = [LINE, SECOND]
    assert table.sink().committed(lines) == [Committed(LINE, 1, 1), Committed(SECOND, 1, LAST)]
