"""Chaos: misbehaviour by a seed, alone and in whole topologies."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import SKIP, Bolt, Record, Reject, Retry, RowsRejected, SinkBusy, Skip, Topology, bolt
from headrace.sinks import (
    Batch,
    MemoryDeadLetters,
    MemorySink,
    ParquetSink,
    Sink,
    SinkContext,
)
from headrace.testing import (
    ChaosAdvancedBolt,
    ChaosBolt,
    ChaosError,
    ChaosSink,
    RetryPolicy,
    topology_test,
)
from service.config import load
from service.parts import wire
from topology.advanced import AdvancedBolt, Collector
from topology.bolt import Kind, kind_of
from topology.errors import InvalidTopology
from topology.tuples import Tuple

CONTEXT = SinkContext(pipeline="p", sink="s", kafka={}, warehouse="", spark=None)


@bolt
def same(value: int) -> int:
    return value


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


def attempt(sink: Sink[Any], batch: Batch) -> str:
    try:
        sink.write(batch)
    except SinkBusy:
        return "busy"
    except ChaosError:
        return "failed"
    except RowsRejected as rejection:
        return f"rejected {sorted(rejection.reasons)}"
    return "written"


def numbers(sequence: int, first: int = 0, count: int = 10) -> Batch:
    rows = [{"n": n} for n in range(first, first + count)]
    half = pa.RecordBatch.from_pylist(rows[count // 2 :])
    return Batch(sequence, [rows[: count // 2], half], count)


def test_a_sink_is_busy_fails_before_and_after_by_its_seed():
    def run(seed: int) -> tuple[list[str], list[Any], Any]:
        inner = MemorySink[Any]()
        chaos = ChaosSink(inner, seed=seed, busy=0.2, fail_before=0.2, fail_after=0.2)
        chaos.open(CONTEXT)
        tries = [attempt(chaos, numbers(each // 3, each // 3, 1)) for each in range(90)]
        chaos.close()
        return tries, inner.rows, chaos.counts

    tries, rows, counts = run(1)
    assert run(1) == (tries, rows, counts)
    assert run(2)[0] != tries
    assert (counts.writes, counts.busy) == (90, tries.count("busy"))
    assert counts.failed_before + counts.failed_after == tries.count("failed")
    assert min(counts.busy, counts.failed_before, counts.failed_after) > 0
    assert len(rows) == tries.count("written") + counts.failed_after, "those are durable"


def test_a_sink_rejects_the_same_rows_whatever_batch_they_are_in():
    def refused(size: int) -> set[int]:
        inner = MemorySink[Any]()
        chaos = ChaosSink(inner, seed=4, reject=0.2)
        found: set[int] = set()
        for sequence, first in enumerate(range(0, 60, size)):
            try:
                chaos.write(numbers(sequence, first, size))
            except RowsRejected as rejection:
                found |= {first + index for index in rejection.reasons}
        assert {row["n"] for row in inner.rows} == set(range(60)) - found
        assert chaos.counts.rejected_rows == len(found)
        return found

    assert refused(60) == refused(10) == refused(2)
    assert 3 < len(refused(60)) < 30


def test_rows_that_the_inner_sink_rejects_keep_their_index():
    inner = MemorySink[Any](schema=pa.schema([("n", pa.int64())]))
    chaos = ChaosSink(inner, seed=4, reject=0.3)
    rows: list[Any] = [{"n": n if n % 4 else "bad"} for n in range(40)]
    with pytest.raises(RowsRejected) as caught:
        chaos.write(Batch(1, [rows], 40))
    assert len(inner.rows) + len(caught.value.reasons) == 40
    written = {row["n"] for row in inner.rows}
    for index in range(40):
        assert (index in caught.value.reasons) == (rows[index]["n"] not in written)


def test_in_the_kit_rows_pass_the_chaos_in_front_of_the_sink():
    chaos = ChaosSink(ChaosSink(MemorySink("out"), seed=8, busy=0.5), seed=9, reject=0.3)
    topology = Topology("chaos")
    topology.source("t").then(number).into(chaos)
    topology.dead_letters.into(MemoryDeadLetters())
    for _ in range(2):  # a kit begins afresh
        with topology_test(topology) as kit:
            kit.send(*[json.dumps(n).encode() for n in range(100)])
            assert len(kit.rows) + len(kit.rejected) == 100
            assert {letter.step for letter in kit.rejected} == {"out"}
    assert chaos.counts.rejected_rows == 2 * len(kit.rejected) > 0


def test_in_a_real_run_spark_is_started_for_the_sink_behind_the_chaos(tmp_path):
    reachable = {"kafka": {"bootstrap.servers": "-"}, "zookeeper": {"hosts": "-"}}
    config = load(None, reachable | {"spark": {"warehouse": str(tmp_path)}})
    topology = Topology("chaos")
    table = ParquetSink("numbers", schema=pa.schema([("n", pa.int64())]))
    topology.source("t").then(number).into(ChaosSink(ChaosSink(table, seed=1), seed=2))
    topology.dead_letters.into(MemoryDeadLetters())
    assert wire(topology, config).spark is not None


# Whole topologies


class Pairs(AdvancedBolt[dict[str, int], dict[str, Any]]):
    """Joins two rows of one remainder; a row that stays alone leaves alone, with the next tick."""

    tick_seconds = 3.0

    def __init__(self) -> None:
        self.kept: dict[int, Tuple[dict[str, int]]] = {}

    def process(
        self, tuple_: Tuple[dict[str, int]], collector: Collector[dict[str, Any]], /
    ) -> None:
        other = self.kept.pop(tuple_.value["n"] % 7, None)
        if other is None or not collector.pending([other]):
            self.kept[tuple_.value["n"] % 7] = tuple_
            return
        numbers = [other.value["n"], tuple_.value["n"]]
        collector.emit({"numbers": numbers}, anchors=[other, tuple_])
        collector.ack(other)
        collector.ack(tuple_)

    def tick(self, collector: Collector[dict[str, Any]], /) -> None:
        for tuple_ in collector.pending(self.kept.values()):
            collector.emit({"numbers": [tuple_.value["n"]]}, anchors=tuple_)
            collector.ack(tuple_)
        self.kept.clear()


@bolt
def number(record: Record) -> dict[str, int]:
    return {"n": json.loads(record.value or b"")}


@bolt
def keep(row: dict[str, int]) -> dict[str, int] | Skip:
    return SKIP if row["n"] % 10 == 3 else row


@bolt
def split(row: dict[str, int]) -> Iterator[dict[str, int]]:
    for part in range(row["n"] % 3 + 1):
        yield row | {"part": part}


@bolt
async def look_up(row: dict[str, int]) -> dict[str, int]:
    await asyncio.sleep(0)
    return row


@bolt(blocking=True)
def fetch(row: dict[str, int]) -> dict[str, int]:
    return row


@bolt(vectorised=True, columns=["value"])
def parsed(batch: pa.RecordBatch) -> pa.RecordBatch:
    wide = batch.append_column("n", pc.cast(pc.cast(batch["value"], pa.string()), pa.int64()))
    wide = wide.filter(pc.not_equal(pc.bit_wise_and(wide["n"], 7), 5))
    return wide.drop_columns(["value"])


def chaotic(seed: int, *, siblings: bool) -> Topology:
    """Every kind of bolt and a sink, all of which misbehave.

    With `siblings` an async bolt gets several tuples of one record.
    """
    ill = {"fail": 0.15, "retry": 0.05, "reject": 0.03}
    topology = Topology("chaotic")
    records = topology.source("rows")
    rows = records.then(ChaosBolt(number, seed=seed, **ill))
    rows = rows.then(ChaosBolt(keep, seed=seed + 1, **ill))
    if siblings:
        rows = rows.then(ChaosBolt(split, seed=seed + 2, **ill))
    rows = rows.then(ChaosBolt(look_up, seed=seed + 3, **ill), workers=8)
    if not siblings:
        rows = rows.then(ChaosBolt(split, seed=seed + 2, **ill))
    rows = rows.keyed_by("n").then(ChaosBolt(fetch, seed=seed + 5, **ill), workers=4)
    rows.into(
        ChaosSink(
            MemorySink("rows"), seed=seed, busy=0.1, fail_before=0.1, fail_after=0.1, reject=0.02
        )
    )
    table = topology.source("columns").then(ChaosBolt(parsed, seed=seed + 4, **ill))
    table.into(MemorySink("columns"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


def run_chaotic(seed: int, count: int, *, siblings: bool) -> dict[str, Any]:
    payloads = [str(n).encode() for n in range(count)]
    policy = RetryPolicy(limit=4, jitter=0)
    with topology_test(chaotic(seed, siblings=siblings), retries=policy, seed=seed) as kit:
        for topic in ("rows", "columns"):
            kit.send(*payloads[::2], topic=topic).send(*payloads[1::2], topic=topic, partition=1)
        kit.advance(200)
        kit.advance(2)  # and the last frontier is stored
        assert kit.unresolved == 0
        metrics = kit.metrics
        filtered = 0
        for topic in ("rows", "columns"):
            buried = {
                int(letter.record.value or b"")
                for letter in kit.rejected
                if letter.record.topic == topic
            }
            written = {(row["n"], row.get("part", 0)) for row in kit.rows_of(topic)}
            for n in range(count):
                place = f'{{topic="{topic}",partition="{n % 2}"}}'
                assert metrics[f"headrace_partition_committed_offset{place}"] == (
                    len(payloads[n % 2 :: 2])
                )
                history = kit.history(n // 2, partition=n % 2, topic=topic)
                assert [event.what for event in history].count("resolved") == 1
                assert history[-1].what == "resolved"
                if n in buried:
                    assert "rejected" in {event.what for event in history}
                    continue
                dropped = n % 10 == 3 if topic == "rows" else n & 7 == 5
                parts = 0 if dropped else n % 3 + 1 if topic == "rows" else 1
                filtered += dropped
                assert {part for each, part in written if each == n} == set(range(parts))
        assert metrics["headrace_service_filtered_records_total"] == filtered
        assert (
            sum(
                metrics[f"headrace_service_{fate}_records_total"]
                for fate in ("sunk", "filtered", "dead_lettered")
            )
            == 2 * count
        )
        return {
            "letters": sorted((d.record.topic, d.record.value, d.step) for d in kit.rejected),
            "rows": set(map(str, kit.rows)),
        }


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), siblings=st.booleans())
def test_with_any_seed_every_record_ends_as_row_filtered_or_dead_letter(seed, siblings):
    """Promise 3: at least once, whatever misbehaves."""
    run_chaotic(seed, 60, siblings=siblings)


def test_a_run_with_the_same_seed_comes_to_the_same_end():
    first = run_chaotic(7, 200, siblings=False)
    assert first["letters"]
    assert run_chaotic(7, 200, siblings=False) == first


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_with_any_seed_a_join_loses_no_record(seed):
    """Promise 3: each record is in a durable row, or its dead letter is."""
    ill = {"fail": 0.2, "reject": 0.05}
    topology = Topology("joined")
    pairs = topology.source("numbers").then(number).then(ChaosAdvancedBolt(Pairs, seed=seed, **ill))
    pairs.then(ChaosBolt(same, seed=seed, **ill)).into(
        ChaosSink(MemorySink("pairs"), seed=seed, fail_before=0.2, fail_after=0.2, reject=0.1)
    )
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology, retries=RetryPolicy(limit=3, jitter=0), seed=seed) as kit:
        for n in range(40):
            kit.send(str(n).encode(), partition=n % 2)
        kit.advance(100)
        assert kit.unresolved == 0
        written = {n for row in kit.rows for n in row["numbers"]}
        buried = {int(letter.record.value or b"") for letter in kit.rejected}
        assert written | buried == set(range(40))
        for n in range(40):
            assert kit.history(n // 2, partition=n % 2)[-1].what == "resolved"
