import threading
from collections.abc import Iterator
from functools import partial
from operator import itemgetter

import pytest

from headrace import Bolt, Record, Reject, Retry, To, all_tasks, bolt
from headrace.sinks import MemorySink
from headrace.testing import RetryPolicy, topology_test
from partition.errors import Fenced
from partition.records import Partition
from tests.support.bolts import made
from tests.support.patience import seconds
from tests.support.pipeline import (
    ORDERED_KINDS,
    Keep,
    Pairs,
    Seen,
    as_bolt,
    drawn,
    failing_once,
    parse,
    payload,
    piped,
    text_of,
)

PLACE = Partition("in", 0)
RETRIES = RetryPolicy(limit=1, jitter=0, initial_seconds=5)


@bolt
def letters_of(record: Record) -> Iterator[str]:
    for letter in (record.value or b"").decode():
        yield letter * (record.offset + 1)


record_of = bolt(lambda record: record)


def keyed(step, *, first=letters_of, by=itemgetter(0), **options):
    sink = MemorySink("out")
    return drawn(lambda s: s.keyed_by(by).then(step, **options).into(sink), first=first)


def turn_until(kit, ask):
    while not ask():
        kit._pipeline.step(flush=True)


@pytest.mark.parametrize("kind", ORDERED_KINDS)
def test_key_keeps_its_order_through_a_retry(kind):
    """Promise 13."""
    seen = Seen(failing=[(0, 1), (0, 1)])
    workers = {"workers": 4} if kind == "async" else {}
    topology = keyed(partial(seen.make, kind), first=parse, by="user", **workers)
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n, user=n % 2) for n in range(1, 9)])
        assert sorted(row["n"] for row in kit.rows) == [2, 4, 6, 8]
        assert (kit.retrying, kit.unresolved) == (1, 4)
        assert seen.calls[0].count(3) == 0, "it waits behind the record that comes again"
        kit.advance(120)
        rows = [row["n"] for row in kit.rows]
        assert [n for n in rows if n % 2] == [1, 3, 5, 7]
        assert [n for n in rows if not n % 2] == [2, 4, 6, 8]
        assert kit.unresolved == 0


@pytest.mark.parametrize("kind", ORDERED_KINDS)
def test_key_has_one_task_and_keeps_its_order(kind):
    seen = Seen(failing=[(task, n) for task in range(3) for n in (0, 4)])
    topology = keyed(partial(seen.make, kind), first=parse, by="user", tasks=3)
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n, user=f"u{n % 4}") for n in range(24)])
        kit.advance(600)
        assert sorted(row["n"] for row in kit.rows) == list(range(24))
        for user in range(4):
            mine = [row for row in kit.rows if row["n"] % 4 == user]
            assert [row["n"] for row in mine] == sorted(row["n"] for row in mine)
            assert len({row["task"] for row in mine}) == 1


@pytest.mark.parametrize("kind", ORDERED_KINDS)
def test_order_of_a_partition_holds_up_no_other_partition(kind):
    seen = Seen(failing=[(0, 0)])
    topology = drawn(lambda s: s.ordered().then(partial(seen.make, kind)).into(MemorySink("out")))
    with topology_test(topology) as kit:
        kit.send(payload(n=0), payload(n=1)).send(payload(n=2), payload(n=3), partition=1)
        assert [row["n"] for row in kit.rows] == [2, 3]
        kit.advance(60)
        assert [row["n"] for row in kit.rows] == [2, 3, 0, 1]


@pytest.mark.parametrize("kind", ORDERED_KINDS)
def test_value_without_a_key_is_rejected_alone(kind):
    step = as_bolt(kind, lambda value: value)
    topology = keyed(step, first=parse, by=lambda value: value["id"], name="step")
    with topology_test(topology) as kit:
        kit.send(payload(id=1), payload(), payload(id=[2]))
        assert kit.rows == [{"id": 1}]
        for letter, reason in zip(kit.rejected, ("KeyError('id')", "unhashable"), strict=True):
            assert "bolt 'step': the key" in letter.reason
            assert reason in letter.reason


@pytest.mark.parametrize("kind", ["keyed", "tasks", "blocking"])
def test_generator_behind_an_order_emits_by_streams_or_not_at_all(kind):
    """Promise 4."""
    failing = [3]

    class Spread(Bolt):
        blocking = kind == "blocking"

        def process(self, value, /) -> Iterator:
            for n in range(value["n"]):
                if n == 2 and failing:
                    raise ValueError(failing.pop())
                yield To("odd", n) if n % 2 else n

    def draw(stream):
        options = {"tasks": 2} if kind == "tasks" else {}
        before = stream.keyed_by("n") if kind == "keyed" else stream
        spread = before.then(Spread, streams=("odd",), **options)
        spread.into(MemorySink("even"))
        spread["odd"].into(MemorySink("odd"))

    with topology_test(drawn(draw)) as kit:
        kit.send(payload(n=0), payload(n=3))
        assert (kit.rows, len(kit.acked), kit.retrying) == ([], 1, 1)
        kit.advance(60)
        assert (kit.rows_of("even"), kit.rows_of("odd")) == ([0, 2], [1])
        assert len(kit.acked) == 2


class Refuses(Bolt[str, str]):
    def process(self, value: str) -> str:
        raise Reject(f"no {value}")


@pytest.mark.parametrize("where", ["tasks", "lane"])
def test_record_has_one_dead_letter_for_all_its_tuples(where):
    tasks = {"tasks": 3, "grouping": all_tasks()}
    topology = piped(Refuses, first=letters_of, **tasks) if where == "tasks" else keyed(Refuses)
    with topology_test(topology) as kit:
        kit.send(b"abc").send(b"d")
        assert [letter.reason for letter in kit.rejected] == ["no a", "no dd"]
        assert kit.unresolved == 0
        assert kit.metrics["headrace_service_dead_lettered_records_total"] == 2


def test_late_failure_of_a_rejected_record_holds_no_key():
    """Promise 10: a record that is done stops no other."""
    buried = threading.Event()

    @bolt(blocking=True)
    def look_up(letter: str) -> str:
        if letter == "a":
            raise ValueError("a")
        if letter == "b":
            buried.wait(seconds(20))
            raise ValueError("b")
        return letter

    topology = keyed(look_up, workers=2)
    with topology_test(topology, retries=RetryPolicy(limit=0)) as kit:
        acks = kit._reader.ack

        def ack(owners):
            acks(owners)
            buried.set()

        kit._reader.ack = ack
        kit.send(b"ab").send(b"ab")
        kit.advance(60)
        assert [letter.record.offset for letter in kit.rejected] == [0]
        assert sorted(kit.rows) == ["aa", "bb"]
        assert kit.unresolved == 0


def test_late_failure_of_a_lost_partition_holds_no_key():
    """Promise 10: what is another process's stops nothing of ours."""
    entered, goes_on = threading.Event(), threading.Event()

    @bolt(blocking=True)
    def look_up(record: Record) -> int:
        if record.value == b"bad":
            entered.set()
            goes_on.wait(seconds(20))
            raise ValueError("bad")
        return record.offset

    topology = keyed(look_up, first=record_of, by=lambda record: record.key, workers=4)
    with topology_test(topology, retries=RETRIES) as kit:
        kit.send(b"x", key=b"w", partition=1).send(b"x", key=b"w")
        kit._log.append(PLACE, b"bad", key=b"k")
        turn_until(kit, entered.is_set)
        kit._reader.assignment.refuse(PLACE, Fenced(PLACE, "offset 7"))
        kit._pipeline.step(flush=True)  # the loss is told while the call is under way
        goes_on.set()
        turn_until(kit, lambda: kit._pipeline.runners.held)
        kit.send(b"x", key=b"k", partition=1)
        kit.advance(60)
        assert len(kit.rows) == 3
        assert kit.rejected == []
        assert not kit._pipeline.runners.held


@pytest.mark.parametrize("kind", ["function", "blocking"])
def test_calls_behind_a_held_key_never_begin_after_the_drain(kind):
    """Promise 16: after the drain no bolt is called."""
    seen, first = Seen(failing=[(0, 0)]), bolt(lambda record: {"user": 1, "n": record.offset})
    with topology_test(keyed(seen.make(kind), by="user", first=first)) as kit:
        kit.send(b"bad", b"x", b"y")
        assert kit._pipeline.is_idle
    assert seen.calls == {0: [0]}


def test_drain_waits_for_calls_beside_a_held_key():
    """Promise 16, and what is blocked is counted before it is listed."""
    goes_on = threading.Event()

    @bolt(blocking=True)
    def look_up(record: Record) -> int:
        if record.value == b"bad":
            raise ValueError("bad")
        goes_on.wait(seconds(20))
        return record.offset

    topology = keyed(look_up, first=record_of, by=lambda record: record.key, workers=4)
    with topology_test(topology, retries=RETRIES) as kit:
        for value, key in ((b"bad", b"k"), (b"x", b"k"), (b"slow", b"l")):
            kit._log.append(PLACE, value, key=key)
        turn_until(kit, lambda: kit._pipeline.runners.held)
        assert not kit._pipeline.is_idle
        goes_on.set()
        turn_until(kit, lambda: kit._pipeline.is_idle)
        assert kit.rows == [2]


@pytest.mark.parametrize("joined", [False, True])
def test_drain_does_not_wait_behind_a_retry(joined):
    """Promise 16: it ends when nothing can move before the retry, also of joined records."""

    @bolt
    def always_fails(letter: str) -> str:
        raise ValueError(letter)

    def draw(stream):
        values = stream.then(Pairs) if joined else stream
        values.keyed_by(itemgetter(0)).then(always_fails).into(MemorySink("out"))

    topology = drawn(draw, first=text_of)
    retries = RetryPolicy(initial_seconds=100, jitter=0)
    with topology_test(topology, retries=retries, message_timeout_seconds=600) as kit:
        kit.send(b"a").advance(10).send(b"a", b"a")
        assert (kit.unresolved, kit.retrying) == (3, 1)
        assert kit._pipeline.acker.in_flight > 0
        assert kit._pipeline.is_idle


# What waits for its key, and what advanced bolts keep, is bounded. The in-flight limit bounds
# records, and each of these here has a hundred tuples.

TUPLES = 100
MOST = 500
RETRY_SECONDS = 20.0


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr("service.pipeline.backpressure._MAX_KEPT", MOST)


@bolt
def tuples_of(record: Record) -> Iterator[dict[str, str]]:
    for place in range(TUPLES):
        yield {"key": "a", "place": f"{record.offset}-{place}"}


def is_complete(kit, records=12):
    places = {f"{offset}-{place}" for offset in range(records) for place in range(TUPLES)}
    return {row["place"] for row in kit.rows_of("out")} == places and kit.unresolved == 0


def send_many(kit):
    for _ in range(12):
        kit.send(b"a")
    assert kit.metrics["headrace_service_held_back_state"] == 1


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("order", ["key", "partition"])
@pytest.mark.parametrize("kind", ["function", "async", "blocking"])
def test_tuples_behind_a_retry_are_bounded(kind, order):
    """Promise 10."""
    keeper = failing_once(Retry("later", after_seconds=RETRY_SECONDS), kind)

    def draw(stream):
        ordered = stream.keyed_by("key") if order == "key" else stream.ordered()
        ordered.then(keeper, name="keeper").into(MemorySink("out"))

    topology = drawn(draw, first=tuples_of)
    topology.source("others").into(MemorySink("rest"))
    with topology_test(topology) as kit:
        send_many(kit)
        waiting = kit.metrics['headrace_topology_waiting_tuples{step="keeper"}']
        assert MOST < waiting <= MOST + TUPLES
        assert kit.rows == []
        kit.send(b"x", topic="others")
        assert len(kit.rows_of("rest")) == 1
        kit.advance(2 * RETRY_SECONDS)
        assert is_complete(kit)
        assert len(kit.rows_of("out")) == 12 * TUPLES
        assert kit.metrics["headrace_service_held_back_state"] == 0


@pytest.mark.usefixtures("few")
def test_tuples_held_by_an_advanced_bolt_are_bounded():
    """Promise 10."""
    keeps = made(Keep, tick_seconds=10.0, tick=Keep.drain)()
    topology = drawn(lambda s: s.then(keeps).into(MemorySink("out")), first=tuples_of)
    with topology_test(topology) as kit:
        send_many(kit)
        assert len(keeps.kept) == MOST + TUPLES
        kit.advance(60)
        assert is_complete(kit)
