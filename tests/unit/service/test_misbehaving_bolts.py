"""Bolts that raise, return or ask for what they may not: none costs another's record (B01)."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from headrace import SKIP, AdvancedBolt, Record, Reject, Retry, Skip, To, bolt
from headrace.sinks import MemorySink
from headrace.testing import RetryPolicy, topology_test
from service.observability.metrics import metric_values
from service.observability.snapshot import snapshot_of
from tests.support.bolts import Untold
from tests.support.pipeline import HeldSink, Works, as_bolt, drawn, parse, payload, piped, text_of

MANY = 1_000_000
ONCE_MORE = RetryPolicy(limit=1, initial_seconds=1, jitter=0)
OFF_THE_OWNER = ["blocking", "async", "async keyed"]  # no Ctrl-C comes to their threads
KINDS = [
    "function", "generator", "vectorised", "advanced", "function keyed", "function tasks",
    *OFF_THE_OWNER,
]  # fmt: skip


def fails_one(kind, error):
    def check(value):
        if value["n"] == 1:
            raise error() if callable(error) else error
        return value

    kind, _, how = kind.partition(" ")

    def draw(stream):
        stream = stream.keyed_by(lambda value: value["n"]) if how == "keyed" else stream
        tasks = {"tasks": 2} if how == "tasks" else {}
        stream.then(lambda: as_bolt(kind, check), name="fails", **tasks).into(MemorySink("out"))

    return drawn(draw)


def send_four(kit):
    kit.send(*(payload(n=n) for n in range(4))).advance(60)
    assert sorted(row["n"] for row in kit.rows) == [0, 2, 3]
    assert kit.unresolved == 0
    (letter,) = kit.rejected
    return letter


class Panic(BaseException):
    """As a Rust extension raises it when it panics."""


NAMED = [SystemExit(0), SystemExit("enough"), Panic("no exception")]
TEXTS = {"MemoryError": "no more", "Untold": "Untold"}


@pytest.mark.parametrize(
    "error",
    [*NAMED, MemoryError("no more"), Untold(), asyncio.CancelledError(), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_bolt_raises_fails_its_record_alone(kind, error):
    """It is tried again like any other and becomes a dead letter; the run goes on."""
    with capture_logs() as logs, topology_test(fails_one(kind, error), retries=ONCE_MORE) as kit:
        letter = send_four(kit)
        assert (letter.record.offset, letter.step, letter.attempts) == (1, "fails", 2)
        if error in NAMED:
            assert letter.reason == f"bolt 'fails' raised {error!r}"
        assert letter.reason == TEXTS.get(type(error).__name__, letter.reason)
        assert kit.metrics['headrace_topology_failed_tuples_total{step="fails"}'] == 2
    told = [line for line in logs if line["event"] == "step_failing"]
    assert {(line["step"], line["error"]) for line in told} == {("fails", letter.reason)}


@pytest.mark.parametrize("kind", OFF_THE_OWNER)
def test_keyboard_interrupt_off_the_owner_fails_its_record(kind):
    """Python sends Ctrl-C to the main thread only, so on any other it is the bolt's own."""
    with topology_test(fails_one(kind, KeyboardInterrupt()), retries=ONCE_MORE) as kit:
        assert send_four(kit).reason == "bolt 'fails' raised KeyboardInterrupt()"


def test_keyboard_interrupt_on_the_owner_thread_ends_the_run():
    """There it is Ctrl-C for all that we know; what was not stored is read again."""

    @bolt
    def interrupted(record: Record) -> str:
        if record.value == b"2":
            raise KeyboardInterrupt
        return (record.value or b"").decode()

    with Works(interrupted, chunk_records=1, fetch_records=1, batch_rows=1) as works:
        works.send(*(b"%d" % n for n in range(5)))
        with pytest.raises(KeyboardInterrupt):
            works.finish()
        assert works.stored <= 2
        before = list(works.sink.rows)
    with Works(text_of, nodes=works.nodes, log=works.log) as again:
        again.finish()
        assert {*before, *again.sink.rows} == {"0", "1", "2", "3", "4"}
        assert "2" in again.sink.rows


def test_async_calls_that_panic_cost_no_worker():
    with topology_test(fails_one("async", Panic()), retries=RetryPolicy(limit=0)) as kit:
        kit.send(*[payload(n=1)] * 100, *(payload(n=n) for n in range(4)))
        assert sorted(row["n"] for row in kit.rows) == [0, 2, 3]


@pytest.mark.parametrize("after", [float("nan"), float("inf"), -1, "5"])
def test_invalid_retry_pause_fails_its_record_alone(after):
    topology = fails_one("function", lambda: Retry("odd", after_seconds=after))
    with topology_test(topology, retries=ONCE_MORE) as kit:
        assert "expected a finite number >= 0" in send_four(kit).reason


@pytest.mark.parametrize(
    "signal", [None, Reject("no"), Retry("later"), Skip, To("default", Reject("x"))]
)
@pytest.mark.parametrize("kind", ["function", "generator", "async", "blocking", "advanced"])
def test_signal_in_place_of_a_value_is_an_error(kind, signal):
    with topology_test(piped(as_bolt(kind, lambda _value: signal))) as kit:
        kit.send(b"1")
        assert kit.rows == []
        assert len(kit.rejected) == 1


def split(values):
    yield from values


async def split_later(values):
    for each in values:
        await asyncio.sleep(0)
        yield each


@pytest.mark.parametrize("step", [bolt(split), bolt(blocking=True)(split), bolt(split_later)])
def test_generator_emits_in_order_and_without_what_it_skips(step):
    values = {b"two": [1, SKIP, 2], b"none": [], b"bad": [3, None]}
    with topology_test(piped(step, first=bolt(lambda record: values[record.value]))) as kit:
        kit.send(*values)
        assert kit.rows == [1, 2]
        assert {record.value for record in kit.acked} == {b"two", b"none"}
        assert [letter.error_class for letter in kit.rejected] == ["NothingReturned"]


def test_skip_is_one_however_it_is_made():
    assert Skip() is Skip()


def test_column_named_like_the_lineage_is_kept():
    with topology_test(piped(as_bolt("vectorised", lambda row: row), first=parse)) as kit:
        kit.send(payload(n=1), payload(n=9, __parent=1, __parent_=2))
        assert kit.rows[0]["n"] == 1
        assert kit.rows[1] == {"n": 9, "__parent": 1, "__parent_": 2}


def broken(how):
    class Breaks(AdvancedBolt):
        def process(self, tuple_, collector, /):
            if tuple_.value == "bad":
                return [asks[ask](tuple_, collector) for ask in how.split(", ")][-1]
            collector.emit(tuple_.value, anchors=tuple_)
            return collector.ack(tuple_)

    asks = {
        "ack": lambda tuple_, collector: collector.ack(tuple_),
        "fail": lambda tuple_, collector: collector.fail(tuple_),
        "emit": lambda tuple_, collector: collector.emit("x", anchors=tuple_),
        "emit None": lambda tuple_, collector: collector.emit(None, anchors=tuple_),
        "emit SKIP": lambda tuple_, collector: collector.emit(SKIP, anchors=tuple_),
        "emit late": lambda tuple_, collector: collector.emit(1, anchors=tuple_, stream="late"),
        "return": lambda _tuple, _collector: 5,
        "generate": lambda _tuple, _collector: (each for each in "ab"),
        "await": lambda _tuple, _collector: asyncio.sleep(0),
        "fail by text": lambda tuple_, collector: collector.fail(tuple_, "text"),
        "reset text": lambda _tuple, collector: collector.reset_timeout("x"),
    }
    return Breaks()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("ack, ack", "bolt 'breaks' acked a tuple from 'text_of' that it had"),
        ("fail, ack", "bolt 'breaks' acked a tuple from 'text_of' that it had"),
        ("ack, fail", "bolt 'breaks' failed a tuple from 'text_of' that it had"),
        ("ack, emit", "bolt 'breaks' anchored a value to a tuple from 'text_of' that it had"),
        ("ack, emit None", "bolt 'breaks' emitted None, expected a value"),
        ("ack, emit SKIP", "bolt 'breaks' emitted SKIP, expected a value"),
        ("ack, emit late", "bolt 'breaks' emitted to stream 'late', expected default"),
        ("ack, return", "bolt 'breaks': found int returned from process, expected None"),
        ("ack, generate", "bolt 'breaks': found generator returned from process"),
        ("ack, await", "bolt 'breaks': found an awaitable returned from process"),
        ("fail by text", ", expected "),
        ("reset text", ", expected "),
    ],
)
def test_invalid_collector_call_fails_its_record_alone(how, reason):
    """B03, B04, B06: it is told what it did; nothing that it asked for in that call happens."""
    topology = piped(broken(how), name="breaks")
    with capture_logs() as logs, topology_test(topology, retries=ONCE_MORE) as kit:
        kit.send(b"a", b"bad", b"b").advance(600)
        assert kit.rows == ["a", "b"]
        (letter,) = kit.rejected
        assert letter.record.value == b"bad"
        assert reason in letter.reason
        assert kit.unresolved == 0
        assert kit.metrics["headrace_acker_ignored_messages_total"] == 0
        assert kit.metrics["headrace_service_dead_lettered_records_total"] == 1
    told = [line for line in logs if line["event"] == "step_failing"]
    assert {(line["step"], line["error"]) for line in told} == {("breaks", letter.reason)}


def test_value_changed_in_place_leaves_the_record_alone():
    """B09: branches share a value, as is told; but each try begins with the record's own bytes."""
    tries, seen = [], []

    @bolt
    def change(value: dict[str, int]) -> dict[str, int]:
        value["n"] += 100
        tries.append(value["n"])
        if value["n"] == 101:
            raise ValueError("after the change") if len(tries) < 3 else Reject("never")
        return value

    @bolt
    def look(value: dict[str, int]) -> dict[str, int]:
        seen.append(value["n"])
        return dict(value)

    def draw(values):
        values.then(change).into(MemorySink("changed"))
        values.then(look).into(MemorySink("looked"))

    with topology_test(drawn(draw), retries=ONCE_MORE) as kit:
        kit.send(payload(n=1), payload(n=2)).advance(60)
        assert tries == [101, 102, 101]  # and not 201 the second time
        assert seen == [101, 102, 101]  # the same object: what is told of fan-out holds
        assert kit.rows_of("changed") == kit.rows_of("looked") == [{"n": 102}]
        assert [json.loads(letter.record.value) for letter in kit.rejected] == [{"n": 1}]
        assert [json.loads(record.value) for record in kit.acked] == [{"n": 2}]


@pytest.mark.parametrize("exactly_once", [None, "transactional"])
def test_million_values_of_a_record_are_one_tree(exactly_once):
    """B10, promise 10: while a slow sink has them, what follows waits; then all is there."""

    @bolt
    def burst(record: Record) -> Iterator[int]:
        yield from range(int(record.value or b"0"))

    sink = HeldSink()
    with Works(
        burst, sinks=[sink], exactly_once=exactly_once, batch_rows=10, fetch_records=1,
        chunk_records=1, transaction_records=10,
    ) as works:  # fmt: skip
        sink.gate.clear()
        works.send(b"%d" % MANY, *[b"1"] * 100)
        works.until(sink.asked.is_set)
        works.turn(50)
        assert works.ledger.pending - works.ledger.waiting <= 50
        assert works.stored == 0
        shown = metric_values(snapshot_of(works.pipeline, works.now))
        if not exactly_once:  # else there are as many transactions as there may be
            assert shown["headrace_service_held_back_state"] == 1
        assert shown['headrace_sinks_pending_rows{sink="held"}'] >= MANY
        sink.gate.set()
        works.finish()
        assert len(sink.rows) == MANY + 100
        assert sum(sink.rows) == MANY * (MANY - 1) // 2
        shown = metric_values(snapshot_of(works.pipeline, works.now))
        assert shown["headrace_service_written_records_total"] == 101
