"""Backpressure: what is full, which sources it holds back, and for how long."""

import re

import pytest

from headrace import AdvancedBolt, Bolt, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from service.pipeline.backpressure import DEAD_LETTERS, TREES, Backpressure
from tests.support.pipeline import HeldSink, Works

MANY_TREES = 1 << 23


class Filled:
    """Stands for all that can be full, and for the consumer: what is in it is full."""

    def __init__(self, topics):
        self.topics = topics
        self.pending = 0  # dead letters
        self.in_flight = 0  # trees
        self.topic_at = {0: "a", 1: "b", 2: "c1", 3: "a"}.get
        self.full = set()  # sinks
        self.waiting = {}  # values that could start, by bolt
        self.behind = {}  # values behind their key, by bolt
        self.kept = {"Kept": KeptOf({})}  # by advanced bolt

    def is_full(self, name, now):
        return name in self.full

    def backlog(self, step):
        return self.waiting.get(step.name, 0)

    def num_waiting(self, step):
        return self.waiting.get(step.name, 0) + self.behind.get(step.name, 0)


class KeptOf:
    """The tuples that an advanced bolt keeps, by partition index."""

    def __init__(self, by_partition):
        self.by_partition = by_partition

    def __len__(self):
        return sum(self.by_partition.values())


@bolt
async def ask(value):
    return value


@bolt
def same(value):
    return value


class Kept(AdvancedBolt):
    def process(self, tuple_, collector, /):
        collector.ack(tuple_)


class Own(Bolt):
    def process(self, value, /):
        return value


def reads(topology, topic):
    return any(re.fullmatch(source.topic, topic) for source in topology.sources)


def pressure(draw):
    topology = Topology("pressed")
    topology.dead_letters.into(MemoryDeadLetters())
    draw(topology)
    topology.validate()
    filled = Filled([topic for topic in ("a", "b", "c1") if reads(topology, topic)])
    return Backpressure(topology, *[filled] * 6), filled


def two_sources(topology):
    """a -> ask -> out <- (b, c); c -> alone."""
    out = topology.source("a").then(ask, workers=2)
    b, c = topology.source("b"), topology.source(re.compile("c.*"))
    out.merge(b.then(same), c).into(MemorySink("out"))
    c.then(same).into(MemorySink("alone"))


def look(made, now=0.0, letters=0, trees=0):
    """The sources that are held back; all their topics are."""
    filled = made._consumer
    filled.pending, filled.in_flight = letters, trees
    held = made.update(now)
    assert {made._label_of(topic) for topic in held.topics} == made.held_sources
    assert {made._label_of(topic) for topic in held.silent} == made.silent_sources
    return sorted(made.held_sources)


def silences_all(made):
    """Whether nothing may be emitted, retries neither."""
    return made.update(made._updated_at).everything


def test_full_step_holds_back_the_sources_before_it():
    """Promise 10."""
    made, filled = pressure(two_sources)
    filled.full = {"alone"}
    assert look(made) == ["/c.*/"]
    filled.full = {"alone", "out"}
    assert look(made) == ["/c.*/", "a", "b"]
    assert silences_all(made)
    assert made.silent_sources == made.held_sources
    filled.full = set()
    assert look(made) == []
    filled.waiting = {"ask": 9}
    assert look(made) == ["a"]
    assert not silences_all(made)


@pytest.mark.parametrize(("letters", "trees"), [(10_000, 0), (0, MANY_TREES)])
def test_full_dead_letters_or_trees_hold_back_all_sources(letters, trees):
    made, _filled = pressure(two_sources)
    assert look(made, letters=9_999, trees=MANY_TREES - 1) == []
    assert look(made, letters=letters, trees=trees) == ["/c.*/", "a", "b"]
    assert look(made) == []


@pytest.mark.parametrize("what", ["kept", "behind"])
def test_tuples_that_wait_for_a_key_let_retries_through(what):
    """They may be what it waits for."""
    made, filled = pressure(lambda t: t.source("a").then(Kept).then(ask).into(MemorySink("out")))
    setattr(filled, what, {"Kept": KeptOf({0: 200_000}), "ask": 200_000})
    assert look(made) == []
    setattr(filled, what, {"Kept": KeptOf({0: 200_001}), "ask": 200_001})
    assert look(made) == ["a"]
    assert (sorted(made.silent_sources), silences_all(made)) == ([], False)
    filled.waiting = {"ask": 5}
    assert look(made) == ["a"]
    assert silences_all(made)


def test_join_holds_back_only_the_source_it_holds():
    """The others may have what it waits for."""

    def draw(topology):
        streams = [topology.source(name) for name in ("a", "b", "c1")]
        streams[0].merge(*streams[1:]).then(Kept).into(MemorySink("out"))

    made, filled = pressure(draw)
    filled.kept = {"Kept": KeptOf({0: 150_000, 1: 190_000, 3: 50_000})}
    assert look(made) == []
    filled.kept = {"Kept": KeptOf({0: 150_000, 1: 190_000, 3: 50_001})}
    assert look(made) == ["a"]
    of_several = (1 << 15) - 1  # records, as a compound tree has them; or of none
    filled.kept = {"Kept": KeptOf({1: 190_000, of_several: 10_001})}
    assert look(made) == ["b"]
    filled.kept = {"Kept": KeptOf({of_several: 200_001})}
    assert look(made) == ["a", "b", "c1"]


def test_full_step_behind_a_named_stream_holds_back():
    def draw(topology):
        split = topology.source("a").then(same, streams=("late",))
        split.into(MemorySink("out"))
        split["late"].then(Own).then(Kept).keyed_by("n").then(ask).into(MemorySink("late"))
        topology.source("b").into(MemorySink("rest"))

    made, filled = pressure(draw)
    filled.full = {"late"}
    assert look(made) == ["a"]
    filled.full, filled.waiting = set(), {"ask": 5}
    assert look(made) == ["a"]


def test_held_back_seconds_are_counted_by_cause():
    made, filled = pressure(two_sources)
    look(made, 10.0)
    filled.full = {"out"}
    look(made, 11.0)
    filled.waiting = {"ask": 100}
    look(made, 13.5)
    look(made, 14.0, letters=10_000)
    filled.full, filled.waiting = set(), {}
    look(made, 15.0, trees=MANY_TREES)
    look(made, 17.0)
    look(made, 99.0)
    assert dict(made.seconds) == {"out": 4.0, "ask": 1.5, DEAD_LETTERS: 1.0, TREES: 2.0}


# In the pipeline


def test_busy_sink_stops_emission_but_not_the_loop():
    """Promise 10: what waits for the sink is bounded, and all of it arrives."""
    sink = HeldSink("slow")
    with Works(bolt(lambda record: record.value), sinks=[sink], batch_rows=5,
               fetch_records=5) as works:  # fmt: skip
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

    with Works(bolt(never), retries=None, fetch_records=20) as works:
        works.letters_sink.holding = True
        works.send(*([b"x"] * 200))
        for _ in range(20):
            works.advance(1.0)
        assert works.pipeline.backpressure.held_sources == {"t"}
        assert works.ledger.pending - works.ledger.waiting < 200
        assert works.pipeline.statistics().held_back_seconds[DEAD_LETTERS] > 0
        works.letters_sink.holding = False
        for _ in range(30):
            works.advance(1.0)
        works.finish()
        assert len(works.letters_sink.letters) == 200
