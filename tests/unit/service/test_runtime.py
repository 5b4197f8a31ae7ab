"""The runtime by the test kit: tasks, groupings, orders, ticks, hooks, policies."""

import asyncio
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
import structlog.testing

from headrace import (
    AdvancedBolt,
    Bolt,
    Hooks,
    Reject,
    Retry,
    To,
    Topology,
    all_tasks,
    bolt,
    custom,
    direct,
    fields,
    global_,
    shuffle,
)
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import RetryPolicy, topology_test


@bolt
def parse(record):
    return json.loads(record.value)


def payload(**fields_):
    return json.dumps(fields_).encode()


def drawn(draw, *, reliability="at-least-once"):
    """A topology of one source whose parsed stream `draw` goes on with."""
    topology = Topology("runtime", reliability=reliability)
    draw(topology.source("in").then(parse))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


class Seen:
    """Notes what each instance of a bolt was called with, and fails where it is told to."""

    def __init__(self, failing=()):
        self.calls = defaultdict(list)
        self.failing = list(failing)  # (task, value), once each
        self.made = 0

    def check(self, task, value):
        self.calls[task].append(value["n"])
        if (task, value["n"]) in self.failing:
            self.failing.remove((task, value["n"]))
            raise ValueError("once")
        return {"task": task, "n": value["n"]}

    def make(self, kind="function"):
        task, check = self.made, self.check
        self.made += 1

        class Function(Bolt):
            def process(self, value, /):
                return check(task, value)

        class Generator(Bolt):
            def process(self, value, /):
                yield check(task, value)

        class Async(Bolt):
            async def process(self, value, /):
                await asyncio.sleep(0)
                return check(task, value)

        class Blocking(Function):
            blocking = True

        class Advanced(AdvancedBolt):
            def process(self, tuple_, collector, /):
                collector.emit(check(task, tuple_.value), anchors=tuple_)
                collector.ack(tuple_)

        kinds = {
            "function": Function, "generator": Generator, "async": Async,
            "blocking": Blocking, "advanced": Advanced,
        }  # fmt: skip
        return kinds[kind]()


KINDS = ["function", "generator", "async", "blocking", "advanced"]
ORDERED_KINDS = KINDS[:-1]


# Tasks


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_to_every_task_and_the_record_waits_for_all_of_them(kind):
    """Promise 4: one copy that fails brings all of them again."""
    seen = Seen(failing=[(1, 7)])
    topology = drawn(
        lambda s: s.then(
            lambda: seen.make(kind), name="copies", tasks=3, grouping=all_tasks()
        ).into(MemorySink("out"))
    )
    with topology_test(topology) as kit:
        kit.send(payload(n=7), payload(n=8))
        assert [record.offset for record in kit.acked] == [1]
        assert kit.retrying == 1
        kit.advance(60)
        assert [record.offset for record in kit.acked] == [1, 0]
        assert all(Counter(seen.calls[task]) == {7: 2, 8: 1} for task in range(3))
        rows = Counter((row["task"], row["n"]) for row in kit.rows)
        assert all(rows[task, 8] == 1 and rows[task, 7] >= 1 for task in range(3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("grouping", "tasks"),
    [
        (shuffle(), [0, 1, 2, 0, 1, 2]),
        (global_(), [0] * 6),
        (custom(lambda value, count: value["n"] // 2 % count), [0, 0, 1, 1, 2, 2]),
        (fields("user"), None),
    ],
    ids=["shuffle", "global", "custom", "fields"],
)
def test_a_grouping_says_which_task_gets_a_value(kind, grouping, tasks):
    seen = Seen()
    topology = drawn(
        lambda s: s.then(lambda: seen.make(kind), name="t", tasks=3, grouping=grouping).into(
            MemorySink("out")
        )
    )
    with topology_test(topology) as kit:
        for n in range(6):
            kit.send(payload(n=n, user=n % 2))
        assert len(kit.acked) == 6
        found = {row["n"]: row["task"] for row in kit.rows}
        if tasks is None:
            assert len({found[n] for n in (0, 2, 4)}) == len({found[n] for n in (1, 3, 5)}) == 1
        else:
            assert [found[n] for n in range(6)] == tasks


@pytest.mark.parametrize("kind", KINDS)
def test_a_direct_stream_reaches_the_task_that_the_bolt_before_named(kind):
    seen = Seen()

    @bolt
    def choose(value):
        return To("chosen", value, task=value["to"])

    def draw(stream):
        chosen = stream.then(choose, streams=("chosen",))
        chosen.into(MemorySink("rest"))
        chosen["chosen"].then(lambda: seen.make(kind), name="t", tasks=2, grouping=direct()).into(
            MemorySink("out")
        )

    with topology_test(drawn(draw)) as kit:
        kit.send(payload(n=1, to=1), payload(n=2, to=0), payload(n=3, to=5))
        assert seen.calls == {1: [1], 0: [2]}
        (letter,) = kit.rejected
        assert letter.reason == "bolt 't' has no task 5; 0 to 1 are allowed"
        assert len(kit.acked) == 2


def test_a_value_that_a_function_sends_to_no_task_is_a_dead_letter():
    """Promise 3: it is not filtered, as nobody said that it may be."""
    seen = Seen()
    topology = drawn(
        lambda s: s.then(
            seen.make, name="t", tasks=2, grouping=custom(lambda value, count: ())
        ).into(MemorySink("out"))
    )
    with topology_test(topology) as kit:
        kit.send(payload(n=1))
        (letter,) = kit.rejected
        assert letter.step == "t"
        assert letter.reason == (
            "the grouping chose the tasks []; one or more of 0 to 1 are allowed"
        )
        assert dict(seen.calls) == {}


def test_a_value_that_cannot_be_grouped_is_a_dead_letter_of_the_step_it_was_for():
    seen = Seen()
    topology = drawn(
        lambda s: s.then(seen.make, name="count", tasks=2, grouping=fields("user")).into(
            MemorySink("out")
        )
    )
    with topology_test(topology) as kit:
        kit.send(payload(n=1), payload(n=2, user=1))
        (letter,) = kit.rejected
        assert letter.step == "count"
        assert "has no field 'user'" in letter.reason
        assert len(kit.rows) == 1


# Orders


@pytest.mark.parametrize("kind", ORDERED_KINDS)
def test_a_key_keeps_its_order_through_a_retry_while_other_keys_go_on(kind):
    """Promise 13."""
    seen = Seen(failing=[(0, 1), (0, 1)])
    topology = drawn(
        lambda s: (
            s.keyed_by("user")
            .then(lambda: seen.make(kind), name="t", **({"workers": 4} if kind == "async" else {}))
            .into(MemorySink("out"))
        )
    )
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
def test_a_key_goes_on_when_its_record_is_out_of_retries(kind):
    seen = Seen(failing=[(0, 1)] * 3)
    topology = drawn(
        lambda s: s.keyed_by("user").then(lambda: seen.make(kind), name="t").into(MemorySink("o"))
    )
    with topology_test(topology, retries=RetryPolicy(limit=2, jitter=0)) as kit:
        kit.send(*[payload(n=n, user=1) for n in range(1, 4)])
        assert kit.rows == []
        kit.advance(600)
        assert [row["n"] for row in kit.rows] == [2, 3]
        assert [letter.attempts for letter in kit.rejected] == [3]


@pytest.mark.parametrize("kind", ORDERED_KINDS)
def test_a_partition_keeps_its_order_and_another_goes_on(kind):
    seen = Seen(failing=[(0, 1)])
    topology = drawn(
        lambda s: s.ordered().then(lambda: seen.make(kind), name="t").into(MemorySink("out"))
    )
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n) for n in (1, 2, 3)])
        kit.send(*[payload(n=n) for n in (11, 12)], partition=1)
        assert sorted(row["n"] for row in kit.rows) == [11, 12]
        kit.advance(60)
        rows = [row["n"] for row in kit.rows]
        assert [n for n in rows if n < 10] == [1, 2, 3]


@pytest.mark.parametrize("kind", ORDERED_KINDS)
def test_a_key_has_one_task_and_keeps_its_order_there(kind):
    seen = Seen(failing=[(task, n) for task in range(3) for n in (0, 4)])
    topology = drawn(
        lambda s: (
            s.keyed_by("user")
            .then(lambda: seen.make(kind), name="t", tasks=3)
            .into(MemorySink("out"))
        )
    )
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n, user=f"u{n % 4}") for n in range(24)])
        kit.advance(600)
        assert sorted(row["n"] for row in kit.rows) == list(range(24))
        for user in range(4):
            mine = [row for row in kit.rows if row["n"] % 4 == user]
            assert [row["n"] for row in mine] == sorted(row["n"] for row in mine)
            assert len({row["task"] for row in mine}) == 1


def test_different_keys_of_an_async_bolt_run_at_once_and_one_key_never_does():
    running, most, by_key = Counter(), [], []

    @bolt
    async def wait(value):
        running[value["user"]] += 1
        by_key.append(running[value["user"]])
        most.append(sum(running.values()))
        await asyncio.sleep(0.002)
        running[value["user"]] -= 1
        return value

    topology = drawn(lambda s: s.keyed_by("user").then(wait, workers=8).into(MemorySink("out")))
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n, user=n % 4) for n in range(40)])
        assert len(kit.rows) == 40
    assert max(by_key) == 1
    assert max(most) == 4


def test_a_record_whose_key_cannot_be_told_is_a_dead_letter_and_holds_nobody():
    topology = drawn(
        lambda s: s.keyed_by("user").then(bolt(lambda value: value), name="t").into(MemorySink("o"))
    )
    with topology_test(topology) as kit:
        kit.send(payload(n=1), payload(n=2, user=[]), payload(n=3, user="ann"))
        assert [(letter.step, letter.attempts) for letter in kit.rejected] == [("t", 1), ("t", 1)]
        assert [row["n"] for row in kit.rows] == [3]


# Generators and several values per record


@pytest.mark.parametrize("kind", ["keyed", "tasks", "blocking"])
def test_what_a_generator_gives_in_a_lane_leaves_together_and_by_streams(kind):
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


def test_a_sibling_that_fails_in_a_lane_brings_the_whole_record_again():
    """Promise 4."""
    seen = Seen(failing=[(0, 1)])

    @bolt
    def spread(value) -> Iterator:
        for n in range(3):
            yield {"n": n}

    topology = drawn(
        lambda s: s.then(spread).keyed_by("n").then(seen.make, name="t").into(MemorySink("out"))
    )
    with topology_test(topology) as kit:
        kit.send(payload())
        assert kit.acked == []
        kit.advance(60)
        assert {row["n"] for row in kit.rows} == {0, 1, 2}
        assert (len(kit.acked), seen.calls[0].count(1)) == (1, 2)


def test_an_advanced_bolt_behind_a_keyed_one_and_before_another():
    class Pairs(AdvancedBolt):
        def __init__(self):
            self.kept = {}

        def process(self, tuple_, collector, /):
            other = self.kept.pop(tuple_.value["n"], None)
            if other is None:
                self.kept[tuple_.value["n"]] = tuple_
                return
            collector.emit({"n": tuple_.value["n"] * 10}, anchors=[other, tuple_])
            collector.ack(other)
            collector.ack(tuple_)

    before, after = Seen(failing=[(0, 1)]), Seen(failing=[(0, 20)])
    topology = drawn(
        lambda s: s.keyed_by("user").then(lambda: before.make("async"), name="before", workers=4)
        .then(Pairs)
        .keyed_by("n").then(lambda: after.make("blocking"), name="after", workers=2)
        .into(MemorySink("out"))
    )  # fmt: skip
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n, user=user) for n in (1, 2) for user in ("ann", "ben")])
        kit.advance(600)
        assert sorted(row["n"] for row in kit.rows) == [10, 20]
        assert (len(kit.acked), kit.unresolved, kit.rejected) == (4, 0, [])


def test_a_record_that_comes_again_as_part_of_a_pair_does_not_wait_for_itself():
    """It holds the key for which the pair wants to be called."""

    class Pairs(AdvancedBolt):
        tick_seconds = 3.0

        def __init__(self):
            self.kept = None

        def process(self, tuple_, collector, /):
            if self.kept is None:
                self.kept = tuple_
                return
            pair, self.kept = [self.kept, tuple_], None
            collector.emit({"n": [each.value["n"] for each in pair]}, anchors=pair)
            for each in pair:
                collector.ack(each)

        def tick(self, collector, /):
            if self.kept is not None:
                collector.emit({"n": [self.kept.value["n"]]}, anchors=self.kept)
                collector.ack(self.kept)
                self.kept = None

    failing = [ValueError("once")]

    @bolt
    async def once(value):
        if failing:
            raise failing.pop()
        return value

    topology = drawn(
        lambda s: (
            s.then(Pairs)
            .keyed_by(lambda value: value["n"][0])
            .then(once, workers=4)
            .into(MemorySink("out"))
        )
    )
    with topology_test(topology) as kit:
        kit.send(payload(n=1)).advance(3)
        assert kit.retrying == 1
        kit.advance(1).send(payload(n=2))
        assert kit.rows == [{"n": [1, 2]}]
        assert (len(kit.acked), kit.unresolved) == (2, 0)


# Time


def test_a_blocking_call_that_takes_too_long_fails_and_is_tried_again_while_others_go_on():
    gate, calls = threading.Event(), Counter()

    @bolt(blocking=True)
    def slow(value):
        calls[value["n"]] += 1
        if value["n"] == 1 and calls[1] == 1:
            gate.wait(30)
        return value

    topology = drawn(
        lambda s: s.then(slow, workers=2, timeout_seconds=0.05).into(MemorySink("out"))
    )
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n) for n in range(4)])
        assert sorted(row["n"] for row in kit.rows) == [0, 2, 3]
        assert kit.retrying == 1
        failed = [event for event in kit.history(1) if event.what == "failed"]
        assert [event.reason for event in failed] == [
            "bolt 'slow' took longer than its 0.05 seconds"
        ]
        gate.set()
        kit.advance(60)
        assert sorted(row["n"] for row in kit.rows) == [0, 1, 2, 3]
        assert calls == {0: 1, 1: 2, 2: 1, 3: 1}


class Ticking(Bolt):
    """Notes its calls and its ticks, and the threads they ran on."""

    tick_seconds = 5.0

    def __init__(self):
        self.threads = set()
        self.ticks = 0

    def note(self):
        self.threads.add(threading.current_thread().name.split("-")[0])

    def process(self, value, /):
        self.note()
        return value

    def tick(self):
        self.note()
        self.ticks += 1
        if self.ticks == 2:
            raise ValueError("second")


class TickingAsync(Ticking):
    async def process(self, value, /):
        self.note()
        return value


class TickingBlocking(Ticking):
    blocking = True


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("make", [Ticking, TickingAsync, TickingBlocking])
def test_every_task_is_ticked_where_it_is_called_and_a_tick_that_raises_is_logged(make, tasks):
    made = []

    def create():
        made.append(make())
        return made[-1]

    topology = drawn(lambda s: s.then(create, name="t", tasks=tasks).into(MemorySink("out")))
    with structlog.testing.capture_logs() as logs, topology_test(topology) as kit:
        kit.send(payload(n=1), payload(n=2))
        kit.advance(4.9)
        assert [each.ticks for each in made] == [0] * tasks
        for seconds, count in ((0.2, 1), (5, 2), (5, 3)):
            kit.advance(seconds)
            until = time.monotonic() + 10
            while any(each.ticks < count for each in made):  # on its own thread
                assert time.monotonic() < until
                threading.Event().wait(0.001)
            assert [each.ticks for each in made] == [count] * tasks
        assert kit.metrics['headrace_topology_failed_ticks_total{step="t"}'] == tasks
    assert all(len(each.threads) == 1 for each in made)
    failed = [each for each in logs if each["event"] == "tick_failed"]
    assert [(each["step"], each["error"]) for each in failed] == [("t", "second")] * tasks


def test_what_an_advanced_bolt_emits_in_its_tick_is_anchored_and_one_that_raises_sends_nothing():
    errors = [ValueError("first")]

    class Sums(AdvancedBolt):
        tick_seconds = 5.0

        def __init__(self):
            self.kept = []

        def process(self, tuple_, collector, /):
            self.kept.append(tuple_)

        def tick(self, collector, /):
            kept = collector.pending(self.kept)
            if kept:
                collector.emit({"sum": sum(t.value["n"] for t in kept)}, anchors=kept)
                for each in kept:
                    collector.ack(each)
            if errors:
                raise errors.pop()
            self.kept.clear()

    topology = drawn(lambda s: s.then(Sums).into(MemorySink("out")))
    with structlog.testing.capture_logs() as logs, topology_test(topology) as kit:
        kit.send(payload(n=1), payload(n=2))
        kit.advance(5)
        assert (kit.rows, kit.acked) == ([], [])
        kit.advance(5)
        assert kit.rows == [{"sum": 3}]
        assert len(kit.acked) == 2
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["tick_failed"]


# Policies


def test_the_bolt_that_failed_decides_how_often_its_records_are_tried_again():
    """Promise 13: a policy of the step goes before the pipeline's."""

    @bolt
    def never(value):
        raise ValueError("never")

    @bolt
    async def nor_this(value):
        raise ValueError("never")

    def draw(stream):
        own = stream.then(bolt(lambda v: To("async", v) if v["n"] else v), name="sort",
                          streams=("async",))  # fmt: skip
        own.then(never, retries=RetryPolicy(limit=0)).into(MemorySink("a"))
        own["async"].then(nor_this, retries=RetryPolicy(limit=3, jitter=0)).into(MemorySink("b"))
        stream.then(bolt(lambda value: value), name="rest").into(MemorySink("c"))

    with topology_test(drawn(draw), retries=RetryPolicy(limit=1, jitter=0)) as kit:
        kit.send(payload(n=0), payload(n=1))
        kit.advance(600)
        found = {letter.record.offset: (letter.step, letter.attempts) for letter in kit.rejected}
        assert found == {0: ("never", 1), 1: ("nor_this", 4)}


def test_retry_says_when_and_reject_says_never_whatever_the_kind():
    @bolt
    async def sort(value):
        if value["n"] == 0:
            raise Reject("no")
        if value["n"] == 1:
            raise Retry("later", after_seconds=77)
        return value

    topology = drawn(lambda s: s.keyed_by("n").then(sort, workers=4).into(MemorySink("out")))
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n) for n in range(3)])
        assert [letter.reason for letter in kit.rejected] == ["no"]
        kit.advance(76)
        assert len([e for e in kit.history(1) if e.what == "retried"]) == 0
        kit.advance(2)
        assert [e.seconds for e in kit.history(1) if e.what == "retried"] == [77.0]


@pytest.mark.parametrize("kind", KINDS)
def test_at_most_once_nothing_is_tried_twice_whatever_the_kind(kind):
    seen = Seen(failing=[(0, 1)])
    topology = drawn(
        lambda s: s.then(lambda: seen.make(kind), name="t", retries=RetryPolicy(limit=5)).into(
            MemorySink("out")
        ),
        reliability="at-most-once",
    )
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n) for n in range(3)])
        kit.advance(60)
        assert sorted(seen.calls[0]) == [0, 1, 2]
        assert sorted(row["n"] for row in kit.rows) == [0, 2]
        assert [letter.attempts for letter in kit.rejected] == [1]
        assert kit.unresolved == 0


# Hooks


class Notes(Hooks):
    def __init__(self):
        self.events = []

    def started(self):
        self.events.append("start")

    def stopped(self):
        self.events.append("stop")

    def partition_assigned(self, topic, partition):
        self.events.append(f"+{topic}{partition}")

    def partition_revoked(self, topic, partition):
        self.events.append(f"-{topic}{partition}")


class Noting(AdvancedBolt):
    def __init__(self):
        self.events = []

    def process(self, tuple_, collector, /):
        self.events.append(tuple_.value)
        collector.ack(tuple_)

    partition_assigned = Notes.partition_assigned
    partition_revoked = Notes.partition_revoked


def test_every_partition_is_told_once_when_it_comes_and_once_when_it_goes():
    notes, noting = Notes(), Noting()
    topology = Topology("hooked")
    topology.hooks(notes)
    topology.source("in").then(bolt(lambda record: f"{record.topic}{record.partition}")).then(
        noting
    ).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        kit.send(b"1").send(b"2", partition=1).send(b"3").advance(30)
        assert notes.events == ["start", "+in0", "+in1"]
        assert noting.events == ["+in0", "in0", "+in1", "in1", "in0"]
    assert notes.events[3:-1] == ["-in1", "-in0"] or notes.events[3:-1] == ["-in0", "-in1"]
    assert notes.events[-1] == "stop"
    assert sorted(noting.events[-2:]) == ["-in0", "-in1"]


def test_a_hook_that_cannot_start_ends_the_start():
    class Broken(Hooks):
        def started(self):
            raise ConnectionError("no database")

    topology = drawn(lambda s: s.into(MemorySink("out")))
    topology.hooks(Broken())
    with pytest.raises(ConnectionError, match="no database"):
        topology_test(topology).__enter__()
