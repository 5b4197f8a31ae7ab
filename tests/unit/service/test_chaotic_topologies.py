"""Whole topologies all of whose parts misbehave."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import SKIP, Record, Skip, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import RetryPolicy, topology_test
from tests.support.chaos import chaotic, spoil_all
from topology.advanced import AdvancedBolt, Collector, Tuple


@bolt
def same(value: int) -> int:
    return value


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


def ill_topology(seed: int, *, siblings: bool) -> Topology:
    """Every kind of bolt and a sink, all of which misbehave.

    With `siblings` an async bolt gets several tuples of one record.
    """
    ill = {"fail": 0.15, "retry": 0.05, "reject": 0.03}
    topology = Topology("chaotic")
    records = topology.source("rows")
    rows = records.then(chaotic(number, seed=seed, **ill))
    rows = rows.then(chaotic(keep, seed=seed + 1, **ill))
    if siblings:
        rows = rows.then(chaotic(split, seed=seed + 2, **ill))
    rows = rows.then(chaotic(look_up, seed=seed + 3, **ill), workers=8)
    if not siblings:
        rows = rows.then(chaotic(split, seed=seed + 2, **ill))
    rows = rows.keyed_by("n").then(chaotic(fetch, seed=seed + 5, **ill), workers=4)
    rows.into(MemorySink("rows"))
    table = topology.source("columns").then(chaotic(parsed, seed=seed + 4, **ill))
    table.into(MemorySink("columns"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


def run_chaotic(seed: int, count: int, *, siblings: bool) -> dict[str, Any]:
    payloads = [str(n).encode() for n in range(count)]
    policy = RetryPolicy(limit=4, jitter=0)
    with topology_test(ill_topology(seed, siblings=siblings), retries=policy, seed=seed) as kit:
        spoil_all(kit, ("rows",), seed=seed, busy=0.1, fail_before=0.1, fail_after=0.1, reject=0.02)
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


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), siblings=st.booleans())
def test_with_any_seed_every_record_ends_as_row_filtered_or_dead_letter(seed, siblings):
    """Promise 3: at least once, whatever misbehaves."""
    run_chaotic(seed, 60, siblings=siblings)


def test_a_run_with_the_same_seed_comes_to_the_same_end():
    first = run_chaotic(7, 200, siblings=False)
    assert first["letters"]
    assert run_chaotic(7, 200, siblings=False) == first


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_with_any_seed_a_join_loses_no_record(seed):
    """Promise 3: each record is in a durable row, or its dead letter is."""
    ill = {"fail": 0.2, "reject": 0.05}
    topology = Topology("joined")
    pairs = topology.source("numbers").then(number).then(chaotic(Pairs, seed=seed, **ill))
    pairs.then(chaotic(same, seed=seed, **ill)).into(MemorySink("pairs"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology, retries=RetryPolicy(limit=3, jitter=0), seed=seed) as kit:
        spoil_all(kit, seed=seed, fail_before=0.2, fail_after=0.2, reject=0.1)
        for n in range(40):
            kit.send(str(n).encode(), partition=n % 2)
        kit.advance(100)
        assert kit.unresolved == 0
        written = {n for row in kit.rows for n in row["numbers"]}
        buried = {int(letter.record.value or b"") for letter in kit.rejected}
        assert written | buried == set(range(40))
        for n in range(40):
            assert kit.history(n // 2, partition=n % 2)[-1].what == "resolved"
