"""Building a topology: what is allowed, and that errors name the step."""

import re
from collections.abc import AsyncIterator, Iterator

import pyarrow as pa
import pytest

from headrace import SKIP, Bolt, InvalidTopology, Record, Skip, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from topology.bolt import Kind, kind_of
from topology.topology import as_facts, as_mermaid, as_text


@bolt
def parse(record: Record) -> int | Skip:
    return int(record.value or b"0") or SKIP


@bolt
def spread(number: int) -> Iterator[int]:
    yield from range(number)


@bolt
async def look_up(number: int) -> int:
    return number


@bolt(vectorised=True)
def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class Add(Bolt[int, int]):
    def process(self, number: int, /) -> int:
        return number + 1


def valid() -> Topology:
    topology = Topology("numbers")
    topology.source("numbers").then(parse).then(Add).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


def test_a_bolt_is_called_as_its_function_is_written():
    assert [kind_of(b) for b in (parse, spread, look_up, double, Add())] == [
        Kind.FUNCTION,
        Kind.FAN_OUT,
        Kind.ASYNC,
        Kind.VECTORISED,
        Kind.FUNCTION,
    ]


def test_a_function_annotated_as_iterator_fans_out_without_being_a_generator():
    @bolt
    def both(number: int) -> Iterator[int]:
        return iter([number, number])

    assert kind_of(both) is Kind.FAN_OUT


def test_an_async_generator_is_an_async_bolt():
    @bolt
    async def stream(number: int) -> AsyncIterator[int]:
        yield number

    assert kind_of(stream) is Kind.ASYNC


def test_a_decorated_function_can_still_be_called():
    assert spread(3) is not None
    assert list(spread(2)) == [0, 1]


def test_a_valid_topology_passes():
    valid().validate()


def test_a_bolt_that_leads_nowhere_is_named():
    topology = valid()
    topology.source("more").then(parse, name="dangling")
    with pytest.raises(InvalidTopology, match="bolt 'dangling' leads nowhere"):
        topology.validate()


def test_a_topology_without_dead_letters_is_refused():
    topology = Topology("numbers")
    topology.source("numbers").then(parse).into(MemorySink("out"))
    with pytest.raises(InvalidTopology, match=r"dead_letters\.into"):
        topology.validate()


def test_a_plain_bolt_after_a_vectorised_one_is_refused_by_name():
    topology = valid()
    topology.source("columns").then(double).then(Add, name="late").into(MemorySink("two"))  # type: ignore[arg-type]
    with pytest.raises(InvalidTopology, match="bolt 'late' takes single values"):
        topology.validate()


def test_workers_for_a_bolt_that_is_not_async_are_refused_by_name():
    with pytest.raises(InvalidTopology, match="bolt 'parse' has workers=4"):
        Topology("numbers").source("numbers").then(parse, workers=4)


def test_a_time_out_for_a_bolt_that_is_not_async_is_refused_by_name():
    with pytest.raises(InvalidTopology, match=r"bolt 'parse' has timeout_seconds=0\.5"):
        Topology("numbers").source("numbers").then(parse, timeout_seconds=0.5)


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\nb", "a\0", "a\ud800"])
def test_a_name_that_cannot_name_offsets_is_refused(name):
    with pytest.raises(InvalidTopology):
        Topology(name)


def test_a_topic_is_read_once():
    topology = Topology("numbers")
    topology.source("numbers")
    with pytest.raises(InvalidTopology, match="read twice"):
        topology.source("numbers")


def test_steps_of_one_name_are_told_apart():
    topology = Topology("numbers")
    topology.source("numbers").then(parse).then(Add).then(Add).into(MemorySink("out"))
    assert [step.name for step in topology.steps()] == ["parse", "Add", "Add_2", "out"]


def test_a_topology_can_be_read_as_text_as_a_chart_and_as_facts():
    topology = valid()
    assert as_text(topology).splitlines()[1:4] == [
        "  source numbers",
        "    -> parse  (function)",
        "      -> Add  (function)",
    ]
    assert "n0 --> n1" in as_mermaid(topology)
    assert as_facts(topology)["sources"] == [
        {"topic": "numbers", "records_per_second": None, "to": ["parse"]}
    ]


def test_a_pattern_reads_every_topic_whose_whole_name_matches_it():
    topology = Topology("orders")
    topology.source("orders-eu").then(parse).into(MemorySink("eu"))
    topology.source(re.compile("orders-.*")).then(parse).into(MemorySink("all"))
    named, matching = topology.sources
    assert topology.source_of("orders-eu") is named
    assert topology.source_of("orders-us") is matching
    with pytest.raises(KeyError):
        topology.source_of("all-orders-us")
    assert "/orders-.*/" in as_text(topology)
    with pytest.raises(InvalidTopology, match="read twice"):
        topology.source(re.compile("orders-.*"))
