import asyncio
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headrace import SKIP, Bolt, Reject, To, bolt
from headrace.sinks import MemorySink
from headrace.testing import NotSettled, topology_test
from tests.support.bolts import made
from tests.support.pipeline import Works, as_bolt, drawn, piped, text_of


def ticking(tick, kind="function", seconds=5.0, does=lambda value: value):
    return made(type(as_bolt(kind, does)), tick_seconds=seconds, tick=tick)


def test_patience_of_the_kit_starts_anew_while_bolts_run(monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("service.testing.kit.time", clock)

    @bolt
    def looked_at(value: str) -> str:
        clock.now += 60.0  # a breakpoint
        return value

    with topology_test(piped(looked_at)) as kit:
        assert kit.send(b"a", b"b").rows == ["a", "b"]


def test_running_calls_are_cancelled_before_close(monkeypatch):
    events: list[str] = []

    class Endless(Bolt[str, str]):
        async def process(self, value: str, /) -> str:
            events.append("begun")
            try:
                await asyncio.Event().wait()
            finally:
                events.append("cancelled")
            return value

        async def close(self) -> None:
            events.append("closed")

    now = itertools.count(step=1.0)  # patience ends only after the call has begun
    clock = SimpleNamespace(monotonic=lambda: next(now) if events else 0.0)
    monkeypatch.setattr("service.testing.kit.time", clock)
    with topology_test(piped(Endless), patience_seconds=0.2) as kit:
        with pytest.raises(NotSettled, match=r"for 0\.2 s: 1 calls of bolt 'Endless' have not"):
            kit.send(b"a")
        assert events == ["begun"]
    assert events == ["begun", "cancelled", "closed"]


def test_missed_ticks_are_not_made_up_for():
    told: list[Any] = []
    bolt = ticking(
        lambda _bolt: told.append(0), seconds=2.0, does=lambda _record: f"{len(told)} ticks"
    )
    with Works(bolt()) as works:
        for passed, ticks in ((1.9, 0), (0.1, 1), (0.0, 1), (7.0, 2), (2.0, 3)):
            works.now += passed
            works.turn(1)
            works.send(b"x")
            works.finish()
            assert works.sink.rows[-1] == f"{ticks} ticks"


@pytest.mark.parametrize("kind", ["function", "vectorised", "tasks", "blocking", "async", "stream"])
def test_tick_emits_values_that_belong_to_no_record(kind):
    def tick(*_given):
        yield {"n": -1}
        yield To("late", {"n": -2})
        yield SKIP

    async def later(self):
        return To("late", {"n": -2}) if kind == "async" else None

    async def stream(self):
        for value in tick():
            yield value

    ticks = {"async": later, "stream": stream}.get(kind, tick)
    create = ticking(ticks, {"tasks": "function", "stream": "async"}.get(kind, kind))

    def draw(stream):
        tasks = {"tasks": 2} if kind == "tasks" else {}
        ticks = stream.then(create, name="ticks", streams=("late",), **tasks)
        ticks.into(MemorySink("out"))
        late = ticks["late"]
        if kind != "vectorised":  # behind columns only columns
            late = late.then(as_bolt("function", lambda value: value), name="next")
        late.into(MemorySink("late"))

    with topology_test(drawn(draw)) as kit:
        kit.send(b'{"n": 1}').advance(5)
        count = 2 if kind == "tasks" else 1
        assert kit.rows_of("late") == [{"n": -2}] * count
        assert kit.rows_of("out") == [{"n": 1}] + [{"n": -1}] * (0 if kind == "async" else count)
        assert (kit.unresolved, len(kit.acked)) == (0, 1)


@pytest.mark.parametrize("kind", ["function", "blocking", "async"])
def test_ticks_come_on_the_thread_of_the_calls(kind):
    threads: set[str] = set()

    def noted(value=None):
        threads.add(threading.current_thread().name)
        return value

    with topology_test(piped(ticking(lambda _bolt: noted(), kind, does=noted))) as kit:
        assert kit.send(b"1").advance(5).send(b"2").advance(5).rows == ["1", "2"]
    assert len(threads) == 1


def test_tick_that_emits_no_value_has_failed():
    def in_kit(reliability, *given):
        values = iter(given)
        gives = ticking(lambda _bolt: next(values), does=lambda _value: "row")
        topology = drawn(
            lambda s: s.then(gives).into(MemorySink()), first=text_of, reliability=reliability
        )
        with capture_logs() as logs, topology_test(topology) as kit:
            kit.advance(5 * len(given)).send(b"1")
            errors = [each["error"] for each in logs if each["event"] == "tick_failed"]
            return kit.rows, errors

    rows, errors = in_kit("at-least-once", "ticked", To("x", 1), Reject, iter([None]))
    assert rows == ["ticked", "row"]
    assert [error.split(" ")[-1] for error in errors] == ["SKIP", "it"]
    for given in (True, pa.record_batch({"n": [1]})):
        rows, errors = in_kit("at-least-once", given)
        assert (rows, len(errors)) == (["row"], 1)
        assert errors[0].startswith(f"tick returned {type(given).__name__}, expected a value")
    rows, errors = in_kit("exactly-once", "ticked")
    assert rows == ["row"]
    assert "belongs to no transaction" in errors[0]


def test_tick_waits_while_a_sink_behind_it_is_full(monkeypatch):
    def tick(_bolt):
        yield "ticked"

    with Works(ticking(tick, seconds=0.1)()) as works:
        committer = works.pipeline.committer
        full = [True]
        monkeypatch.setattr(committer, "is_full", lambda _sink: full[0])
        for _ in range(20):
            works.now += 0.1
            works.turn(1)
        assert works.sink.rows == []
        full[0] = False
        works.now += 0.15
        works.turn(1)
        works.send(b"x")
        works.finish()
        assert works.sink.rows[0] == "ticked"


@pytest.mark.parametrize("kind", ["function", "advanced", "tasks", "blocking", "async"])
@pytest.mark.parametrize("error", [SystemExit(3), ValueError("late")])
def test_exit_in_a_tick_is_a_failed_tick(kind, error):
    def tick(*_given):
        raise error

    tasks: dict[str, Any] = {"tasks": 2} if kind == "tasks" else {}
    create = ticking(tick, "function" if kind == "tasks" else kind)
    topology = piped(create, name="ticks", **tasks)
    with capture_logs() as logs, topology_test(topology) as kit:
        kit.advance(5).send(b"2").advance(5)
        assert kit.rows == ["2"]
    assert {line["error"] for line in logs if line["event"] == "tick_failed"} == {
        "bolt 'ticks' raised SystemExit(3)" if isinstance(error, SystemExit) else "late"
    }
