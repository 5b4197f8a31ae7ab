"""What is staged of records that Spark has read: by step, and nothing of a try that fails."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace import Topology
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.chunk import Partition
from partition.position import Position
from partition.retries import RetryPolicy
from service.screen import ScreenPolicy
from service.spark_engine import native
from service.spark_engine.native import run_native
from service.spark_engine.spool import SpoolStager, read_lines
from service.spark_engine.task import Task, TaskDone, TaskFailed, TaskRange, TaskSettings
from sinks.columns import fit
from sinks.spark.kafka_source import KafkaRange
from tests.worlds.frames import Driver, Frame
from topology.transactional import Group, Staged

SETTINGS = TaskSettings(
    "p", "", (), {}, "", RetryPolicy(), ScreenPolicy(), 30.0, 1000, 1000, 1000, 1000
)
COLUMNS = pa.schema({"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()})
TABLE = pa.schema({"topic": pa.string(), "offset": pa.int8()})


class Records(Frame):
    """What Spark's source would give; each record's value has three bytes."""

    kept = 0

    def persist(self) -> "Records":
        Records.kept += 1
        return self

    def unpersist(self) -> None:
        Records.kept -= 1

    def selectExpr(self, *wanted: str) -> Frame:  # noqa: N802 - PySpark's name
        assert wanted[:3] == ("topic", "partition", "offset")
        sizes = pa.array([3] * self.table.num_rows, pa.int32())
        return Frame(self.table.append_column("length", sizes))

    def __getitem__(self, name: str) -> Any:
        return pc.field(name)

    def where(self, condition: Any) -> "Records":
        return Records(self.table.filter(condition))


class Apart:
    """A stager of tasks that notes what is let go of; the driver's copy."""

    def __init__(self) -> None:
        self.discarded = 0

    def stage(self, group: Group) -> Staged:
        fitted = fit(group.pieces, TABLE)
        return Staged((), fitted.table.num_rows, (fitted.table,), fitted.rejected)

    def discard(self, staged: Staged) -> None:
        self.discarded += staged.num_rows


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A Spark of two slots, whose topics have a record at each offset."""

    def read(_session: Any, _kafka: Any, ranges: list[KafkaRange], *, tasks: int) -> Records:
        assert tasks == 2
        rows = [
            {"topic": each.topic, "partition": each.partition, "offset": offset}
            for each in ranges
            for offset in range(each.first, each.end)
        ]
        return Records(pa.Table.from_pylist(rows, schema=COLUMNS))

    monkeypatch.setattr(native, "read_ranges", read)
    return Driver(SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2)))


def placed(frame: Frame) -> Frame:
    return Frame(frame.table.select(["topic", "offset"]))


def fails(frame: Frame) -> Frame:
    del frame
    raise OSError("away")


def drawn(second: Any = placed) -> Topology:
    """Orders go into both sinks, users into the second."""
    topology = Topology("t", reliability="exactly-once")
    orders, users = topology.source("orders"), topology.source("users")
    orders.spark(placed).into(MemorySink[Any](), name="first")
    orders.merge(users).spark(second).into(MemorySink[Any](), name="second")
    topology.dead_letters.into(MemoryDeadLetters())
    topology.validate()
    return topology


def never(frame: Frame) -> Frame:
    raise AssertionError(frame.table.num_rows)


def task(stagers: dict[str, Any], *ranges: tuple[str, int, int], **more: Any) -> Task:
    return Task(
        SETTINGS,
        1,
        tuple(
            TaskRange(Partition(topic, number), Position(number), end, **more)
            for topic, number, end in ranges
        ),
        stagers,
    )


def rows(staged: tuple[Staged, ...]) -> list[tuple[str, int]]:
    tables = [table for each in staged for table in each.parts]
    return [(row["topic"], row["offset"]) for table in tables for row in table.to_pylist()]


def test_each_step_gets_the_records_of_its_topics(driver: Driver) -> None:
    stagers = {"first": Apart(), "second": Apart()}
    done = run_native(driver, task(stagers, ("orders", 0, 2), ("users", 1, 3)), drawn(), group="g")
    assert isinstance(done, TaskDone)
    assert rows(done.staged["first"]) == [("orders", 0), ("orders", 1)]
    assert len(rows(done.staged["second"])) == 4
    assert [read.count for read in done.ranges] == [2, 2]
    assert done.tally.sunk == 4
    assert driver.groups == ["g"]
    assert Records.kept == 0


def test_a_sink_that_has_a_range_already_gets_nothing_of_it(driver: Driver) -> None:
    stagers = {"first": Apart(), "second": Apart()}
    given = task(stagers, ("orders", 0, 2), skips=frozenset({"second"}))
    done = run_native(driver, given, drawn(), group="g")
    assert isinstance(done, TaskDone)
    assert [*done.staged] == ["first"]


def test_rows_for_a_sink_that_stages_here_come_by_the_spool(driver: Driver, tmp_path: Any) -> None:
    stagers = {"first": SpoolStager(str(tmp_path)), "second": Apart()}
    done = run_native(driver, task(stagers, ("orders", 5, 7)), drawn(), group="g")
    assert isinstance(done, TaskDone)
    (staged,) = done.staged["first"]
    ((line, (pieces, offsets)),) = read_lines(staged).items()
    assert line == "orders[5]"
    assert [row["offset"] for piece in pieces for row in piece.to_pylist()] == [5, 6]
    assert offsets.tolist() == [5, 5]


def test_nothing_is_left_of_a_try_that_fails(driver: Driver) -> None:
    stagers = {"first": Apart(), "second": Apart()}
    with pytest.raises(OSError, match="away"):
        run_native(driver, task(stagers, ("orders", 0, 2)), drawn(fails), group="g")
    assert stagers["first"].discarded == 2
    assert Records.kept == 0


def test_a_row_that_does_not_fit_ends_the_run(driver: Driver) -> None:
    stagers = {"first": Apart(), "second": Apart()}
    given = task(stagers, ("orders", 100, 200))  # the table takes offsets up to 127
    failed = run_native(driver, given, drawn(), group="g")
    assert isinstance(failed, TaskFailed)
    assert failed.error_class == "SinkFailed"
    assert "sink 'first' does not take 72 rows of what Spark step 'placed' gives" in failed.error
    assert stagers["first"].discarded == 28


def test_ranges_without_records_do_not_reach_the_function(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "read_ranges", lambda *_, **__: Records(COLUMNS.empty_table()))
    given = task({"first": Apart(), "second": Apart()}, ("orders", 0, 2), ("users", 1, 3))
    done = run_native(driver, given, drawn(never), group="g")
    assert isinstance(done, TaskDone)
    assert [read.count for read in done.ranges] == [0, 0]
    assert not done.staged
    assert Records.kept == 0


def test_a_step_of_whose_topics_no_record_came_is_not_reached_while_others_are(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = {"topic": "users", "partition": 1, "offset": 1}
    records = pa.Table.from_pylist([user], schema=COLUMNS)
    monkeypatch.setattr(native, "read_ranges", lambda *_, **__: Records(records))
    stagers = {"first": Apart(), "second": Apart()}
    given = task(stagers, ("orders", 0, 2), ("users", 1, 3))
    done = run_native(driver, given, drawn(), group="g")
    assert isinstance(done, TaskDone)
    assert [*done.staged] == ["second"]
    assert rows(done.staged["second"]) == [("users", 1)]


def test_ranges_without_offsets_are_no_job_for_the_source(driver: Driver) -> None:
    done = run_native(driver, task({}, ("orders", 3, 3)), drawn(), group="g")
    assert isinstance(done, TaskDone)
    assert [(read.count, read.partition.number) for read in done.ranges] == [(0, 3)]
