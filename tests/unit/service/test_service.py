import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from headrace import AdvancedBolt, Record, Reject, SinkFailed, bolt
from headrace.sinks import MemorySink
from service.app import Service
from service.pipeline.loop import Pipeline
from tests.support.bolts import Own, made
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes
from tests.support.patience import seconds
from tests.support.pipeline import PLACE, HeldSink, Works, stored_in
from tests.support.service import Running
from tests.support.spark_engine import parts_of


@bolt
def parse(record: Record) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(record.value or b"")
    if value["n"] < 0:
        raise Reject("negative")
    return value


class KeepFromTwo(AdvancedBolt[dict[str, Any], dict[str, Any]]):
    def process(self, tuple_, collector, /):
        if tuple_.value["n"] < 2:
            collector.emit(tuple_.value, anchors=tuple_)
            collector.ack(tuple_)


class World:
    def __init__(self, *bolts, sink=None, drain_seconds=5, **options):
        self.sink = sink or MemorySink()
        self.log = FaultyLog({"t": 1})
        self.nodes = FaultyNodes()
        self.bolts = bolts
        self.drain_seconds = drain_seconds
        self.options = {"batch_rows": 10, "batch_seconds": 0.01, **options}

    def send(self, *numbers):
        for n in numbers:
            self.log.append(PLACE, json.dumps({"n": n}).encode())

    def service(self):
        works = Works(
            parse, *self.bolts, sinks=[self.sink], nodes=self.nodes, log=self.log,
            clock=time.monotonic, **self.options,
        )  # fmt: skip
        return Service(parts_of(works, works.pipeline), drain_seconds=self.drain_seconds)

    def committed(self):
        return stored_in(self.nodes, PLACE).offset


def test_finite_run_reconciles():
    world = World()
    world.send(*range(12), -1, 14)
    account = world.service().run(until_caught_up=True)
    assert account.problems() == []
    assert (account.read, account.written, account.rows, account.dead_lettered) == (14, 13, 13, 1)
    assert account.caught_up
    assert world.committed() == 14


@pytest.mark.slow
def test_resolved_offsets_are_stored_after_an_unfinished_drain():
    """Promise 16: the deadline has a part for storing the offsets."""
    world = World(KeepFromTwo, commit_interval_seconds=3600.0, drain_seconds=3)
    world.send(0, 1, 2, 3)
    running = Running(world.service())
    written = "headrace_service_written_records_total"
    running.until("two are written", lambda: running.figure(written) == 2)
    running.end()
    assert world.committed() == 2


def test_permanent_sink_failure_ends_the_run():
    """Promise 15: what cannot heal ends the process with a clear error."""

    class Failing(MemorySink[Any]):
        def commit(self, staged):
            if len(self.rows) == 5:
                raise SinkFailed("table gone")
            super().commit(staged)

    world = World(sink=Failing())
    world.send(*range(5))
    world.service().run(until_caught_up=True)
    world.send(*range(3))
    with pytest.raises(SinkFailed, match="table gone"):
        world.service().run(until_caught_up=True)
    assert world.committed() == 5


def test_stop_drains_and_commits():
    """Promise 16."""
    sink = HeldSink()
    sink.gate.clear()
    world = World(sink=sink)
    world.send(*range(100, 150))
    running = Running(world.service())
    assert sink.asked.wait(seconds(10))
    running._service.stop()
    sink.gate.set()
    account = running.end()
    assert account.unresolved == 0
    assert account.losses() == []
    assert world.committed() == len(sink.rows) == account.written


@pytest.mark.parametrize("error", [SinkFailed("table gone"), ValueError("a bug")], ids=repr)
def test_resolved_offsets_are_stored_if_the_drain_raises(error, monkeypatch):
    """Promise 16: and the run ends with what was raised."""
    world = World(KeepFromTwo, commit_interval_seconds=3600.0)
    world.send(0, 1, 2)
    service = world.service()
    step = Pipeline.step

    def raising(pipeline, **options):
        if not options.get("fetch", True):
            raise error
        moved = step(pipeline, **options)
        if pipeline.counters.written == 2:
            service.stop()
        return moved

    monkeypatch.setattr(Pipeline, "step", raising)
    with pytest.raises(type(error)) as raised:
        service.run()
    assert raised.value is error
    assert world.committed() == 2


def test_bolt_that_fails_to_close_keeps_nothing_open():
    def close(_bolt):
        raise OSError("will not close")

    world = World(made(Own, close=close))
    world.sink.close = Mock()
    world.send(1)
    with pytest.raises(OSError, match="will not close"):
        world.service().run(until_caught_up=True)
    assert world.sink.close.call_count == 1
    assert world.committed() == 1


def test_processes_of_bolts_are_spawned(monkeypatch):
    monkeypatch.setattr(os, "fork", None)

    @bolt
    def started(value: dict[str, Any]) -> tuple[str, int]:
        with ProcessPoolExecutor(1) as pool:
            return multiprocessing.get_start_method(), pool.submit(abs, -value["n"]).result()

    multiprocessing.set_start_method("fork", force=True)
    world = World(started)
    world.send(7)
    world.service().run(until_caught_up=True)
    assert world.sink.rows == [("spawn", 7)]
