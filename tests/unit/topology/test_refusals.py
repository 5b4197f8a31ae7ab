"""What `then`, `into`, `uses` and `hooks` refuse when the topology is drawn, and by which name."""

import re
from collections.abc import Iterator
from functools import partial

import pytest

from headrace import (
    AdvancedBolt,
    Bolt,
    Hooks,
    InvalidTopology,
    RetryPolicy,
    Topology,
    bolt,
    custom,
    direct,
    fields,
    shuffle,
)
from headrace.sinks import MemoryDeadLetters, MemorySink
from topology.bolt import Kind, kind_of


@bolt
def same(value):
    return value


@bolt
async def wait(value):
    return value


@bolt(blocking=True)
async def both(value):
    return value


@bolt(vectorised=True)
def many_batches(batch) -> Iterator:
    yield batch


class Own(Bolt):
    def process(self, value, /):
        return value


class Kept(AdvancedBolt):
    def process(self, tuple_, collector, /):
        collector.ack(tuple_)


class Marked(Own):
    blocking = vectorised = True


class KeptInThreads(Kept):
    blocking = True


class Ticking(Own):
    tick_seconds = "5"


class Columns(Own):
    vectorised = True
    columns = ("value", "price")


class Endless(Own):
    tick_seconds = 0.0


@bolt(vectorised=True)
def columns(batch):
    return batch


def plain(value):
    return value


class Nothing(MemorySink):
    batch_rows = 0


class OpensLater(Own):
    async def open(self):
        """Nobody awaits it."""


class HearsLater(Bolt):
    async def process(self, value, /):
        return value

    async def partition_assigned(self, topic, partition):
        """Nobody awaits it."""


class StartsLater(Hooks):
    async def partition_revoked(self, topic, partition):
        """Nobody awaits it."""


def drawn():
    topology = Topology("drawn")
    topology.dead_letters.into(MemoryDeadLetters())
    return topology, topology.source("in")


def twice(bolt_):
    return lambda s: s.then(bolt_, name="one").then(bolt_, name="two")


@pytest.mark.parametrize(
    ("draw", "error"),
    [
        (lambda s: s.then(same, retries=3), "bolt 'same' has retries=3; a RetryPolicy is allowed"),
        (lambda s: s.then(same, retries=RetryPolicy), "bolt 'same' has retries=<class"),
        (lambda s: s.then(Own, tasks=2, grouping="a"), "bolt 'Own' has grouping='a'"),
        (lambda s: s.then(same, streams="late"), "bolt 'same' has streams='late'; a list or tuple"),
        (lambda s: s.then(same, streams=(7,)), "bolt 'same' names its stream 7"),
        (lambda s: s.then(wait, workers="8"), "bolt 'wait' has workers='8'"),
        (lambda s: s.then(wait, workers=1.5), "bolt 'wait' has workers=1.5"),
        (lambda s: s.then(wait, timeout_seconds="2"), "bolt 'wait' has timeout_seconds='2'"),
        (lambda s: s.then(Own, tasks="2"), "bolt 'Own' has tasks='2'"),
        (lambda s: s.then(Ticking, name="t"), "bolt 't' has tick_seconds='5'; a positive number"),
        (
            lambda s: s.into(MemorySink("m"), batch_rows="9"),
            "sink 'm' has batch_rows='9'; a whole number above 0 is allowed",
        ),
        (lambda s: s.into(MemorySink("m"), batch_rows=0), "sink 'm' has batch_rows=0; a whole"),
        (lambda s: s.into(MemorySink("m"), batch_bytes=1.5), "sink 'm' has batch_bytes=1.5; a who"),
        (
            lambda s: s.into(MemorySink(), name="n", batch_seconds=-1),
            "sink 'n' has batch_seconds=-1; a positive number is allowed",
        ),
        (
            lambda s: s.into(Nothing("m")),
            "sink 'm' has batch_rows=0 of its own; a whole number above 0 is allowed",
        ),
        (lambda s: s.into(MemorySink), r"into\(\) got <class .*; an instance of Sink is allowed"),
        (
            lambda s: s.into(MemoryDeadLetters()),
            r"into\(\) got <.*MemoryDeadLetters.*; an instance",
        ),
        (lambda s: s.then(both), "bolt 'both' is blocking and async; only one"),
        (lambda s: s.then(many_batches), "bolt 'many_batches' is vectorised and fan-out; only one"),
        (lambda s: s.then(Marked), "bolt 'Marked' is blocking and vectorised; only one"),
        (lambda s: s.then(KeptInThreads), "bolt 'KeptInThreads' is blocking and advanced"),
        (lambda s: s.then(Columns), "bolt 'Columns' asks for columns .*'price'.*; allowed are"),
        (lambda s: s.then(OpensLater), "bolt 'OpensLater' is function and has async def open"),
        (lambda s: s.then(HearsLater), "'HearsLater' is async and has async def partition_assig"),
        (lambda s: s.then(same, name="a").then(same, name="a"), "a second step is named 'a'"),
        (lambda s: s.then(same).then(Own, name="same"), "a second step is named 'same'"),
        (
            lambda s: (s.into(MemorySink("x"), name="a"), s.into(MemorySink("y"), name="a")),
            "a second step is named 'a'",
        ),
        (twice(Own()), "one bolt stands in 'one' and in 'two', which would share its state"),
        (
            lambda s: s.then(partial(lambda own: own, Own()), tasks=2, name="n"),
            "one bolt stands in 'n' and in 'n, task 1'",
        ),
    ],
)
def test_a_wrong_argument_is_refused_by_the_name_of_its_step(draw, error):
    _topology, records = drawn()
    with pytest.raises(InvalidTopology, match=error):
        draw(records)


def test_a_function_keeps_nothing_so_it_may_stand_in_several_steps():
    topology, records = drawn()
    twice(same)(records).into(MemorySink())
    topology.validate()
    assert [step.name for step in topology.bolts()] == ["one", "two"]


def test_steps_and_sinks_that_were_not_named_get_a_number():
    topology, records = drawn()
    records.then(same, name="same_2").into(MemorySink("x"))
    records.then(same).then(same).into(MemorySink("x"))
    assert {step.name for step in topology.steps()} == {"same", "same_2", "same_3", "x", "x_2"}


@pytest.mark.parametrize("rate", ["10", 0, -1, float("nan")])
def test_a_rate_that_is_no_positive_number_is_refused(rate):
    with pytest.raises(InvalidTopology, match="topic 'in' has records_per_second="):
        Topology("drawn").source("in", records_per_second=rate)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t: t.uses("airports.csv"), r"uses\(\) got 'airports.csv'; what reference\(\) give"),
        (lambda t: t.hooks(Hooks), r"hooks\(\) got <class .*; instances of Hooks are allowed"),
        (lambda t: t.hooks(Own()), r"hooks\(\) got .*Own"),
        (lambda t: t.hooks(StartsLater()), "StartsLater with async def partition_revoked"),
    ],
)
def test_what_is_no_reference_and_no_hooks_is_refused(call, error):
    with pytest.raises(InvalidTopology, match=error):
        call(Topology("drawn"))


def test_a_class_is_vectorised_if_it_says_so():
    class Vectorised(Own):
        vectorised = True

    assert kind_of(Vectorised()) is Kind.VECTORISED


# How steps are put together


@pytest.mark.parametrize(
    ("draw", "error"),
    [
        (lambda s: s.then(same, streams=("late", "late")), "bolt 'same' names its stream 'late'"),
        (lambda s: s.then(same, streams=("",)), "bolt 'same' names its stream ''"),
        (lambda s: s.then(same, streams=("default",)), "names its stream 'default'"),
        (lambda s: s.then(same)["late"], "bolt 'same' has no stream 'late'; allowed: default"),
        (lambda s: s["late"], "topic 'in' has no named streams"),
        (lambda s: s.merge(s), "the same stream twice"),
        (lambda s: s.then(plain), "a @bolt function, a Bolt or its class is allowed"),
        (lambda s: s.then(len), "a @bolt function, a Bolt or its class is allowed"),
        (lambda s: s.then(7), "a @bolt function, a Bolt or its class is allowed"),
        (lambda s: s.then(lambda: 7), "a @bolt function, a Bolt or its class is allowed"),
        (lambda s: s.then(Own, tasks=0), "bolt 'Own' has tasks=0"),
        (lambda s: s.then(Own(), tasks=2), "bolt 'Own' has tasks=2; .* allowed for a class"),
        (lambda s: s.then(same, tasks=2), "bolt 'same' has tasks=2"),
        (lambda s: s.then(lambda: columns, tasks=2), "bolt 'columns' has tasks=2"),
        (lambda s: s.then(Own, tasks=2, grouping="shuffle"), "bolt 'Own' has grouping='shuffle'"),
        (lambda s: s.then(columns, grouping=shuffle()), "bolt 'columns' is vectorised and takes"),
        (lambda s: s.then(Own, workers=2), "bolt 'Own' has workers=2"),
        (lambda s: s.then(Kept, workers=2), "bolt 'Kept' has workers=2"),
        (lambda s: s.then(wait, workers=0), "bolt 'wait' has workers=0"),
        (lambda s: s.then(wait, timeout_seconds=0), "bolt 'wait' has timeout_seconds=0"),
        (lambda s: s.then(Own, timeout_seconds=1), "bolt 'Own' has timeout_seconds=1"),
        (lambda s: s.then(Endless, name="e"), "bolt 'e' has tick_seconds=0"),
        (lambda s: s.keyed_by("k").then(columns), "bolt 'columns' is vectorised and cannot"),
        (lambda s: s.ordered().then(Kept), "bolt 'Kept' is advanced and cannot be called in order"),
        (lambda s: s.ordered().then(Own, tasks=2), "bolt 'Own' has several tasks .* no order"),
        (
            lambda s: s.keyed_by("k").then(Own, tasks=2, grouping=shuffle()),
            "bolt 'Own' has several tasks .* keeps no order",
        ),
        (lambda s: s.keyed_by([]), "keyed_by.. got .*; names of fields"),
        (lambda s: s.keyed_by("k").into(MemorySink()), "into.. stands behind keyed_by"),
        (lambda s: s.keyed_by("k").ordered(), "ordered.. stands behind keyed_by"),
        (lambda s: s.ordered().keyed_by("k"), "keyed_by.. stands behind keyed_by.. or ordered"),
        (lambda s: s.then(same).merge(s.ordered()), "merge.. stands behind keyed_by"),
        (lambda s: s.ordered().merge(s.then(same)), "merge.. stands behind keyed_by"),
        (
            lambda s: s.then(same, streams=("a",)).ordered()["a"],
            "'a'. stands behind keyed_by.. or ordered",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(draw, error):
    _topology, records = drawn()
    with pytest.raises(InvalidTopology, match=error):
        draw(records)


@pytest.mark.parametrize(
    ("draw", "error"),
    [
        (
            lambda s: s.then(same, streams=("late",)).into(MemorySink()),
            "stream 'late' of bolt 'same' leads nowhere",
        ),
        (lambda s: s.then(same), "bolt 'same' leads nowhere"),
        (
            lambda s: s.then(columns).then(wait).into(MemorySink()),
            "bolt 'wait' takes single values but 'columns' gives columns",
        ),
        (
            lambda s: s.then(columns).merge(s.then(same)).then(Own).into(MemorySink()),
            "bolt 'Own' takes single values but 'columns' gives columns",
        ),
        (
            lambda s: s.then(Own, tasks=2, grouping=direct()).into(MemorySink()),
            "'Own' is grouped direct.., but topic 'in' can name no task",
        ),
    ],
)
def test_a_topology_that_cannot_run_is_refused_by_the_name_of_its_step(draw, error):
    topology, records = drawn()
    draw(records)
    with pytest.raises(InvalidTopology, match=error):
        topology.validate()


class AsyncKept(AdvancedBolt):
    async def process(self, tuple_, collector, /):
        collector.ack(tuple_)


class NeedsArguments(Own):
    def __init__(self, table):
        self.table = table


class Unfinished(Bolt):
    pass


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda s: s.then(AsyncKept), "nobody would run"),
        (lambda s: s.then(NeedsArguments), "needs arguments"),
        (lambda s: s.then(Unfinished), "lacks process"),
        (lambda s: s.then(Own, tasks=2, grouping=custom(3)), "a function is allowed"),
        (lambda s: s.then(Own, tasks=2, grouping=fields(["n"])), "names of one or more fields"),
        (lambda s: s.keyed_by(None).then(same), "names of fields or a function"),
        (lambda s: s.keyed_by(["n", 3]).then(same), "names of fields or a function"),
        (lambda s: s.merge("x"), "merge() got 'x'"),
        (lambda s: s.merge(Topology("other").source("b")), "of another topology"),
        (lambda s: s.then(bolt(partial(max, 1))), "a function is allowed"),
        (lambda s: s.then(wait, timeout_seconds=float("inf")), "a finite, positive number"),
        (lambda s: s.then(wait, workers=0), "a whole number from 1 on"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_drawn_with_what_is_allowed(draw, said):
    with pytest.raises(InvalidTopology) as refused:
        draw(Topology("t").source("a"))
    assert said in str(refused.value)


@pytest.mark.parametrize("sink", [MemoryDeadLetters, MemorySink("x"), "topic"])
def test_what_is_no_place_for_dead_letters_is_refused(sink):
    with pytest.raises(InvalidTopology, match=r"dead_letters\.into\(\) got"):
        Topology("t").dead_letters.into(sink)


@pytest.mark.parametrize("topic", [None, "", "a b/c", "..", "x" * 250, re.compile(b"a")])
def test_what_can_be_no_topic_is_refused(topic):
    with pytest.raises(InvalidTopology, match=r"source\(\) got"):
        Topology("t").source(topic)


def test_a_rate_without_end_is_refused_by_its_topic():
    with pytest.raises(InvalidTopology, match="topic 'a' has records_per_second=inf"):
        Topology("t").source("a", records_per_second=float("inf"))


@pytest.mark.parametrize(
    "wrong",
    [{"limit": "5"}, {"limit": -1}, {"initial_seconds": float("nan")}, {"jitter": 1.5}],
)
def test_a_retry_policy_that_is_none_is_refused_by_its_field(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"RetryPolicy has {name}="):
        RetryPolicy(**wrong)
