"""A topology that is exactly-once has only steps that keep it."""

import inspect
from typing import Any, ClassVar

import pytest

import headrace.sinks
from headrace import AdvancedBolt, Collector, InvalidTopology, Topology, Tuple
from headrace.sinks import (
    DiscardSink,
    MemoryDeadLetters,
    MemorySink,
    Sink,
    Staged,
)
from sinks.state.store import MemoryState
from tests.support.front import Front
from topology.aggregates import count
from topology.sink import Kind, SinkContext
from topology.state import State
from topology.topology import as_facts, as_text, guarantee_of


class OnlyTransactional(MemorySink[Any]):
    kinds: ClassVar[frozenset[Kind]] = frozenset({"transactional"})


class Logging(Sink[Any]):
    """Stands in front of a sink, and knows nothing of transactions."""

    def __init__(self, sink: Sink[Any]) -> None:
        self.name = sink.name
        self.sink = sink

    def open(self, context: SinkContext) -> None:
        self.sink.open(context)

    def commit(self, staged: Staged) -> None:
        self.sink.commit(staged)

    def close(self) -> None:
        self.sink.close()


def topology(sink: Sink[Any], transactions: Kind = "transactional") -> Topology:
    topology = Topology("orders", reliability="exactly-once", transactions=transactions)
    topology.source("orders").into(sink, name="table")
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


@pytest.mark.parametrize("transactions", ["transactional", "opaque"])
@pytest.mark.parametrize(
    "sink", [MemorySink[Any](), Front(Front(MemorySink()))], ids=["memory", "behind"]
)
def test_sinks_that_keep_transactions_are_allowed(sink: Sink[Any], transactions: Kind) -> None:
    topology(sink, transactions).validate()


@pytest.mark.parametrize(
    ("sink", "called"),
    [
        (DiscardSink(), "DiscardSink"),
        (Front(DiscardSink()), "Front before DiscardSink"),
        (Logging(MemorySink()), "Logging before MemorySink"),
        (Front(Logging(MemorySink())), "Front before Logging before MemorySink"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sink_that_does_not_is_refused_by_name_and_told_which_do(
    sink: Sink[Any], called: str
) -> None:
    with pytest.raises(InvalidTopology) as caught:
        topology(sink).validate()
    said = str(caught.value)
    assert said.startswith(f"sink 'table' ({called}) gives at-least-once; exactly-once")
    assert "MemorySink" in said.split("is kept by ")[1]
    assert "Front" not in said.split("is kept by ")[1], "it keeps none by itself"


def test_a_sink_that_keeps_only_the_other_kind_is_refused() -> None:
    topology(OnlyTransactional()).validate()
    with pytest.raises(InvalidTopology) as caught:
        topology(OnlyTransactional(), "opaque").validate()
    said = str(caught.value)
    assert "(OnlyTransactional) gives exactly-once (transactional)" in said
    assert "exactly-once (opaque) is kept by" in said
    assert "OnlyTransactional" not in said.split("is kept by ")[1]


@pytest.mark.parametrize("transactions", ["transactional", "opaque"])
def test_those_that_are_told_are_those_that_users_can_make(transactions: Kind) -> None:
    exported = [getattr(headrace.sinks, name) for name in headrace.sinks.__all__]
    keeping = {
        sink.__name__
        for sink in exported
        if isinstance(sink, type)
        and issubclass(sink, Sink)
        and not inspect.isabstract(sink)
        and (sink is headrace.sinks.SparkSink or sink.kinds)
    }
    with pytest.raises(InvalidTopology) as caught:
        topology(DiscardSink(), transactions).validate()
    said = str(caught.value).split("is kept by ")[1]
    assert said == ", ".join(sorted(keeping))


def state_sink() -> Sink[Any]:
    return State("words", key={"word": str}, into=MemoryState()).sink({"n": count()})


@pytest.mark.parametrize(
    ("sink", "advice"),
    [
        (state_sink(), "layout='opaque'"),
        (Front(state_sink()), "layout='opaque'"),
    ],
    ids=["state", "behind another"],
)
def test_one_that_could_keep_the_other_kind_says_how(sink: Sink[Any], advice: str) -> None:
    topology(sink).validate()
    with pytest.raises(InvalidTopology) as caught:
        topology(sink, "opaque").validate()
    assert str(caught.value).endswith(f"; exactly-once (opaque) is kept by it with {advice}")


def test_advice_that_would_not_help_is_not_given() -> None:
    with pytest.raises(InvalidTopology) as caught:
        topology(Logging(state_sink()), "opaque").validate()
    assert "by it with" not in str(caught.value)


def test_what_a_sink_gives_can_be_said() -> None:
    assert guarantee_of(DiscardSink()) == "at-least-once"
    assert guarantee_of(MemorySink()) == "exactly-once (transactional and opaque)"
    assert guarantee_of(Front(Front(MemorySink()))) == "exactly-once (transactional and opaque)"
    assert guarantee_of(OnlyTransactional()) == "exactly-once (transactional)"


class Join(AdvancedBolt[Any, Any]):
    def process(self, value: Tuple[Any], collector: Collector[Any]) -> None:
        collector.ack(value)


def test_an_advanced_bolt_is_refused_by_name() -> None:
    made = Topology("orders", reliability="exactly-once")
    made.source("orders").then(Join, name="join").into(MemorySink())
    made.dead_letters.into(MemoryDeadLetters())
    with pytest.raises(InvalidTopology, match=r"'join' is an AdvancedBolt.*no one transaction"):
        made.validate()


def test_the_kind_of_transactions_is_one_of_two() -> None:
    with pytest.raises(InvalidTopology, match="transactions 'perhaps'; allowed: transactional, op"):
        Topology("orders", reliability="exactly-once", transactions="perhaps")  # type: ignore[arg-type]


def test_a_kind_without_transactions_is_refused() -> None:
    with pytest.raises(InvalidTopology, match="'opaque' with reliability 'at-least-once'"):
        Topology("orders", transactions="opaque")


def test_a_description_tells_the_kind_and_what_each_sink_gives() -> None:
    made = topology(MemorySink(), "opaque")
    assert as_text(made).startswith("topology orders  (exactly-once, opaque)\n")
    facts = as_facts(made)
    assert (facts["reliability"], facts["transactions"]) == ("exactly-once", "opaque")
    assert facts["steps"][0]["gives"] == "exactly-once (transactional and opaque)"
    plain = Topology("orders")
    plain.source("orders").into(DiscardSink())
    assert as_text(plain).startswith("topology orders  (at-least-once)\n")
    assert as_facts(plain)["transactions"] is None
    assert as_facts(plain)["steps"][0]["gives"] == "at-least-once"
