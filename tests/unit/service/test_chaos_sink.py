"""Chaos in front of a sink: misbehaviour by a seed."""

import json
from typing import Any

import pyarrow as pa
import pytest

from headrace import RowsRejected, SinkBusy, Topology
from headrace.sinks import Batch, MemoryDeadLetters, MemorySink, ParquetSink, Sink, SinkContext
from headrace.testing import ChaosError, ChaosSink, topology_test
from service.config import load
from service.parts import wire
from tests.worlds.misbehaving import number
from topology.transactional import Group, Share, Staged

CONTEXT = SinkContext(pipeline="p", sink="s", kafka={}, warehouse="", spark=None)


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


def share(line: str, rows: int) -> Share:
    return Share(line, 1, 1, 1, 0, 10, "0" * 32, rows)


def test_commits_fail_before_and_after_and_are_busy_by_the_seed():
    def run(seed: int) -> tuple[list[str], list[Any], Any]:
        inner = MemorySink[Any]()
        chaos = ChaosSink(inner, seed=seed, busy=0.2, fail_before=0.2, fail_after=0.2)
        tries: list[str] = []
        for txid in range(1, 31):
            shares = (Share("orders[0]", 1, txid, 1, 0, 10, "0" * 32, 1),)
            staged = chaos.stage(Group(txid, shares, [[{"n": txid}]], 1))
            while not tries or tries[-1] != f"committed {txid}":
                try:
                    chaos.commit(staged)
                    tries.append(f"committed {txid}")
                except SinkBusy:
                    tries.append("busy")
                except ChaosError as error:
                    tries.append(str(error))
        return tries, inner.rows, chaos.counts

    tries, rows, counts = run(1)
    assert run(1) == (tries, rows, counts)
    assert run(2)[0] != tries
    assert rows == [{"n": txid} for txid in range(1, 31)], "a commit tried again is one"
    assert counts.writes == len(tries)
    assert counts.busy == tries.count("busy")
    before = [each for each in tries if each.endswith("before it is written")]
    after = [each for each in tries if each.endswith("after it was written")]
    assert (counts.failed_before, counts.failed_after) == (len(before), len(after))
    assert min(counts.busy, counts.failed_before, counts.failed_after) > 0
    assert before[0].startswith("chaos fails orders[0] ")


def test_a_group_is_staged_without_the_rows_that_chaos_rejects_and_each_share_counts_its_own():
    class Counting(MemorySink[Any]):
        given: tuple[int, ...] = ()

        def stage(self, group: Group) -> Staged:
            self.given = tuple(share.num_rows for share in group.shares)
            assert sum(map(len, group.pieces)) == group.num_rows == sum(self.given)
            return super().stage(group)

    inner = Counting(schema=pa.schema([("n", pa.int64())]))
    chaos = ChaosSink(inner, seed=4, reject=0.3)
    batch = numbers(1, 0, 20)
    pieces = [*batch.pieces, [{"n": "twenty"}]]
    group = Group(1, (share("orders[0]", 12), share("orders[1]", 9)), pieces, 21)
    for _ in range(2):
        staged = chaos.stage(group)
    refused = {row for row, reason in staged.rejected.items() if reason.startswith("chaos")}
    assert refused
    assert set(staged.rejected) == refused | {20}
    assert chaos.counts.rejected_rows == len(refused)
    assert inner.given == (
        12 - len([row for row in refused if row < 12]),
        9 - len([row for row in refused if row >= 12]),
    )
    assert staged.shares == group.shares
    chaos.commit(staged)
    assert [row["n"] for row in inner.rows] == [n for n in range(20) if n not in refused]
