import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, call

import pyarrow as pa
import pytest

from headrace import Hooks, InvalidTopology, Record, Reject, Topology, bolt, reference
from headrace.sinks import MemorySink, SparkSink
from partition.interfaces import LogEnd
from service.app import Service
from service.spark_engine.engine import check_runs_on_spark
from sinks.columns import rows_of
from sinks.spark.executors import SparkPassage
from sinks.spark.frames import SpoolStager
from sinks.storage import Storage
from tests.acceptance import evidence
from tests.support.fake_spark import Driver as FrameDriver
from tests.support.fake_spark import FakeSpark, Frame
from tests.support.spark_engine import ONE, ApartSink, Driving, HereSink, parts_of, text, values
from topology.sink import SinkContext
from topology.spark_step import ThroughSpark, spark_step
from transactions.groups import RangePolicy


def test_what_is_there_is_processed_and_committed_once_in_every_sink(tmp_path):
    """Promise 14."""
    apart, here = ApartSink(), HereSink()
    with Driving(tmp_path, sinks=[apart, here]) as drives:
        drives.fill(25, 17)
        drives.finish()
        assert sorted(apart.rows) == sorted(here.rows) == sorted(values("a", 25) + values("b", 17))
        assert [row for row in here.rows if row[0] == "a"] == values("a", 25)
        assert drives.engine.counters.written == 42
        assert sum(part.read for part in drives.reader.statistics(0.0)) == 42
        for sink in (apart, here):
            of_one = [(txid, rows) for line, txid, rows in sink.shares if line == "t[0]"]
            assert [txid for txid, _rows in of_one] == list(range(1, len(of_one) + 1))
            assert sum(rows for _txid, rows in of_one) == 25
        drives.until(lambda: not list(tmp_path.glob("*/files/*")))


@pytest.mark.parametrize("epoch", [1, None])
def test_task_gets_the_leader_epoch_of_its_range(tmp_path, monkeypatch, epoch):
    with Driving(tmp_path, partitions=1) as drives:
        ends = LogEnd(1, epoch)
        monkeypatch.setattr(drives.catalogue, "_ends", lambda those: dict.fromkeys(those, ends))
        drives.fill(1)
        drives.finish()
        (told,) = drives.executors.tasks[0].ranges
        assert (told.position.offset, told.end, told.leader_epoch) == (0, 1, epoch)


def test_the_next_group_runs_while_the_first_is_under_way(tmp_path):
    with Driving(tmp_path, ranges=RangePolicy(5, 0.01, 2)) as drives:
        drives.hold(20, runs=2)
        drives.turn(5)
        assert drives.executors.names == ["ranges-1-1", "ranges-2-1"]
        assert drives.open_of() == [(0, 5, False), (5, 10, False)]
        drives.go()
        assert drives.engine.counters.written == 20


@bolt
def split(record: Record) -> Iterator[str]:
    yield from (record.value or b"").decode().split("|")


def test_other_rows_of_a_record_with_a_refused_row_are_written(tmp_path):
    here = HereSink()
    here.rejects = {"bad", "c1"}
    with Driving(tmp_path, split, sinks=[here]) as drives:
        drives.send("a1|bad|a3", "b1", "bad|bad|d3")
        drives.send("c1|c2", partition=1)
        drives.finish()
        assert sorted(here.rows) == ["a1", "a3", "b1", "c2", "d3"]
        assert drives.executors.names == ["ranges-1-1", "ranges-1-2"]
        letters = {e.record.value for e in drives.letters_sink.letters}
        assert letters == {b"a1|bad|a3", b"bad|bad|d3", b"c1|c2"}
        assert (drives.engine.counters.written, drives.engine.counters.dead_lettered) == (1, 3)
        assert drives.engine.outlets[0].rows_rejected == 4


def test_record_with_unstable_rows_is_left_out_in_the_end(tmp_path):
    made: list[str] = []

    @bolt
    def turned(record: Record) -> Iterator[str]:
        rows = (record.value or b"").decode().split("|")
        made.append(rows[0])
        yield from rows if made.count(rows[0]) % 2 else reversed(rows)

    here = HereSink()
    here.rejects = {"bad"}
    with Driving(tmp_path, turned, sinks=[here]) as drives:
        drives.send("a1|bad", "b1|b2")
        drives.finish()
        assert sorted(here.rows) == ["b1", "b2"]
        assert drives.executors.names == ["ranges-1-1", "ranges-1-2", "ranges-1-3"]
        assert {e.record.value for e in drives.letters_sink.letters} == {b"a1|bad"}


def test_a_record_that_two_sinks_refuse_has_one_letter(tmp_path):
    left, right = HereSink("left"), HereSink("right")
    left.rejects = right.rejects = {"a1"}
    with Driving(tmp_path, sinks=[left, right]) as drives:
        drives.fill(3)
        drives.finish()
        assert left.rows == right.rows == ["a0", "a2"]
        # Each try sends what it knows of; a letter may come twice, as one may after a crash.
        assert {letter.record.value for letter in drives.letters_sink.letters} == {b"a1"}
        assert (drives.engine.counters.written, drives.engine.counters.dead_lettered) == (2, 1)


def test_failures_of_tasks_are_shown_with_a_text_and_a_place(tmp_path):
    @bolt
    def picky(record: Record) -> str:
        raise Reject(f"no {text(record)}")

    with Driving(tmp_path, picky) as drives:
        drives.fill(3, 3)
        drives.finish()
        found = drives.engine.statistics().recent_failures
    assert {(each.step, each.error_class) for each in found} == {("picky", "Reject")}
    assert found[0].error.startswith("no ")
    assert re.fullmatch(r".*test_engine\.py:\d+", found[0].error_at)


def test_tasks_have_the_reference_tables_as_they_are_loaded_now(tmp_path):
    names = reference("names.parquet", key="code", value="name")
    topology = Topology("refers", reliability="exactly-once")
    topology.uses(names)

    @bolt
    def named(record: Record) -> str:
        return names[text(record)]

    with Driving(tmp_path, named, topology=topology) as drives:

        def used(row):
            """The table that a task has for the next record."""
            if row is not None:
                names.load([row])
            drives.send("a")
            drives.finish()
            return drives.executors.tasks[-1].settings.references["names"]

        first = used({"code": "a", "name": "Anna"})
        assert used(None) == first
        assert used({"code": "a", "name": "Berta"}) != first
        assert drives.apart.rows == ["Anna", "Anna", "Berta"]
        assert len(list(tmp_path.rglob("*.arrow"))) == 2
    assert not list(tmp_path.iterdir())
    names.unload()


def test_hooks_are_told_in_the_driver_and_bolts_live_in_tasks(tmp_path):
    topology, hooks = Topology("tells", reliability="exactly-once"), Mock(spec=Hooks)
    topology.hooks(hooks)
    with Driving(tmp_path, topology=topology, partitions=1) as drives:
        assert hooks.mock_calls == [call.started(), call.partition_assigned("t", 0)]
        drives.turn(3)
    assert hooks.mock_calls[2:] == [call.partition_revoked("t", 0), call.stopped()]


def test_a_drain_ends_what_runs_and_begins_nothing(tmp_path):
    """Promise 16."""
    with Driving(tmp_path, ranges=RangePolicy(5, 0.01, 1)) as drives:
        drives.hold(20)
        assert not drives.engine.is_idle
        drives.executors.gate.set()
        drives.until(lambda: drives.engine.is_idle, fetch=False)
        drives.until(lambda: drives.stored_at(ONE) == 5, fetch=False)
        assert drives.executors.names == ["ranges-1-1"]
        assert drives.engine.counters.written == 5


def test_a_source_with_a_rate_gives_no_more_than_that(tmp_path):
    with Driving(tmp_path, ranges=RangePolicy(1000, 0.01), records_per_second=100.0) as drives:
        drives.fill(1000)
        drives.until(lambda: drives.engine.counters.written > 0)
        assert drives.engine.counters.written <= 2


def test_spark_engine_refuses_other_guarantees():
    topology = Topology("loose")
    topology.source("t").then(text).into(MemorySink())
    with pytest.raises(InvalidTopology, match='"local" runs all'):
        check_runs_on_spark(topology)


def test_first_group_has_all_partitions(tmp_path):
    drives = Driving(tmp_path, ranges=RangePolicy(1000, 3600.0), partitions=3)
    for number in range(3):
        drives.send(*values("a", 4), partition=number)
    account = Service(parts_of(drives, drives.engine), drain_seconds=5).run(until_caught_up=True)
    assert account.written == 12
    assert drives.executors.names == ["ranges-1-1"]


def test_goal_is_known_though_a_log_seemed_short_when_opened(tmp_path, monkeypatch):
    """As it may just after its leader has changed; else a finite run would never end."""
    with Driving(tmp_path, partitions=1) as first:
        first.fill(5)
        first.finish()
    again = first.another(partitions=1)
    tell = again.log.log

    def tells_too_little(partition, timestamp_ms=None):
        return replace(tell(partition, timestamp_ms), end=2)

    monkeypatch.setattr(again.log, "log", tells_too_little)
    with again:
        again.turn(5)
        assert not again.reader.assignment.has_reached_goals
        monkeypatch.setattr(again.log, "log", tell)
        again.until(lambda: again.reader.assignment.has_reached_goals)
        assert again.reader.assignment.goals == {ONE: 5}


class StepDriver(FrameDriver):
    def passage(self, step, sink, context):
        return SparkPassage(self, step, sink, context)


def test_spark_steps_alone_take_the_ordinary_path(tmp_path):
    """Promise 14: executors read the records, and the driver sends them through the step.

    Other steps may stand behind the same topic.
    """
    columns = pa.schema({"partition": pa.int32(), "offset": pa.int64()})
    table, kept = MemorySink[Any]("table", schema=columns), HereSink()
    placed = spark_step(lambda frame: Frame(frame.table.select(columns.names)), None, None)
    front = ThroughSpark(placed, table)
    driver = StepDriver()
    front.open(SinkContext("p", "table", {}, Storage(str(tmp_path)), driver, exactly_once=True))
    with Driving(tmp_path / "spool", sinks=[front, kept], directly=True) as drives:
        drives.fill(15, 7)
        drives.finish()
        assert drives.engine.counters.written == 22
    rows = [(row["partition"], row["offset"]) for row in rows_of([table.rows])]
    assert sorted(rows) == [(0, offset) for offset in range(15)] + [(1, n) for n in range(7)]
    assert sorted(record.value for record in kept.rows) == sorted(
        value.encode() for value in values("a", 15) + values("b", 7)
    )
    front.close()


def test_spark_writes_what_tasks_have_spooled_a_group_in_a_job(tmp_path, monkeypatch):
    """Promise 14: SparkSink's rows go from the tasks to Spark by its own spool."""

    @bolt
    def row(record: Record) -> dict[str, Any]:
        return {"value": (record.value or b"").decode()}

    spark, warehouse = FakeSpark(monkeypatch), tmp_path / "warehouse"
    sink = SparkSink[Any]("rows", format="delta", schema=pa.schema({"value": pa.string()}))
    sink.open(SinkContext("p", "rows", {}, Storage(str(warehouse)), spark, exactly_once=True))
    with Driving(tmp_path / "run", row, sinks=[sink], ranges=RangePolicy(10, 0.01)) as drives:
        drives.fill(15, 15)
        drives.finish()
        stagers = {type(task.stagers["rows"]) for task in drives.executors.tasks}
        assert stagers == {SpoolStager}
        assert spark.groups.count("rows-commit") == len(drives.executors.tasks) / 2 == 3
    found = evidence.read_table(warehouse / "rows")["value"].to_pylist()
    assert sorted(found) == sorted(values("a", 15) + values("b", 15))
    assert not [*(warehouse / ".spool").rglob("*.parquet")]
    sink.close()
