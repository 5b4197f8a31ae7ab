"""Bolts that raise what would end the process, or what is no Exception."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headrace import AdvancedBolt, Bolt, Record, bolt
from headrace.sinks import MemorySink
from headrace.testing import RetryPolicy, topology_test
from tests.support.pipeline import Works, drawn, payload

ONCE_MORE = RetryPolicy(limit=1, initial_seconds=1, jitter=0)
OFF_THE_OWNER = ["blocking", "async", "async keyed"]  # no Ctrl-C comes to their threads
KINDS = [
    "plain", "generator", "vectorised", "advanced", "keyed", "tasks", *OFF_THE_OWNER,
]  # fmt: skip


def leaving(kind: str, error: BaseException) -> Any:
    """A bolt that raises for {"n": 1}, and gives any other value back."""

    def check(value: dict[str, int]) -> dict[str, int]:
        if value["n"] == 1:
            raise error
        return value

    def each(value: dict[str, int]) -> Iterator[dict[str, int]]:
        yield check(value)

    async def later(value: dict[str, int]) -> dict[str, int]:
        return check(value)

    @bolt(vectorised=True)
    def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
        for number in batch.column("n").to_pylist():
            check({"n": number})
        return batch

    class Advanced(AdvancedBolt):
        def process(self, tuple_, collector, /):
            collector.emit(check(tuple_.value), anchors=tuple_)
            collector.ack(tuple_)

    class Tasked(Bolt):
        def process(self, value, /):
            return check(value)

    made = {
        "plain": bolt(check), "keyed": bolt(check), "generator": bolt(each),
        "vectorised": columns, "advanced": Advanced, "tasks": Tasked,
        "blocking": bolt(blocking=True)(check), "async": bolt(later), "async keyed": bolt(later),
    }  # fmt: skip
    return made[kind]


def leads_to(kind: str, error: BaseException) -> Any:
    """A topology with such a bolt."""

    def draw(stream: Any) -> None:
        if "keyed" in kind:
            stream = stream.keyed_by(lambda value: value["n"])
        options = {"tasks": 2} if kind == "tasks" else {}
        stream.then(leaving(kind, error), name="leaves", **options).into(MemorySink("out"))

    return drawn(draw)


class Panic(BaseException):
    """As a Rust extension raises it when it panics."""


NAMED = [SystemExit(0), SystemExit("enough"), MemoryError("no more"), Panic("no exception")]


@pytest.mark.parametrize("error", [*NAMED, asyncio.CancelledError(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_exit_in_a_bolt_fails_its_record_alone(kind, error):
    """It is tried again like any other and becomes a dead letter; the run goes on."""
    with capture_logs() as logs, topology_test(leads_to(kind, error), retries=ONCE_MORE) as kit:
        kit.send(*(payload(n=n) for n in range(4)))
        assert kit.retrying == 1
        kit.advance(60)
        assert sorted(row["n"] for row in kit.rows) == [0, 2, 3]
        (letter,) = kit.rejected
        assert (letter.record.offset, letter.step, letter.attempts) == (1, "leaves", 2)
        said = "no more" if isinstance(error, Exception) else f"bolt 'leaves' raised {error!r}"
        assert letter.reason == said or error not in NAMED
        assert kit.unresolved == 0
        assert kit.metrics['headrace_topology_failed_tuples_total{step="leaves"}'] == 2
    told = [line for line in logs if line["event"] == "step_failing"]
    assert {(line["step"], line["error"]) for line in told} == {("leaves", letter.reason)}


def test_keyboard_interrupt_on_the_owner_thread_ends_the_run():
    """There it is Ctrl-C for all that we know; what was not stored is read again."""

    @bolt
    def interrupted(record: Record) -> str:
        if record.value == b"2":
            raise KeyboardInterrupt
        return (record.value or b"").decode()

    @bolt
    def text(record: Record) -> str:
        return (record.value or b"").decode()

    with Works(interrupted, chunk_records=1, fetch_records=1, batch_rows=1) as works:
        works.send(*(b"%d" % n for n in range(5)))
        with pytest.raises(KeyboardInterrupt):
            works.finish()
        assert works.stored <= 2
        before = list(works.sink.rows)
    with Works(text, nodes=works.nodes, log=works.log) as again:
        again.finish()
        assert {*before, *again.sink.rows} == {"0", "1", "2", "3", "4"}
        assert "2" in again.sink.rows


@pytest.mark.parametrize("kind", ["plain", "advanced", "tasks", "blocking", "async"])
@pytest.mark.parametrize("error", [SystemExit(3), ValueError("late")])
def test_exit_in_a_tick_is_a_failed_tick(kind, error):
    def tick(*_given):
        raise error

    made = leaving(kind, error) if kind in ("advanced", "tasks") else None

    class Ticking(made or Bolt):
        tick_seconds = 5.0
        blocking = kind == "blocking"

        def process(self, *given):
            return super().process(*given) if made else given[0]

    if kind == "async":

        async def process(self, value, /):
            return value

        Ticking.process = process
    Ticking.tick = tick
    tasks = {"tasks": 2} if kind == "tasks" else {}
    topology = drawn(lambda s: s.then(Ticking, name="ticks", **tasks).into(MemorySink("out")))
    with capture_logs() as logs, topology_test(topology) as kit:
        kit.advance(5).send(payload(n=2)).advance(5)
        assert kit.rows == [{"n": 2}]
    assert {line["error"] for line in logs if line["event"] == "tick_failed"} == {
        "bolt 'ticks' raised SystemExit(3)" if isinstance(error, SystemExit) else "late"
    }


def test_async_calls_that_panic_cost_no_worker():
    with topology_test(leads_to("async", Panic()), retries=RetryPolicy(limit=0)) as kit:
        kit.send(*[payload(n=1)] * 100, *(payload(n=n) for n in range(4)))
        assert sorted(row["n"] for row in kit.rows) == [0, 2, 3]


@pytest.mark.parametrize("kind", OFF_THE_OWNER)
def test_keyboard_interrupt_off_the_owner_fails_its_record(kind):
    """Python sends Ctrl-C to the main thread only, so on any other it is the bolt's own."""
    with topology_test(leads_to(kind, KeyboardInterrupt()), retries=ONCE_MORE) as kit:
        kit.send(*(payload(n=n) for n in range(4))).advance(60)
        assert sorted(row["n"] for row in kit.rows) == [0, 2, 3]
        assert [letter.reason for letter in kit.rejected] == [
            "bolt 'leaves' raised KeyboardInterrupt()"
        ]
