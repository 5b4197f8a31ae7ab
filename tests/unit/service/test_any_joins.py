from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import AdvancedBolt, RetryPolicy, Topology, all_tasks, bolt, fields
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test
from tests.support.chaos import chaotic, spoil_all
from tests.support.pipeline import as_bolt

ORDERS = ("none", "key", "partition")
GROUPINGS = {"fields": fields("n"), "all": all_tasks()}


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


def spreads(value: Any) -> Iterator[Any]:
    for more in range(3):
        yield {**value, "n": value["n"] + more}


@pytest.mark.slow
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
def test_records_behind_joins_resolve_once_and_hold_no_key(steps, seed):
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
            made = bolt(spreads) if kind == "generator" else as_bolt(kind, lambda value: value)
            return chaotic(made, seed=seed, **ill)

        stream = before[order].then(create, name=f"{kind}{place}", **spread)
    stream.into(MemorySink("rows"))
    topology.dead_letters.into(MemoryDeadLetters())
    policy = RetryPolicy(limit=2, jitter=0)
    with topology_test(topology, retries=policy, seed=seed) as kit:
        spoil_all(kit, seed=seed, busy=0.1, fail_after=0.1, reject=0.02)
        for n in range(20):
            kit.send(b"%d" % n, partition=n % 2)
        kit.advance(1000)
        assert kit.unresolved == 0
        assert not kit._pipeline.runners.held
        for n in range(20):
            events = [event.what for event in kit.history(n // 2, partition=n % 2)]
            assert events.count("resolved") == 1
            assert events[-1] == "resolved"
