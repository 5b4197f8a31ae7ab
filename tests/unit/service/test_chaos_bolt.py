"""Chaos around a bolt: misbehaviour by a seed, in every kind."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace import Bolt, Reject, Retry, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import (
    ChaosAdvancedBolt,
    ChaosBolt,
    ChaosError,
    ChaosSink,
    RetryPolicy,
    topology_test,
)
from tests.worlds.misbehaving import Pairs, same
from topology.bolt import Kind, kind_of
from topology.errors import InvalidTopology


@bolt
def twice(value: int) -> Iterator[int]:
    yield value
    yield value


@bolt
async def awaited(value: int) -> int:
    return value


@bolt
async def awaited_twice(value: int) -> AsyncIterator[int]:
    yield value
    yield value


@bolt(blocking=True)
def waits(value: int) -> int:
    return value


@bolt(vectorised=True, columns=["value"])
def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class Counted(Bolt[int, int]):
    """Counts its calls."""

    tick_seconds = 2.0

    def __init__(self) -> None:
        self.events: list[str] = []

    def open(self) -> None:
        self.events.append("open")

    def process(self, value: int, /) -> int:
        self.events.append("process")
        return value

    def tick(self) -> None:
        self.events.append("tick")

    def partition_assigned(self, topic: str, partition: int) -> None:
        self.events.append(f"+{topic}{partition}")

    def partition_revoked(self, topic: str, partition: int) -> None:
        self.events.append(f"-{topic}{partition}")

    def close(self) -> None:
        self.events.append("close")


def outcome(chaos: Any, value: Any) -> str:
    """What a call came to."""
    try:
        result = chaos.process(value)
        if kind_of(chaos) is Kind.ASYNC:
            asyncio.run(result)
        elif kind_of(chaos) is Kind.FAN_OUT:
            list(result)
    except (Reject, Retry, ChaosError) as error:
        return type(error).__name__
    return "passed"


@pytest.mark.parametrize(
    ("inner", "kind"),
    [
        (same, Kind.FUNCTION),
        (twice, Kind.FAN_OUT),
        (awaited, Kind.ASYNC),
        (awaited_twice, Kind.ASYNC),
        (waits, Kind.BLOCKING),
        (columns, Kind.VECTORISED),
        (Counted, Kind.FUNCTION),
    ],
)
def test_chaos_is_of_its_bolts_kind_and_name(inner, kind):
    chaos = ChaosBolt(inner, seed=1)
    assert kind_of(chaos) is kind
    topology = Topology("named")
    topology.source("t").then(chaos)
    (step,) = topology.steps()
    assert step.name == inner.__name__


def test_an_async_generator_may_fail_and_then_gives_all_its_values():
    topology = Topology("streamed")
    topology.source("t").then(ChaosBolt(awaited_twice, seed=3, fail=0.5)).into(MemorySink("rows"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology, retries=RetryPolicy(limit=20)) as kit:
        kit.send(*[b"x"] * 20).advance(5000)
        assert len(kit.rows) == 40
        assert kit.rejected == []
        assert any(event.what == "failed" for event in kit.timeline)


@pytest.mark.parametrize("inner", [same, twice, awaited, waits, Counted])
def test_the_same_seed_misbehaves_in_the_same_calls_and_another_in_others(inner):
    def run(seed: int) -> tuple[list[str], Any]:
        chaos = ChaosBolt(inner, seed=seed, fail=0.2, retry=0.2, reject=0.2)
        return [outcome(chaos, value % 50) for value in range(150)], chaos.counts

    outcomes, counts = run(1)
    assert run(1) == (outcomes, counts)
    assert run(2)[0] != outcomes
    assert counts.calls == 150
    assert counts.failed == outcomes.count("ChaosError") > 0
    assert counts.retried == outcomes.count("Retry") > 0
    assert counts.rejected == outcomes.count("Reject") > 0
    assert counts.spoiled == 150 - outcomes.count("passed")
    assert outcomes[:50] != outcomes[50:100], "a value that comes again is judged anew"


def test_half_of_the_failures_come_after_the_work_was_done():
    inner = Counted()
    chaos = ChaosBolt(inner, seed=3, fail=1.0)
    for value in range(200):
        assert outcome(chaos, value) == "ChaosError"
    assert 60 < inner.events.count("process") < 140


def test_a_generator_may_fail_when_it_has_given_some_of_its_values():
    given_before = set()
    for seed in range(20):
        chaos = ChaosBolt(twice, seed=seed, fail=1.0)
        values = []
        with pytest.raises(ChaosError):
            values.extend(iter(chaos.process(1)))
        given_before.add(len(values))
    assert given_before <= {0, 1}


def test_a_vectorised_bolt_fails_by_rows_however_the_batch_is_cut():
    batch = pa.RecordBatch.from_pydict({"value": list(range(100))})

    def bad(cut: int) -> list[int]:
        chaos = ChaosBolt(columns, seed=5, fail=0.1)
        found: list[int] = []

        def call(part: pa.RecordBatch) -> None:
            try:
                chaos.process(part)
            except ChaosError:
                if part.num_rows == 1:
                    found.append(part["value"][0].as_py())
                    return
                for place in range(part.num_rows):
                    call(part.slice(place, 1))

        for start in range(0, 100, cut):
            call(batch.slice(start, cut))
        assert (chaos.counts.calls, chaos.counts.failed) == (100, len(found))
        return found

    assert bad(100) == bad(10) == bad(1)
    assert 2 < len(bad(100)) < 25


def test_the_life_of_the_inner_bolt_goes_on():
    inner = Counted()
    chaos = ChaosBolt(inner, seed=1)
    assert chaos.tick_seconds == 2.0
    chaos.open()
    chaos.partition_assigned("t", 1)
    chaos.process(1)
    chaos.tick()
    chaos.partition_revoked("t", 1)
    chaos.close()
    assert inner.events == ["open", "+t1", "process", "tick", "-t1", "close"]


@pytest.mark.parametrize(
    ("chances", "named"),
    [
        ({"fail": 1.1}, "fail=1.1"),
        ({"retry": -0.1}, "retry=-0.1"),
        ({"fail": 0.6, "reject": 0.6}, "at most 1"),
        ({"delay_seconds": -1}, "delay_seconds=-1"),
    ],
)
def test_a_chance_that_is_none_is_refused(chances, named):
    with pytest.raises(ValueError, match=named):
        ChaosBolt(same, seed=1, **chances)
    with pytest.raises(ValueError, match="busy"):
        ChaosSink(MemorySink(), seed=1, busy=2)
    with pytest.raises(ValueError, match="delay_seconds"):
        ChaosSink(MemorySink(), seed=1, delay_seconds=-1)


def test_what_is_no_bolt_is_refused():
    with pytest.raises(InvalidTopology, match="ChaosBolt got 3"):
        ChaosBolt(3, seed=1)
    with pytest.raises(InvalidTopology, match="there is ChaosAdvancedBolt"):
        ChaosBolt(Pairs, seed=1)
    with pytest.raises(InvalidTopology, match="ChaosAdvancedBolt got"):
        ChaosAdvancedBolt(same, seed=1)
