import re
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest

from headrace import Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.records import Partition
from service.pipeline import sink_buffer
from service.pipeline.backpressure import DEAD_LETTERS, TREES, Backpressure
from sinks.writer import SinkWriter
from tests.support.bolts import Keeps, same, wait
from tests.support.pipeline import HeldSink, Works, text_of
from topology.sink import Staged
from topology.steps import BatchPolicy, SinkStep

MANY_LETTERS, MANY_TREES, MANY_KEPT = 10_000, 1 << 23, 200_000
OF_SEVERAL = (1 << 15) - 1  # the partition index of a tuple of several records, or of none
ALL = ["/c.*/", "a", "b"]


class Filled:
    """Stands for all that can be full, and for the consumer: what is in it is full."""

    def __init__(self, topology):
        sources = [source.topic for source in topology.sources]
        self.topics = [e for e in ("a", "b", "c1") if any(re.fullmatch(s, e) for s in sources)]
        managers = (SimpleNamespace(partition=Partition(each, 0)) for each in ("a", "b", "c1", "a"))
        self.living = dict(enumerate(managers)).get
        self.set()

    def set(self, *, full=(), starts=0, behind=0, kept=(), letters=0, trees=0):
        """Fill sinks, the bolt `ask`'s queues, what `Kept` keeps, letters and trees."""
        self.full, self.starts, self.behind = full, starts, behind
        of_bolt = MagicMock(by_partition=dict(kept))
        of_bolt.__len__.return_value = sum(of_bolt.by_partition.values())
        self.kept = {"Kept": of_bolt}
        self.pending, self.in_flight = letters, trees

    def is_full(self, name):
        return name in self.full

    def backlog(self, step):
        return self.starts if step.name == "ask" else 0

    def num_waiting(self, step):
        return self.starts + self.behind if step.name == "ask" else 0


def two_sources(topology):
    """a -> ask -> out <- (b, c); c -> alone."""
    out = topology.source("a").then(wait, name="ask", workers=2)
    b, c = topology.source("b"), topology.source(re.compile("c.*"))
    out.merge(b.then(same), c).into(MemorySink("out"))
    c.then(same).into(MemorySink("alone"))


def keeper_and_ask(topology):
    topology.source("a").then(Keeps, name="Kept").then(wait, name="ask").into(MemorySink("out"))


def join(topology):
    streams = [topology.source(name) for name in ("a", "b", "c1")]
    streams[0].merge(*streams[1:]).then(Keeps, name="Kept").into(MemorySink("out"))


def named_stream(topology):
    split = topology.source("a").then(same, streams=("late",))
    split.into(MemorySink("out"))
    late = split["late"].then(Keeps, name="Kept").keyed_by("n").then(wait, name="ask")
    late.into(MemorySink("late"))
    topology.source("b").into(MemorySink("rest"))


def pressure(draw):
    topology = Topology("pressed")
    topology.dead_letters.into(MemoryDeadLetters())
    draw(topology)
    topology.validate()
    filled = Filled(topology)
    return Backpressure(topology, *[filled] * 6), filled


def look(made, now=0.0):
    """The sources that are held back, and those that are silent: all their topics are."""
    held = made.update(now)
    found, silent = ({made._source_of(each).label for each in topics} for topics in held[:2])
    assert found == made.held_sources
    assert held.everything is (silent == made._every)
    return sorted(found), sorted(silent)


@pytest.mark.parametrize(
    ("draw", "filling", "held", "silent"),
    [
        (two_sources, {}, [], []),
        (two_sources, {"full": {"alone"}}, ["/c.*/"], ["/c.*/"]),
        (two_sources, {"full": {"alone", "out"}}, ALL, ALL),
        (two_sources, {"starts": 9}, ["a"], ["a"]),
        (two_sources, {"letters": MANY_LETTERS - 1, "trees": MANY_TREES - 1}, [], []),
        (two_sources, {"letters": MANY_LETTERS}, ALL, ALL),
        (two_sources, {"trees": MANY_TREES}, ALL, []),
        # What waits for a key, or is kept, may wait for a retry.
        (keeper_and_ask, {"kept": {0: MANY_KEPT}}, [], []),
        (keeper_and_ask, {"kept": {0: MANY_KEPT + 1}}, ["a"], []),
        (keeper_and_ask, {"behind": MANY_KEPT}, [], []),
        (keeper_and_ask, {"behind": MANY_KEPT + 1}, ["a"], []),
        (keeper_and_ask, {"behind": MANY_KEPT + 1, "starts": 5}, ["a"], ["a"]),
        # A join holds back the source that it holds: the others may have what it waits for.
        (join, {"kept": {0: 150_000, 1: 190_000, 3: 50_000}}, [], []),
        (join, {"kept": {0: 150_000, 1: 190_000, 3: 50_001}}, ["a"], []),
        (join, {"kept": {1: 190_000, OF_SEVERAL: 10_001}}, ["b"], []),
        (join, {"kept": {OF_SEVERAL: MANY_KEPT + 1}}, ["a", "b", "c1"], []),
        (named_stream, {"full": {"late"}}, ["a"], ["a"]),
        (named_stream, {"starts": 5}, ["a"], ["a"]),
    ],
)
def test_full_step_holds_back_the_sources_before_it(draw, filling, held, silent):
    """Promise 10."""
    made, filled = pressure(draw)
    filled.set(**filling)
    assert look(made) == (held, silent)
    filled.set()
    assert look(made) == ([], [])


def test_held_back_seconds_are_counted_by_cause():
    made, filled = pressure(two_sources)
    for now, filling in (
        (10.0, {}),
        (11.0, {"full": {"out"}}),
        (13.5, {"full": {"out"}, "starts": 100}),
        (14.0, {"full": {"out"}, "starts": 100, "letters": MANY_LETTERS}),
        (15.0, {"trees": MANY_TREES}),
        (17.0, {}),
        (99.0, {}),
    ):
        filled.set(**filling)
        look(made, now)
    assert dict(made.seconds) == {"out": 4.0, "ask": 1.5, DEAD_LETTERS: 1.0, TREES: 2.0}


def test_busy_sink_stops_emission_but_not_the_loop():
    """Promise 10: what waits for the sink is bounded, and all of it arrives."""
    sink = HeldSink("slow")
    with Works(text_of, sinks=[sink], batch_rows=5, fetch_records=5) as works:
        sink.gate.clear()
        works.send(*(b"%d" % n for n in range(40)))
        works.until(lambda: works.pipeline.statistics().held_back)
        works.turn(20)
        assert works.pipeline.backpressure.held_sources == {"t"}
        assert works.ledger.pending - works.ledger.waiting <= 15
        works.now += 3.0
        works.turn(1)
        assert works.pipeline.statistics().held_back_seconds == {"slow": 3.0}
        sink.gate.set()
        works.finish()
        assert [int(row) for row in sink.rows] == list(range(40))
        assert not works.pipeline.statistics().held_back


def test_pending_dead_letters_stop_emission(monkeypatch):
    monkeypatch.setattr("service.pipeline.backpressure._MAX_LETTERS", 50)

    def never(record):
        raise ValueError

    with Works(bolt(never), fetch_records=20) as works:
        works.letters_sink.holding = True
        works.send(*([b"x"] * 200))
        works.advance(20.0, step=1.0)
        assert works.pipeline.backpressure.held_sources == {"t"}
        assert works.ledger.pending - works.ledger.waiting < 200
        assert works.pipeline.statistics().held_back_seconds[DEAD_LETTERS] > 0
        works.letters_sink.holding = False
        works.advance(30.0, step=1.0)
        works.finish()
        assert len(works.letters_sink.letters) == 200


@pytest.mark.parametrize(
    ("policy", "rows"),
    [
        (BatchPolicy(3, 1 << 40, 1000.0), lambda count: [{}] * (3 * count // 100)),
        (BatchPolicy(1000, 800, 1000.0), lambda count: pa.record_batch({"a": np.arange(count)})),
    ],
    ids=["rows", "bytes"],
)
def test_batch_is_due_in_time_and_full_at_its_limit(policy, rows):
    sink = MemorySink()
    buffer = sink_buffer.BatchBuffer(SinkStep("rows", sink, policy), SinkWriter(sink, print), None)

    def is_due_with(count, now=0.0):
        piece = rows(count) if count else []
        trees = np.zeros(len(piece), np.int64)
        buffer.add(sink_buffer.Rows(piece, trees, trees, trees.astype(np.uint64)), 7.0)
        return buffer.is_due(now)

    with pytest.raises(ValueError, match="1 rows came with 0 trees and 0 edges"):
        buffer.add(sink_buffer.Rows([{}], np.array([]), np.array([]), np.array([])), 0.0)
    assert not is_due_with(0, now=1e9), "an empty batch is never due"
    assert not is_due_with(99, now=1006.9)
    assert buffer.is_due(1007.0)
    assert not buffer.is_full, "it grows on while the writer is busy"
    assert is_due_with(34)
    assert buffer.is_full


def test_group_is_not_committed_before_the_one_before_has_ended():
    """Promise 14: what follows a commit that fails must not be committed before it."""
    sink = MemorySink()
    step = SinkStep("rows", sink, BatchPolicy(1, 1, 1.0))
    buffer = sink_buffer.TransactionBuffer(step, SinkWriter(sink, print))
    buffer.commit(sink_buffer.GroupWork(staged=Staged((), 1)))
    with pytest.raises(RuntimeError, match="commits group"):
        buffer.commit(sink_buffer.GroupWork(staged=Staged((), 1)))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 1000])
def test_estimated_bytes_of_equal_rows_are_exact(length):
    row = {"a": 1, "b": "x" * 100, "c": [1.0, 2.0], "d": None, "e": b"12"}
    assert sink_buffer.estimated_bytes([row] * length) == length * (8 + 100 + 16 + 8 + 2)
