import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks import SparkSink
from sinks.spark import spark_sink
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.support.batches import LINE, SCHEMA, group, rows, write
from topology.errors import SinkBusy, SinkFailed, SinkFenced
from topology.sink import Batch, Committed, Fence, Share, SinkContext, Staged

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the socket open by which rows came.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


class Place:
    def __init__(self, warehouse: Path, spark: SparkDriver) -> None:
        self.warehouse, self.spark = warehouse, spark

    def opened(self, name: str = "orders", **options: Any) -> SparkSink[Any]:
        sink = SparkSink[Any](name, schema=SCHEMA, **options)
        sink.open(self.context(exactly_once=bool(sink.kinds)))
        return sink

    def fenced(self) -> SparkSink[Any]:
        sink = self.opened(format="delta")
        sink.fence([Fence(LINE, 1)])
        return sink

    def context(self, *, exactly_once: bool = False) -> SinkContext:
        storage = Storage(str(self.warehouse))
        return SinkContext("p", "s", {}, storage, self.spark, exactly_once=exactly_once)

    def sql(self, statement: str) -> list[Any]:
        def job(session: Any) -> list[Any]:
            return [tuple(row) for row in session.sql(statement).collect()]

        return self.spark.run(job, group="sql")

    def numbers(self) -> list[int]:
        found = self.sql(f"SELECT number FROM delta.`{self.warehouse}/orders` ORDER BY 1")  # noqa: S608
        return [number for (number,) in found]


@pytest.fixture
def place(tmp_path, spark):
    return Place(tmp_path, spark)


def test_a_function_gets_the_frame_and_the_number_of_each_batch(place):
    """A batch that is tried again keeps its number, as with `foreachBatch`."""
    seen: list[tuple[int, list[int]]] = []

    def noted(frame: Any, batch: int) -> None:
        seen.append((batch, sorted(frame.toArrow()["number"].to_pylist())))

    sink = place.opened(write=noted)
    for sequence in (1, 1, 2):
        write(sink, rows(sequence, 7), sequence)
    assert seen == [(1, [1, 7]), (1, [1, 7]), (2, [2, 7])]
    sink.close()


def test_local_tables_have_no_checksum_files(place):
    write(place.opened("lines", format="parquet"), rows(1))
    sink = place.fenced()
    sink.commit(sink.stage(group(1, 1)))
    assert len(list(place.warehouse.rglob("*.parquet"))) >= 2
    assert list(place.warehouse.rglob(".*.crc")) == []


def test_rows_go_into_a_catalogue_table_by_name(place):
    """In the table's own order of columns; one that only the table has becomes null."""
    table = f"orders_{place.warehouse.name.replace('-', '_')}"
    with pytest.raises(SinkFailed, match=r"TABLE_OR_VIEW_NOT_FOUND|cannot be found"):
        place.opened(table, format="table")
    place.sql(
        f"CREATE TABLE {table} (place STRING, more INT, number BIGINT) USING delta "
        f"LOCATION '{place.warehouse}/catalogued'"
    )
    try:
        sink = place.opened(table, format="table")
        write(sink, rows(1, 2))
        assert place.sql(f"SELECT * FROM {table} ORDER BY number") == [  # noqa: S608
            ("x", None, 1),
            ("x", None, 2),
        ]
        other = SparkSink[Any](table, format="table", schema=pa.schema([("number", pa.string())]))
        with pytest.raises(SinkFailed, match="'number': found string, expected int64"):
            other.open(place.context())
    finally:
        place.sql(f"DROP TABLE {table}")


def test_options_are_those_of_spark_s_writer(place):
    sink = place.opened("lines", format="csv", options={"header": "true", "sep": ";"})
    write(sink, rows(1))
    [file] = (place.warehouse / "lines").glob("*.csv")
    assert file.read_text().splitlines() == ["number;place", "1;x"]


def test_what_spark_refuses_ends_the_sink_with_its_reason(place):
    sink = place.opened("anywhere", format="no-such-source")
    with pytest.raises(SinkFailed, match=r"'anywhere'.*no-such-source"):
        write(sink, rows(1))


@contextmanager
def before(owner: Any, method: str, happens: Any) -> Iterator[None]:
    """Have something happen once, before a function is called the next time."""
    original, is_due = getattr(owner, method), [True]

    def called(*given: Any) -> Any:
        if is_due:
            is_due.clear()
            happens()
        return original(*given)

    setattr(owner, method, called)
    try:
        yield
    finally:
        setattr(owner, method, original)


@contextmanager
def without_lock(*sinks: Any) -> Iterator[None]:
    """As on an object store, where no lock holds two processes apart."""
    folders = [sink._folder for sink in sinks]
    for sink in sinks:
        sink._folder = None
    try:
        yield
    finally:
        for sink, folder in zip(sinks, folders, strict=True):
            sink._folder = folder


def test_fence_between_read_and_commit_is_a_conflict(place):
    """Promise 9: no row of the zombie lands, though its job has run."""
    zombie, successor = place.fenced(), place.opened(format="delta")
    staged = zombie.stage(group(1, 1, 2))
    with (
        without_lock(zombie, successor),
        before(spark_sink, "versions_of", lambda: successor.fence([Fence(LINE, 2)])),
        pytest.raises(SinkFenced) as caught,
    ):
        zombie.commit(staged)
    assert (caught.value.epoch, caught.value.found) == (1, 2)
    assert place.numbers() == []
    successor.commit(successor.stage(group(1, 1, 2, epoch=2)))
    assert place.numbers() == [1, 2]


def test_commit_that_lands_during_a_fence_is_counted(place):
    """Promise 14: the fence would name the transaction before as the last."""
    zombie, successor = place.fenced(), place.opened(format="delta")
    staged = zombie.stage(group(1, 1, 2))
    with (
        without_lock(zombie, successor),
        before(spark_sink, "versions_of", lambda: zombie.commit(staged)),
    ):
        assert successor.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 1)]
    assert place.numbers() == [1, 2]


def test_a_group_of_several_partitions_is_one_commit(place):
    sink = place.opened(format="delta", options={"userMetadata": "of ours"})
    lines = [f"orders[{number}]" for number in range(3)]
    sink.fence([Fence(line, 1) for line in lines])
    shares = [Share(line, 1, 1, 1, 0, 1, "0" * 32, 1) for line in lines]
    log = place.warehouse / "orders" / "_delta_log"
    entries = len(list(log.glob("*.json")))
    sink.commit(sink.stage(Batch(1, [rows(1, 2, 3)], 3, tuple(shares))))
    assert len(list(log.glob("*.json"))) == entries + 1
    assert '"userMetadata":"of ours"' in max(log.glob("*.json")).read_text()
    assert place.numbers() == [1, 2, 3]
    assert sink.committed(lines) == [Committed(line, 1, 1) for line in lines]


def test_transaction_below_the_fenced_epoch_is_lost_state(place):
    """Promise 8: not a fresh partition."""
    sink = place.fenced()
    shutil.copytree(place.warehouse / "orders", place.warehouse / "older")
    sink.fence([Fence(LINE, 3)])
    shutil.rmtree(place.warehouse / "orders")
    (place.warehouse / "older").rename(place.warehouse / "orders")
    with pytest.raises(SinkFailed, match=r"fenced under epoch 3, and the sink has 1 of it"):
        sink.commit(sink.stage(group(1, 1, epoch=3)))


def test_another_process_that_commits_is_waited_for(place):
    """On a local disk; what was staged is committed later."""
    sink = place.fenced()
    staged = sink.stage(group(1, 1))
    lock = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print()"
    lock += "; sys.stdout.flush(); sys.stdin.read()"
    with holding(lock, place.warehouse / "orders" / ".headrace.jvm.lock"), pytest.raises(SinkBusy):
        sink.commit(staged)
    sink.commit(staged)
    assert place.numbers() == [1]


@contextmanager
def holding(program: str, file: Path) -> Iterator[None]:
    command = [sys.executable, "-c", program, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield
        process.stdin.close()


def test_transactions_survive_sparks_changes_to_the_table(place):
    sink = place.fenced()
    committed: list[Staged] = []
    for txid in (1, 2):
        committed.append(sink.stage(group(txid, txid)))
        sink.commit(committed[-1])
        place.sql(f"OPTIMIZE delta.`{place.warehouse}/orders`")
        place.sql(f"INSERT INTO delta.`{place.warehouse}/orders` VALUES ({-txid}, 'other')")  # noqa: S608
    for staged in committed:
        sink.commit(staged)
    assert place.numbers() == [-2, -1, 1, 2]
    assert sink.committed([LINE]) == [Committed(LINE, 1, 2)]


def test_table_that_forgets_transactions_is_refused(place):
    sink = place.fenced()
    staged = sink.stage(group(1, 1))
    name = "delta.setTransactionRetentionDuration"
    place.sql(
        f"ALTER TABLE delta.`{place.warehouse}/orders` SET TBLPROPERTIES ('{name}' = '1 day')"
    )
    with pytest.raises(SinkFailed, match=f"forgets transactions by {name}"):
        sink.commit(staged)
    with pytest.raises(SinkFailed, match=name):
        place.opened(format="delta")


@pytest.mark.parametrize("source", ["delta", "parquet"])
def test_spark_files_are_synced_before_the_sink_answers(place, source, monkeypatch):
    """Promise 3: acknowledged rows survive a power cut, with the names of their files."""
    synced: set[str] = set()
    sink = place.opened(format=source)
    monkeypatch.setattr(spark_sink, "sync", synced.add)
    for sequence in (1, 2):
        write(sink, rows(sequence), sequence)
        there = [place.warehouse, *(place.warehouse / "orders").rglob("*")]
        assert {str(path) for path in there} <= synced
        assert str(place.warehouse / "orders") in synced
