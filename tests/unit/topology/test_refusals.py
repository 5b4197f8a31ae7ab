import re
from functools import partial
from typing import TypedDict

import pytest

from headrace import (
    Bolt,
    Hooks,
    InvalidTopology,
    RetryPolicy,
    To,
    Topology,
    bolt,
    custom,
    direct,
    fields,
    shuffle,
)
from headrace.sinks import MemoryDeadLetters, MemorySink
from tests.support.bolts import Keeps, Own, columns, made, new_topology, same, wait


async def later(self, *_): ...


both = bolt(blocking=True)(wait.function)


def spread(value):
    yield value


class Parser:
    @bolt
    def parse(self, record):
        return record


@bolt
def to_late(value):
    return [To("late", each) for each in value]


class ToLate(Bolt):
    def process(self, value, /):
        return self.late(value)

    def late(self, value):
        return To("late", value)


class Ticks(Own):
    def tick(self):
        yield 1


class TicksTo(Ticks):
    def __init__(self, stream="late"):
        self.stream = stream

    def tick(self):
        yield To(self.stream, 1)


def some_or_none(late):
    @bolt
    def function(value):
        return To("late", value) if late else value

    return function


class ToSome(Bolt):
    """May be made to send to fewer streams."""

    def __init__(self, stream=None):
        self.stream = stream

    def process(self, value, /):
        return To("late", value) if self.stream else value


class ToSomeLater(ToSome):
    def process(self, value, /):
        return To("late", str(value)) if self.stream else value


@bolt
def hello(value):
    return To(value="hello", stream=value)


@bolt
def hello_kept(value):
    return To(value="hello", stream=str(value, encoding="utf-8"))


NeedsTable = made(Own, __init__=lambda _self, _table: None)


def twice(bolt_):
    return lambda s: s.then(bolt_, name="one").then(bolt_, name="two")


def two_sources(topic):
    topology = Topology("t")
    topology.source(topic)
    topology.source(topic)


ARGUMENTS = [
    (lambda s: s.then(same, retries=3), "bolt 'same', retries: found 3, expected a RetryPolicy"),
    (lambda s: s.then(same, retries=RetryPolicy), "bolt 'same', retries: found <class"),
    (lambda s: s.then(same, streams="late"), "bolt 'same', streams: found 'late', expected a list"),
    *(
        (lambda s, names=names: s.then(same, streams=names), "bolt 'same', streams: found ")
        for names in [(7,), ("late", "late"), ("",), ("default",)]
    ),
    *(
        (lambda s, n=n: s.then(wait, workers=n), f"bolt 'wait', workers: found {n!r}")
        for n in ["8", 1.5, 0]
    ),
    *(
        (lambda s, b=b: s.then(b, workers=2), f"bolt '{b.__name__}', workers: found 2, expected 1")
        for b in [Own, Keeps]
    ),
    *(
        (lambda s, t=t: s.then(wait, timeout_seconds=t), f"timeout_seconds: found {t!r}, expected")
        for t in ["2", 0, float("inf")]
    ),
    (lambda s: s.then(Own, timeout_seconds=1), "bolt 'Own', timeout_seconds: found 1, expected"),
    *(
        (lambda s, n=n: s.then(Own, tasks=n), f"bolt 'Own', tasks: found {n!r}")
        for n in ["2", 0]
    ),
    *(
        (lambda s, b=b: s.then(b, tasks=2), "tasks: found 2, expected 1, or more of a class")
        for b in [Own(), same, lambda: columns]
    ),
    (lambda s: s.then(Own, tasks=2, grouping="a"), "bolt 'Own', grouping: found 'a'"),
    (lambda s: s.then(columns, grouping=shuffle()), "bolt 'columns', grouping: .*not vectorised"),
    *(
        (lambda s, t=t: s.then(made(Own, tick_seconds=t)), f"'Made', tick_seconds: found {t!r}")
        for t in ["5", 0.0]
    ),
    *(
        (lambda s, o=o: s.into(MemorySink("m"), **o), f"sink 'm', {next(iter(o))}: found ")
        for o in [{"batch_rows": "9"}, {"batch_rows": 0}, {"batch_bytes": 1.5},
                  {"batch_seconds": -1}]
    ),
    (lambda s: s.into(made(MemorySink, batch_rows=0)("m")), "sink 'm', batch_rows of its class"),
    (lambda s: s.into(MemorySink), r"into\(\): found <class .*, expected an instance of Sink"),
    (lambda s: s.into(MemoryDeadLetters()), r"into\(\): found <.*MemoryDeadLetters"),
    (lambda s: s.aggregate("words"), r"aggregate\(\): found 'words', expected a State"),
    (lambda s: s.spark("SELECT"), r"spark\(\): found 'SELECT', expected a function of a DataFrame"),
    (lambda s: s.spark(len).into(MemorySink), r"into\(\): found <class .*, expected an instance"),
]  # fmt: skip
BOLTS = [
    *(
        (lambda s, given=given: s.then(given), r"then\(\): found .* a Bolt or its class")
        for given in [7, len, same.function, lambda: 7]
    ),
    (lambda s: s.then(NeedsTable), r"then\(\): class Made needs arguments"),
    (lambda s: s.then(made(Bolt)), r"then\(\): class Made is abstract: it lacks process"),
    (lambda s: bolt(7), r"bolt\(\): found 7, expected a function"),
    *(
        (lambda s, given=given: s.map(given), r"map\(\): found .* then\(\) takes bolts")
        for given in [7, Own, Own()]
    ),
    (lambda s: s.map(spread), r"map\(\): 'spread' is fan-out, .* Or use flat_map\(\)"),
    (lambda s: s.flat_map(wait), r"flat_map\(\): 'wait' is async, expected an async generator"),
    (lambda s: s.flat_map(columns), r"flat_map\(\): 'columns' is vectorised, expected function"),
    (lambda s: s.filter(wait), r"filter\(\): 'wait' is async, expected function"),
    *(
        (lambda s, test=test: test(s, lambda a, b: True), "expected parameters for one value")
        for test in (lambda s, f: s.filter(f), lambda s, f: s.branch(big=f))
    ),
    (lambda s: s.branch(), r"branch\(\): found {}, expected a predicate for each stream"),
    (lambda s: s.branch(default=same), "bolt 'branch', streams: found 'default'"),
    (lambda s: bolt(vectorised=True, blocking=True), "either vectorised=True or blocking=True"),
    (lambda s: s.then(both), "bolt 'wait' is blocking and async, expected one"),
    (lambda s: s.then(bolt(vectorised=True)(spread)), "bolt 'spread' is vectorised and fan-out"),
    (lambda s: s.then(made(Own, blocking=True, vectorised=True)), "is blocking and vectorised"),
    (lambda s: s.then(made(Keeps, blocking=True)), "bolt 'Made' is blocking and advanced"),
    (lambda s: s.then(made(Own, concurrent=True)), "bolt 'Made' is concurrent, expected it to be"),
    (
        lambda s: s.then(made(Own, vectorised=True, columns=("value", "price"))),
        "bolt 'Made', columns: found .*'price'.*, expected some of key",
    ),
    (lambda s: s.then(made(Own, open=later)), "found async def open in a bolt that is function"),
    (
        lambda s: s.then(made(Own, process=wait.function, partition_assigned=later)),
        "found async def partition_assigned in a bolt that is async",
    ),
    (lambda s: s.then(made(Keeps, process=later)), "bolt 'Made': .* nothing awaits"),
    (lambda s: s.then(same, name="a").then(Own, name="a"), "two steps with name='a'"),
    (lambda s: s.then(same).into(MemorySink(), name="same"), "two steps with name='same'"),
    (twice(Own()), "found one bolt in steps 'one' and 'two', which would share its state"),
    (
        lambda s: s.then(partial(lambda own: own, Own()), tasks=2, name="n"),
        "found one bolt in steps 'n' and 'n, task 1'",
    ),
]  # fmt: skip
ORDERS = [
    (lambda s: s.then(same)["late"], "bolt 'same', stream: found 'late', expected default"),
    (lambda s: s["late"], "topic 'in' has no named streams"),
    (lambda s: s.merge(s), "found a stream twice"),
    (lambda s: s.merge("x"), r"merge\(\): found 'x', expected a stream"),
    (lambda s: s.merge(Topology("other").source("b")), "of another topology"),
    (lambda s: custom(3), r"custom\(\): found 3, expected a function"),
    (lambda s: fields(["n"]), r"fields\(\): found .*, expected the names of one or more fields"),
    (lambda s: fields(), r"fields\(\): found \(\)"),
    *(
        (lambda s, key=key: s.keyed_by(key), r"keyed_by\(\): found .*, expected names of fields")
        for key in [None, [], 7, ["n", 3]]
    ),
    (lambda s: s.keyed_by("k").then(columns), "bolt 'columns': found a bolt that is vectorised af"),
    (lambda s: s.ordered().then(Keeps), "bolt 'Keeps': found a bolt that is advanced after"),
    (lambda s: s.ordered().then(Own, tasks=2), "bolt 'Own', grouping: .* keeps no order"),
    (
        lambda s: s.keyed_by("k").then(Own, tasks=2, grouping=shuffle()),
        "bolt 'Own', grouping: .* keeps no order",
    ),
    (lambda s: s.then(same).merge(s.ordered()), r"found merge\(\) after keyed_by"),
    *(
        (lambda s, use=use: use(s.ordered()), f"found {name} after keyed_by")
        for name, use in [
            (r"into\(\)", lambda o: o.into(MemorySink())), (r"ordered\(\)", lambda o: o.ordered()),
            (r"keyed_by\(\)", lambda o: o.keyed_by("k")), (r"merge\(\)", lambda o: o.merge()),
            (r"\['a'\]", lambda o: o["a"]), (r"spark\(\)", lambda o: o.spark(len)),
            (r"aggregate\(\)", lambda o: o.aggregate(None)),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("build", "error"), [*ARGUMENTS, *BOLTS, *ORDERS])
def test_invalid_step_is_refused_by_its_name(build, error):
    with pytest.raises(InvalidTopology, match=error):
        build(Topology("t").source("in"))


def test_function_may_be_in_several_steps():
    topology, stream = new_topology()
    twice(same)(stream).into(MemorySink())
    topology.validate()
    assert [step.name for step in topology.bolts()] == ["one", "two"]


@pytest.mark.parametrize(
    ("build", "error"),
    [
        *((lambda n=n: Topology(n), "topology name: found")
          for n in ["", "a/b", "..", "a\nb", "a\ud800"]),
        (lambda: Topology("t", reliability="twice"), "'t', reliability: found 'twice', expected"),
        (
            lambda: Topology("t", reliability="exactly-once", transactions="perhaps"),
            "transactions: found 'perhaps', expected transactional, opaque",
        ),
        (lambda: Topology("t", transactions="opaque"), "'opaque' with reliability 'at-least-once'"),
        *((lambda topic=topic: Topology("t").source(topic), r"source\(\): found")
          for topic in [None, "", "a b/c", "..", "x" * 250, re.compile(b"a")]),
        *((lambda rate=rate: Topology("t").source("in", records_per_second=rate),
           "topic 'in', records_per_second: found .*, expected a finite number > 0")
          for rate in ["10", 0, float("nan"), float("inf")]),
        *((lambda sink=sink: Topology("t").dead_letters.into(sink), r"dead_letters.into\(\): found")
          for sink in [MemoryDeadLetters, MemorySink("x"), "topic"]),
        (
            lambda: new_topology()[0].dead_letters.into(MemoryDeadLetters()),
            r"dead_letters\.into\(\) was called twice",
        ),
        *((lambda topic=topic: two_sources(topic), r"topic '.*in.*': found two sources")
          for topic in ["in", re.compile("in-.*")]),
        (lambda: Topology("t").uses("airports.csv"), r"uses\(\): found 'airports.csv', expected a"),
        (lambda: Topology("t").hooks(Hooks), r"hooks\(\): found <class .*, expected an instance"),
        (lambda: Topology("t").hooks(Own()), r"hooks\(\): found .*Own"),
        (
            lambda: Topology("t").hooks(made(Hooks, partition_revoked=later)()),
            "async def partition_revoked in Made",
        ),
    ],
)  # fmt: skip
def test_invalid_topology_option_is_refused(build, error):
    with pytest.raises(InvalidTopology, match=error):
        build()


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda s: None, "topic 'in' leads nowhere"),
        (lambda s: s.then(same), "bolt 'same' leads nowhere"),
        (
            lambda s: s.then(Parser().parse).into(MemorySink()),
            r"bolt 'parse': found Parser\.parse\(self, record\), .* one value\. Make a method a",
        ),
        (
            lambda s: s.then(bolt(lambda: 1)).into(MemorySink()),
            r"bolt '<lambda>': found .*\(\), expected parameters for one value",
        ),
        (
            lambda s: s.then(Ticks, streams=("late",))["late"].into(MemorySink()),
            r"bolt 'Ticks' yields in tick\(\), but its default stream leads nowhere",
        ),
        *(
            (
                lambda s, sends=sends: s.then(sends, streams=("early",)).into(MemorySink()),
                r"sends To\('late', …\), which it does not declare. .*streams=\['late'\]",
            )
            for sends in (to_late, ToLate)
        ),
        (
            lambda s: s.then(same, streams=("late",)).into(MemorySink()),
            "stream 'late' of bolt 'same' leads nowhere",
        ),
        (
            lambda s: s.then(columns).merge(s.then(same)).then(wait).into(MemorySink()),
            "bolt 'wait' takes single values, but 'columns' gives columns",
        ),
        (
            lambda s: s.then(Own, tasks=2, grouping=direct()).into(MemorySink()),
            r"'Own' is grouped direct\(\), but topic 'in' cannot name a task",
        ),
        (
            lambda s: [
                (to := s.then(same, streams=("to",))).into(MemorySink("c")),
                to["to"].then(Own, tasks=2, grouping=direct()).into(MemorySink("a")),
                to["to"].into(MemorySink("b")),
            ],
            r"'b' after bolt 'same' is not grouped direct\(\), but another step",
        ),
        (
            lambda s: s.then(same).spark(len).into(MemorySink()),
            "Spark step 'len' after bolt 'same' needs schema=",
        ),
        (
            lambda s: s.spark(len, schema=TypedDict("Row", {"n": int})).into(MemorySink()),
            "found schema= directly after topic 'in'",
        ),
    ],
)
def test_incomplete_topology_is_refused_by_its_step(build, error):
    topology, stream = new_topology()
    build(stream)
    with pytest.raises(InvalidTopology, match=error):
        topology.validate()


def test_tick_that_may_send_to_a_declared_stream_is_accepted():
    topology, stream = new_topology()
    stream.then(TicksTo, streams=("late",))["late"].into(MemorySink())
    topology.validate()


@pytest.mark.parametrize("sends", [ToSome, ToSomeLater, some_or_none(None), hello, hello_kept])
def test_stream_that_code_may_not_send_to_is_not_missed(sends):
    topology, stream = new_topology()
    stream.then(sends).into(MemorySink())
    topology.validate()


def test_topology_needs_a_source_and_dead_letters():
    topology = Topology("t")
    with pytest.raises(InvalidTopology, match="topology 't' has no source"):
        topology.validate()
    topology.source("in").into(MemorySink())
    with pytest.raises(InvalidTopology, match=r"dead_letters\.into\(sink\)"):
        topology.validate()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("limit", "5"), ("limit", -1), ("initial_seconds", float("nan")), ("jitter", 1.5)],
)
def test_invalid_retry_policy_is_refused_by_its_field(name, wrong):
    with pytest.raises(ValueError, match=name):
        RetryPolicy(**{name: wrong})
