"""Any topology, with any chaos: every record resolves once, and with the right rows.

Hypothesis draws a graph of bolts of every kind, with named streams, merges, orders and tasks. A
record's number says which way each bolt sends it, so what has to arrive is known beforehand.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st

from headrace import (
    SKIP,
    AdvancedBolt,
    Bolt,
    RetryPolicy,
    To,
    Topology,
    all_tasks,
    bolt,
    custom,
    fields,
)
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test
from tests.support.chaos import chaotic, spoil_all

KINDS = ("function", "generator", "async", "blocking", "advanced", "lane-generator")
ORDERS = ("none", "key", "partition")
GROUPINGS = {
    "turns": None,
    "fields": fields("n"),
    "all": all_tasks(),
    "custom": custom(lambda value, count: value["n"] % count),
}
SIDE = "side"


def goes_aside(place: int, n: int) -> bool:
    return (n + place) % 4 == 0


def is_dropped(place: int, n: int) -> bool:
    return (n + place) % 7 == 0


def copies(kind: str, place: int, n: int) -> int:
    return 1 + (n + place) % 2 if kind.endswith("generator") else 1


def result(kind: str, place: int, value: Any) -> Any:
    """What the bolt at a place gives for a value: it sends a quarter aside, and drops a seventh."""
    n = value["n"]
    if is_dropped(place, n):
        return SKIP
    return To(SIDE, value) if goes_aside(place, n) else value


def make(kind: str, place: int) -> Any:
    """A class of a bolt of this kind."""

    class Function(Bolt[Any, Any]):
        def process(self, value: Any, /) -> Any:
            return result(kind, place, value)

    class Generator(Bolt[Any, Any]):
        def process(self, value: Any, /) -> Iterator[Any]:
            for _ in range(copies(kind, place, value["n"])):
                yield result(kind, place, value)

    class Async(Bolt[Any, Any]):
        async def process(self, value: Any, /) -> Any:
            await asyncio.sleep(0)
            return result(kind, place, value)

    class Blocking(Function):
        blocking = True

    class LaneGenerator(Generator):
        blocking = True

    class Advanced(AdvancedBolt[Any, Any]):
        def process(self, tuple_: Any, collector: Any, /) -> None:
            n = tuple_.value["n"]
            if not is_dropped(place, n):
                stream = SIDE if goes_aside(place, n) else "default"
                collector.emit(tuple_.value, anchors=tuple_, stream=stream)
            collector.ack(tuple_)

    return {
        "function": Function, "generator": Generator, "async": Async, "blocking": Blocking,
        "advanced": Advanced, "lane-generator": LaneGenerator,
    }[kind]  # fmt: skip


@dataclass
class Drawn:
    """One bolt: where its values come from (a bolt's place and stream; -1: the source)."""

    kind: str
    order: str
    tasks: int
    grouping: str
    inputs: list[tuple[int, str]]
    chaos: bool
    sinks: set[str] = field(default_factory=set)  # streams that lead into one


@st.composite
def graphs(draw: Any) -> list[Drawn]:
    bolts: list[Drawn] = []
    for place in range(draw(st.integers(1, 5))):
        ends = [(-1, "default")]
        ends += [(before, stream) for before in range(place) for stream in ("default", SIDE)]
        kind = draw(st.sampled_from(KINDS))
        order = draw(st.sampled_from(ORDERS)) if kind != "advanced" else "none"
        tasks = draw(st.integers(1, 3))
        allowed = sorted(GROUPINGS) if order == "none" else ["all", "custom", "fields"]
        grouping = draw(st.sampled_from(allowed))
        inputs = draw(st.lists(st.sampled_from(ends), min_size=1, max_size=3, unique=True))
        bolts.append(Drawn(kind, order, tasks, grouping, inputs, draw(st.booleans())))
    used = {end for each in bolts for end in each.inputs}
    for place, each in enumerate(bolts):
        for stream in ("default", SIDE):
            if (place, stream) not in used or draw(st.booleans()):
                each.sinks.add(stream)
    return bolts


def wired(graph: list[Drawn], seed: int) -> Topology:
    topology = Topology("any")
    source = topology.source("in").then(bolt(lambda record: {"n": int(record.value)}), name="parse")
    streams: dict[tuple[int, str], Any] = {(-1, "default"): source}
    ill = {"fail": 0.1, "retry": 0.05, "reject": 0.02}
    for place, each in enumerate(graph):
        first, *others = (streams[end] for end in each.inputs)
        before = first.merge(*others)
        if each.order == "key":
            before = before.keyed_by("n")
        elif each.order == "partition":
            before = before.ordered()
        inner = make(each.kind, place)

        def create(inner: Any = inner, each: Drawn = each) -> Any:
            return chaotic(inner, seed=seed, **ill) if each.chaos else inner()

        spread = {"tasks": each.tasks, "grouping": GROUPINGS[each.grouping]}
        after = before.then(
            create, name=f"b{place}", streams=(SIDE,), **(spread if each.tasks > 1 else {})
        )
        for stream in ("default", SIDE):
            streams[place, stream] = after[stream]
        for stream in sorted(each.sinks):
            after[stream].into(MemorySink(f"s{place}-{stream}"))
    topology.dead_letters.into(MemoryDeadLetters())
    topology.validate()
    return topology


def expected(graph: list[Drawn], n: int) -> Counter[str]:
    """How many rows of a record each sink gets if nothing fails."""
    rows: Counter[str] = Counter()
    values = {(-1, "default"): 1}
    for place, each in enumerate(graph):
        arrived = sum(values[end] for end in each.inputs)
        if each.tasks > 1 and each.grouping == "all":
            arrived *= each.tasks
        given = 0 if is_dropped(place, n) else arrived * copies(each.kind, place, n)
        aside = goes_aside(place, n)
        values[place, "default"] = 0 if aside else given
        values[place, SIDE] = given if aside else 0
        for stream in each.sinks:
            rows[f"s{place}-{stream}"] += values[place, stream]
    return +rows


@settings(max_examples=60)
@given(graphs(), st.integers(0, 2**32))
def test_in_any_topology_every_record_resolves_once_and_no_row_is_lost(graph, seed):
    """Promises 3, 4 and 5: at least once in every sink it belongs to, or a dead letter says why."""
    count = 24
    note(str(graph))
    topology = wired(graph, seed)
    policy = RetryPolicy(limit=6, jitter=0, max_seconds=30)
    with topology_test(topology, retries=policy, seed=seed) as kit:
        ill = {f"s{place}-" for place, each in enumerate(graph) if each.chaos}
        spoil_all(kit, tuple(ill), seed=seed, busy=0.1, fail_before=0.1, reject=0.02)
        kit.send(*[b"%d" % n for n in range(0, count, 2)])
        kit.send(*[b"%d" % n for n in range(1, count, 2)], partition=1)
        kit.advance(900)
        assert kit.unresolved == 0
        names = [step.name for step in topology.steps() if step.name.startswith("s")]
        found = Counter((name, row["n"]) for name in names for row in kit.rows_of(name))
        buried = {int(letter.record.value or b"") for letter in kit.rejected}
        calm = not any(each.chaos for each in graph)
        for n in range(count):
            events = [event.what for event in kit.history(n // 2, partition=n % 2)]
            assert events.count("resolved") == 1
            assert events[-1] == "resolved"
            rows = expected(graph, n)
            mine = Counter({name: found[name, n] for name in names if found[name, n]})
            assert set(mine) <= set(rows), "a row in a sink that is not its own"
            if calm:
                assert mine == rows
            elif n not in buried:
                assert mine >= rows
        if calm:
            assert not buried
        resolved = sum(
            kit.metrics[f"headrace_service_{fate}_records_total"]
            for fate in ("written", "filtered", "dead_lettered")
        )
        assert resolved == count


class Pairs(AdvancedBolt[Any, Any]):
    """Joins two values of one remainder; one that stays alone leaves with a tick."""

    tick_seconds = 3.0

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}

    def process(self, tuple_: Any, collector: Any, /) -> None:
        place = tuple_.value["n"] % 5
        other = self.kept.pop(place, None)
        if other is None or not collector.pending([other]):
            self.kept[place] = tuple_
            return
        pair = [other, tuple_]
        numbers = [each.value["n"] for each in pair]
        collector.emit({"n": min(numbers), "numbers": numbers}, anchors=pair)
        for each in pair:
            collector.ack(each)

    def tick(self, collector: Any, /) -> None:
        for each in collector.pending(self.kept.values()):
            number = each.value["n"]
            collector.emit({"n": number, "numbers": [number]}, anchors=each)
            collector.ack(each)
        self.kept.clear()


def passing(kind: str) -> Any:
    """A class of a bolt that gives its value as it is, or, as a generator, with several keys."""

    class Passing(Bolt[Any, Any]):
        blocking = kind == "blocking"

        def process(self, value: Any, /) -> Any:
            return value

    class Awaiting(Bolt[Any, Any]):
        async def process(self, value: Any, /) -> Any:
            await asyncio.sleep(0)
            return value

    class Spreading(Bolt[Any, Any]):
        def process(self, value: Any, /) -> Iterator[Any]:
            for more in range(3):
                yield {**value, "n": value["n"] + more}

    return {"async": Awaiting, "generator": Spreading}.get(kind, Passing)


@settings(max_examples=15)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["function", "generator", "async", "blocking", "pairs"]),
            st.sampled_from(ORDERS),
            st.sampled_from([1, 2]),
            st.sampled_from(["fields", "all"]),
        ),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 2**32),
)
def test_behind_joins_no_key_stays_held_and_every_record_resolves_once(steps, seed):
    """Promises 3 and 5: tuples of several records fail, wait and come again like any other."""
    topology = Topology("joined")
    ill = {"fail": 0.15, "retry": 0.05, "reject": 0.03}
    stream: Any = topology.source("in").then(bolt(lambda record: {"n": int(record.value)}))
    stream = stream.then(chaotic(Pairs, seed=seed, **ill), name="first")
    for place, (kind, order, tasks, grouping) in enumerate(steps):
        if kind == "pairs":
            stream = stream.then(chaotic(Pairs, seed=seed, **ill), name=f"again{place}")
            continue
        before = {"none": stream, "key": stream.keyed_by("n"), "partition": stream.ordered()}
        spread = {"tasks": tasks, "grouping": GROUPINGS[grouping]} if tasks > 1 else {}

        def create(kind: str = kind) -> Any:
            return chaotic(passing(kind), seed=seed, **ill)

        stream = before[order].then(create, name=f"{kind}{place}", **spread)
    stream.into(MemorySink("rows"))
    topology.dead_letters.into(MemoryDeadLetters())
    policy = RetryPolicy(limit=2, jitter=0)
    with topology_test(topology, retries=policy, seed=seed) as kit:
        spoil_all(kit, seed=seed, busy=0.1, fail_after=0.1, reject=0.02)
        for n in range(20):
            kit.send(b"%d" % n, partition=n % 2)
        kit.advance(300)
        assert kit.unresolved == 0
        assert not kit._bench.pipeline.runners.held
        for n in range(20):
            events = [event.what for event in kit.history(n // 2, partition=n % 2)]
            assert events.count("resolved") == 1
            assert events[-1] == "resolved"
