"""The pipelines of the examples for sinks, on a few records, without their servers."""

import inspect
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from examples.flights import pipeline as flights
from examples.iceberg import pipeline as iceberg
from examples.lookup import pipeline as lookup
from examples.own_sink import pipeline as own_sink
from examples.own_sink.sink import SqliteOrders
from examples.postgres import pipeline as postgres
from examples.spark_step import pipeline as spark_step
from examples.topic import pipeline as topic
from examples.upserts import pipeline as upserts
from examples.upserts.__main__ import changes, last_towns
from examples.word_count import pipeline as word_count
from headrace import Topology, sinks
from headrace.sinks import (
    DeltaSink,
    DiscardSink,
    ForeachSink,
    IcebergSink,
    KafkaTopicSink,
    MemorySink,
    PostgresSink,
    Sink,
)
from headrace.testing import topology_test
from sinks.state.store import StateSink
from topology.spark_step import ThroughSpark
from topology.steps import SinkStep

ROOT = Path(__file__).resolve().parents[3]
TOPOLOGIES = [
    topic.topology,
    iceberg.topology,
    postgres.topology,
    upserts.topology,
]
OTHERS = [
    flights.topology,
    flights.native,
    own_sink.topology,
    lookup.topology,
    spark_step.topology,
    word_count.topology,
]


def sent(topology: Topology, *records: dict[str, Any]) -> tuple[list[Any], list[str], int]:
    """The rows, why records were rejected, and how many were filtered."""
    with topology_test(topology) as kit:
        kit.send(*map(orjson.dumps, records))
        kit.advance(60)
        assert kit.unresolved == 0
        reasons = [letter.reason for letter in kit.rejected]
        return kit.rows, reasons, len(records) - len(kit.rows) - len(reasons)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda each: each.name)
def test_each_is_exactly_once_and_rejects_broken_json(topology: Topology) -> None:
    assert topology.reliability == "exactly-once"
    topology.validate()
    with topology_test(topology) as kit:
        kit.send(b"{")
        assert len(kit.rejected) == 1
        assert kit.rows == []


def sinks_of(*topologies: Topology) -> list[Sink[Any]]:
    """Their sinks; behind a Spark step, the one that it writes to."""
    steps = [step for topology in topologies for step in topology.steps()]
    found = [step.sink for step in steps if isinstance(step, SinkStep)]
    return [sink.sink if isinstance(sink, ThroughSpark) else sink for sink in found]


def test_each_has_a_sink_of_its_own() -> None:
    found = [type(sink) for sink in sinks_of(*TOPOLOGIES)]
    assert found == [KafkaTopicSink, IcebergSink, PostgresSink, DeltaSink]


def test_every_sink_has_an_example_in_the_readme() -> None:
    found = sinks_of(*TOPOLOGIES, *OTHERS)
    exported = [getattr(sinks, name) for name in sinks.__all__]
    wanted = {
        each
        for each in exported
        if inspect.isclass(each) and issubclass(each, Sink) and not inspect.isabstract(each)
    }
    wanted -= {MemorySink, DiscardSink}  # for trials
    wanted -= {ForeachSink}  # its how-to has one
    wanted |= {SqliteOrders}
    states = [sink for sink in found if isinstance(sink, StateSink)]
    assert states
    assert {type(sink) for sink in found if sink not in states} == wanted
    deltas = [sink for sink in found if type(sink) is DeltaSink]
    assert {sink.stored == sink.schema for sink in deltas} == {True, False}, "one deletes by key"
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/pipeline.py")}
    listed = re.findall(r"\]\(examples/(\w+)/README\.md\)", (ROOT / "README.md").read_text())
    assert sorted({*listed}) == sorted(folders)


def test_a_payment_is_looked_at_if_it_is_large_and_sooner_abroad() -> None:
    payment = {"id": 1, "card": "c", "country": "NL", "cents": 100_000}
    rows, reasons, filtered = sent(
        topic.topology,
        payment,
        payment | {"cents": 100_001},
        payment | {"country": "BE", "cents": 20_000},
        payment | {"country": "BE", "cents": 20_001},
    )
    assert [row["reason"] for row in rows] == ["1000.01 in NL", "200.01 in BE"]
    assert (reasons, filtered) == ([], 2)
    assert topic.card_of(rows[0]) == "c"


def test_a_page_view_is_of_people_and_has_its_campaign() -> None:
    request = {"at": "2026-03-01T01:30:00+02:00", "visitor": "v", "agent": "Firefox",
               "url": "https://example.org/prices?campaign=spring", "status": 200}  # fmt: skip
    rows, reasons, filtered = sent(
        iceberg.topology,
        request,
        request | {"url": "https://example.org"},
        request | {"agent": "SearchBot/2"},
        request | {"status": 404},
        request | {"url": "https://[example.org"},
    )
    assert [(row["page"], row["campaign"]) for row in rows] == [("/prices", "spring"), ("/", None)]
    assert rows[0]["at"] == datetime(2026, 2, 28, 23, 30, tzinfo=UTC)
    assert filtered == 2
    assert len(reasons) == 1
    assert "no address of a page" in reasons[0]


def test_a_parcel_is_where_it_was_scanned_last() -> None:
    scan = {"parcel": "P1", "event": "sorted", "place": "Breda", "at": "2026-05-01T06:00:00Z"}
    rows, reasons, _ = sent(
        postgres.topology, scan, scan | {"event": "handed over"}, scan | {"event": "eaten"}
    )
    assert [(row["state"], row["is_delivered"]) for row in rows] == [
        ("on the way", False),
        ("delivered", True),
    ]
    assert reasons == ["nobody knows what 'eaten' is"]


def test_tombstone_deletes_the_customer() -> None:
    with topology_test(upserts.topology) as kit:
        kit.send(b'{"name": "Ada", "town": "Delft"}', None, key=b"7")
        kit.send(b'{"name": "Bo"}', key=b"8")
        kit.send(b'{"town": "Breda"}', key=b"9")
        kit.send(b'{"name": "Nobody"}', key=b"x")
        kit.send(None)
        assert [tuple(row.values()) for row in kit.rows] == [
            (7, "Ada", "Delft", False),
            (7, None, None, True),
            (8, "Bo", None, False),
        ]
        reasons = [letter.reason for letter in kit.rejected]
        assert len(reasons) == 3
        assert all(reason.startswith("no customer: ") for reason in reasons)


def test_some_customers_are_deleted_by_their_last_change() -> None:
    published = list(changes())
    assert published == list(changes())
    last = dict(published)
    gone = {int(customer) for customer, value in last.items() if value is None}
    assert gone
    assert not gone & last_towns().keys()
