import gc
import sys
import zipfile
import zipimport
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace import Record, RowsRejected, SinkFailed
from headrace.sinks import Batch, ForeachSink, MemorySink, SinkContext
from partition.records import Partition, Position
from sinks.columns import fit, rows_of
from sinks.errors import TaskRaised
from sinks.spark.executors import SparkPassage, lighten, run_tasks, stage_on_executors
from sinks.spark.frames import fit_records
from sinks.storage import Storage
from tests.support.fake_spark import Driver, Frame
from tests.support.faulty_kafka import FaultyLog
from tests.support.spark import doubled
from topology.sink import Share, Staged
from topology.spark_step import ThroughSpark, spark_step

NUMBERS = pa.schema({"number": pa.int64()})
SHARES = tuple(Share(f"orders[{number}]", 1, 1, 1, 0, 2, "", 2) for number in range(2))
ORDERS = Partition("orders", 0)


def even(frame):
    """Leaves odd numbers out, and gives the others twice."""
    odd = pc.bit_wise_and(frame.table["number"].cast(pa.int64()), pa.scalar(1))
    kept = frame.table.filter(pc.equal(odd, pa.scalar(0)))
    return Frame(pa.concat_tables([kept, kept]))


def group(*numbers):
    rows = [{"number": number} for number in numbers]
    return Batch(1, [rows[:1], rows[1:]], len(rows), SHARES)


class Apart:
    """A stager that keeps what it was given."""

    def __init__(self, schema):
        self.schema = schema

    def stage(self, group):
        fitted = fit(group.pieces, self.schema)
        return Staged(group.shares, fitted.table.num_rows, (fitted.table,), fitted.rejected)


class ApartSink(MemorySink[Any]):
    """Its rows are staged elsewhere, unless it says that they cannot be."""

    def __init__(self, schema=NUMBERS, *, can=True):
        super().__init__("table", schema=schema)
        self.stager = lambda: Apart(schema) if can else None
        self.stage, self.discard = Mock(wraps=self.stage), Mock()

    def joined(self, shares, staged):
        rejected = {row: why for each in staged for row, why in each.rejected.items()}
        rows = [row for each in staged for table in each.parts for row in table.to_pylist()]
        return Staged(shares, len(rows), (rows,), rejected)


@pytest.fixture
def driver():
    return Driver()


def passage(driver, sink, folder, function=even, schema=NUMBERS):
    context = SinkContext("p", "table", {}, Storage(str(folder)), driver)
    return SparkPassage(driver, spark_step(function, schema, None), sink, context)


def spooled(folder):
    return [path for path in (folder / ".spool").rglob("*.parquet") if path.is_file()]


def test_rows_are_staged_by_tasks_if_the_sink_has_a_stager(driver, tmp_path):
    """A group without rows is no job, and is committed."""
    sink = ApartSink()
    step = passage(driver, sink, tmp_path)
    for given in (group(), group("x")):
        staged = step.stage(given)
        assert (staged.shares, staged.num_rows) == (SHARES, 0)
    assert driver.groups == ["table-even-open"]
    sink.stage.reset_mock()
    staged = step.stage(group(1, 2, "x", 4))
    assert (staged.shares, list(staged.rejected)) == (SHARES, [2])
    sink.commit(staged)
    assert sorted(row["number"] for row in sink.rows) == [2, 2, 4, 4]
    assert [line.txid for line in sink.committed([share.line for share in SHARES])] == [1, 1]
    sink.stage.assert_not_called()
    assert driver.groups == ["table-even-open", "table-even"]
    assert spooled(tmp_path) == []
    step.close()
    assert list((tmp_path / ".spool").iterdir()) == []


@pytest.mark.parametrize("sink", [ApartSink(can=False), MemorySink("table")])
def test_rows_are_brought_here_for_a_sink_without_stager(driver, tmp_path, sink):
    staged = passage(driver, sink, tmp_path).stage(group(2, 3))
    assert (staged.shares, staged.num_rows) == (SHARES, 2)
    sink.commit(staged)
    assert list(rows_of([sink.rows])) == [{"number": 2}, {"number": 2}]
    if isinstance(sink, ApartSink):
        ((given,), _) = sink.stage.call_args
        assert [share.num_rows for share in given.shares] == [2, 0]


@pytest.mark.parametrize("can", [True, False])
def test_a_row_that_does_not_fit_the_sink_ends_the_run(driver, tmp_path, *, can):
    sink = ApartSink(pa.schema({"number": pa.int8()}), can=can)
    said = "sink 'table' rejected . output rows of Spark step 'even', whose records are unknown"
    with pytest.raises(SinkFailed, match=said):
        passage(driver, sink, tmp_path).stage(group(2, 1000))
    sink.discard.assert_called_once()


def test_row_refused_at_the_commit_ends_the_run():
    def refuses(rows):
        raise RowsRejected({0: "no"})

    front = ThroughSpark(spark_step(lambda frame: frame, None, None), ForeachSink(refuses))
    with pytest.raises(SinkFailed, match="whose records are unknown: no"):
        front.commit(Staged((), 1, ([1],)))
    with pytest.raises(RowsRejected):
        ForeachSink(refuses).write(Batch(1, [[1]], 1))


def test_the_spool_is_empty_after_an_error_too(driver, tmp_path):
    later = Mock(__name__="later", side_effect=[Frame(NUMBERS.empty_table()), OSError("away")])
    with pytest.raises(OSError, match="away"):
        passage(driver, ApartSink(), tmp_path, later).stage(group(1))
    assert spooled(tmp_path) == []


SIZES = pa.schema({"size": pa.int64()})
KEYED = NUMBERS.append(pa.field("key", pa.string(), nullable=False))
TWICE = Frame(pa.table([[], []], ["number", "number"]))
raises = Mock(__name__="raises", side_effect=KeyError("name"))


@pytest.mark.parametrize(
    ("function", "schema", "said"),
    [
        (lambda frame: frame.table, NUMBERS, "returned Table, expected a DataFrame"),
        (raises, NUMBERS, "Spark step 'raises': 'name'"),
        (even, SIZES, "column 'number' is not in the sink, expected .*size"),
        (even, KEYED, "column 'key' is missing, and must not be null"),
        (lambda _frame: TWICE, NUMBERS, "column 'number' is there twice"),
        (even, None, "a folder that can be written is needed"),
    ],
)
def test_what_can_never_work_fails_the_start(driver, tmp_path, function, schema, said):
    folder = tmp_path / "file"
    if schema is None:
        folder.touch()
    with pytest.raises(SinkFailed, match=said):
        passage(driver, ApartSink(schema or NUMBERS), folder, function)


def records_of(log):
    messages = log.read(ORDERS, Position(0), 10)
    return [Record(message.value(), message) for message in messages]


def test_records_have_the_columns_of_sparks_kafka_source(driver, tmp_path):
    log = FaultyLog({"orders": 1})
    log.append(ORDERS, b"a", key=b"k", headers=[("h", b"1"), ("h", None)], timestamp_ms=1500)
    log.append(ORDERS, None)
    kept = Mock(__name__="kept", side_effect=lambda frame: frame)
    step = passage(driver, MemorySink("table"), tmp_path, kept, schema=None)
    step.stage(Batch(1, [records_of(log)], 2))
    first, second = kept.call_args.args[0].table.to_pylist()
    assert {**first, "timestamp": first["timestamp"].timestamp()} == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": 1.5,
        "key": b"k",
        "value": b"a",
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }
    assert [second[name] for name in ("offset", "key", "value", "headers")] == [1, None, None, None]


@pytest.mark.parametrize("timestamp_ms", [1_767_322_800_000_000_000, -(2**62), 253_402_300_800_000])
def test_a_records_time_that_nobody_has_is_null(timestamp_ms):
    """A producer that gives nanoseconds must not stop the partition."""
    log = FaultyLog({"orders": 1})
    for each in (1500, timestamp_ms, 253_402_300_799_999):
        log.append(ORDERS, b"a", timestamp_ms=each)
    fitted = fit_records([records_of(log)])
    assert fitted.rejected == {}
    times = fitted.table["timestamp"].to_pylist()
    assert [None if time is None else time.year for time in times] == [1970, None, 9999]


def test_what_an_executor_raised_is_told_in_one_line():
    text = "Traceback (most recent call last):\n  File x\nValueError: not today\n\n\tat x"
    frame = Mock(mapInArrow=Mock(side_effect=RuntimeError(text)))
    with pytest.raises(TaskRaised, match=r"'job' raised ValueError: not today$"):
        stage_on_executors(frame, Apart(NUMBERS), 1, "job")


def test_a_large_part_is_staged_piece_by_piece(monkeypatch):
    monkeypatch.setattr("sinks.spark.executors._ROWS_AT_ONCE", 4)
    frame = Frame(pa.table({"number": range(10)}), parts=1)
    staged = stage_on_executors(frame, Apart(NUMBERS), 7, "job")
    assert [(each.num_rows, each.shares) for each in staged] == [(4, ()), (4, ()), (2, ())]


@pytest.fixture
def spark():
    def parallelize(tasks, parts):
        assert len(tasks) == parts
        return Mock(map=lambda function: Mock(collect=lambda: [*map(function, tasks)]))

    return Driver(Mock(sparkContext=Mock(parallelize=parallelize)))


def test_each_task_is_a_partition_and_results_keep_order(spark):
    assert run_tasks(spark, [b"a", b"b"], doubled, group="g", deadline_seconds=5) == [b"aa", b"bb"]
    assert run_tasks(spark, [b"c"], doubled, group="h") == [b"cc"]
    assert run_tasks(spark, [], doubled, group="none") == []
    assert (spark.groups, spark.deadlines) == (["g", "h"], [5, None])


def test_python_error_of_a_task_is_one_line(spark):
    def fail(task):
        raise ValueError(task.decode())

    text = 'Task failed: Traceback (most recent call last):\n  File "f.py", line 1\nKeyError: 7\n'
    with pytest.raises(TaskRaised, match="job 'g' raised KeyError: 7") as caught:
        run_tasks(spark, [text.encode()], fail, group="g")
    assert caught.value.said == "KeyError: 7"
    with pytest.raises(ValueError, match="java"):
        run_tasks(spark, [b"java.lang.OutOfMemoryError"], fail, group="g")


def test_worker_forgets_archives_and_still_imports(tmp_path, monkeypatch):
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("in_an_archive.py", "VALUE = 1")
        file.writestr("in_the_same.py", "VALUE = 2")
    monkeypatch.syspath_prepend(str(archive))
    import in_an_archive  # noqa: PLC0415

    def archives():
        finders = sys.path_importer_cache.values()
        return [each for each in finders if isinstance(each, zipimport.zipimporter)]

    assert archives()
    gc.unfreeze()
    lighten()
    assert not archives()
    assert gc.get_freeze_count() > 1000
    import in_the_same  # noqa: PLC0415

    assert (in_an_archive.VALUE, in_the_same.VALUE) == (1, 2)
    for name in ("in_an_archive", "in_the_same"):
        del sys.modules[name]


def test_objects_are_frozen_once():
    gc.unfreeze()
    lighten()
    count = gc.get_freeze_count()
    garbage = [[] for _ in range(1000)]
    lighten()
    assert gc.get_freeze_count() <= count
    del garbage
