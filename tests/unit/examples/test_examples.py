import inspect
import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from examples.flights import pipeline as flights
from examples.iceberg import pipeline as iceberg
from examples.lookup import pipeline as lookup
from examples.own_sink import pipeline as own_sink
from examples.own_sink.sink import SqliteOrders
from examples.postgres import pipeline as postgres
from examples.spark_step import pipeline as spark_step
from examples.spark_step.__main__ import orders
from examples.topic import pipeline as topic
from examples.upserts import pipeline as upserts
from examples.upserts.__main__ import changes as changed_customers
from examples.upserts.__main__ import last_towns
from examples.word_count import pipeline as word_count
from examples.word_count.__main__ import lines
from headrace import sinks
from headrace.sinks import DeltaSink, DiscardSink, ForeachSink, MemorySink, Sink, SinkContext
from headrace.state import MemoryState
from headrace.testing import topology_test
from sinks.state.store import StateSink
from sinks.storage import Storage
from tests.support.patience import seconds
from topology.schema import schema_of
from topology.sink import Batch, chain_of, innermost
from topology.topology import guarantee_of

ROOT = Path(__file__).resolve().parents[3]
SINK_EXAMPLES = [topic.topology, iceberg.topology, postgres.topology, upserts.topology]
OTHERS = [
    flights.topology, flights.native, own_sink.topology, lookup.topology, spark_step.topology,
    word_count.topology,
]  # fmt: skip


def sent(topology, *values):
    """The rows, why records were rejected, and how many were filtered."""
    with topology_test(topology) as kit:
        kit.send(*(each if isinstance(each, bytes) else orjson.dumps(each) for each in values))
        kit.advance(60)
        assert kit.unresolved == 0
        reasons = [letter.reason for letter in kit.rejected]
        return kit.rows, reasons, len(values) - len(kit.rows) - len(reasons)


@pytest.mark.parametrize("topology", SINK_EXAMPLES, ids=lambda each: each.name)
def test_each_is_exactly_once_and_rejects_broken_json(topology):
    assert topology.reliability == "exactly-once"
    topology.validate()
    rows, reasons, _ = sent(topology, b"{")
    assert (rows, len(reasons)) == ([], 1)


def test_every_sink_has_an_example_in_the_readme():
    steps = [step for each in [*SINK_EXAMPLES, *OTHERS] for step in each.sink_steps()]
    found = [innermost(step.sink) for step in steps]
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


def test_a_payment_is_looked_at_if_it_is_large_and_sooner_abroad():
    payment = {"id": 1, "card": "c", "country": "NL", "cents": 100_000}
    changes = {}, {"cents": 100_001}, *({"country": "BE", "cents": n} for n in (20_000, 20_001))
    rows, reasons, filtered = sent(topic.topology, *(payment | each for each in changes))
    assert [row["reason"] for row in rows] == ["1000.01 in NL", "200.01 in BE"]
    assert (reasons, filtered) == ([], 2)
    assert topic.card_of(rows[0]) == "c"


def test_a_page_view_is_of_people_and_has_its_campaign():
    request = {
        "at": "2026-03-01T01:30:00+02:00", "visitor": "v", "agent": "Firefox", "status": 200,
        "url": "https://example.org/prices?campaign=spring",
    }  # fmt: skip
    others = {"agent": "SearchBot/2"}, {"status": 404}, {"url": "https://[example.org"}
    changes = {}, {"url": "https://example.org"}, *others
    rows, reasons, filtered = sent(iceberg.topology, *(request | each for each in changes))
    assert [(row["page"], row["campaign"]) for row in rows] == [("/prices", "spring"), ("/", None)]
    assert rows[0]["at"] == datetime(2026, 2, 28, 23, 30, tzinfo=UTC)
    assert (filtered, len(reasons)) == (2, 1)
    assert "no address of a page" in reasons[0]


def test_a_parcel_is_where_it_was_scanned_last():
    scan = {"parcel": "P1", "event": "sorted", "place": "Breda", "at": "2026-05-01T06:00:00Z"}
    scans = scan, scan | {"event": "handed over"}, scan | {"event": "eaten"}
    rows, reasons, _ = sent(postgres.topology, *scans)
    assert [(row["state"], row["is_delivered"]) for row in rows] == [
        ("on the way", False),
        ("delivered", True),
    ]
    assert reasons == ["nobody knows what 'eaten' is"]


def test_tombstone_deletes_the_customer():
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


def test_published_records_are_stable_and_some_are_broken_or_deleted():
    assert list(changed_customers()) == list(changed_customers())
    gone = {int(customer) for customer, value in dict(changed_customers()).items() if value is None}
    assert gone
    assert not gone & last_towns().keys()
    assert list(lines()) == list(lines())
    torn = Counter(value.startswith(b"\xff") for _, value in lines())
    assert torn == {True: 5, False: 4_995}


def test_every_order_goes_into_spark_but_those_that_are_torn():
    topology = spark_step.billing("customers")
    topology.validate()
    published = [value for _, value in orders()]
    rows, reasons, _ = sent(topology, *published)
    assert (len(rows), len(reasons)) == (len(published) - 6, 6)
    assert rows[0].customer == 0
    (step,) = topology.sink_steps()
    assert len(chain_of(step.sink)) == 2
    assert guarantee_of(step.sink).startswith("exactly-once")
    assert schema_of(spark_step.Bill).names == ["id", "customer", "country", "cents", "tax"]


def test_state_counts_the_words_of_lines_in_lower_case():
    word_count.topology.validate()
    assert word_count.topology.reliability == "exactly-once"
    texts = b"Who counts? The miller's wheel...", b"", b"\xff", b"the wheel"
    rows, reasons, _ = sent(word_count.topology, *texts)
    words = [(row["word"], row["length"]) for row in rows]
    first = [(word, 5) for word in ("who", "counts", "the", "miller's", "wheel")]
    assert words == [*first, ("the", 2), ("wheel", 2)]
    assert len(reasons) == 1
    assert reasons[0].startswith("not utf-8 text")
    memory = MemoryState()
    (step,) = word_count.counted(memory).sink_steps()
    context = SinkContext("word-count", "word_counts", {}, Storage(""), None)
    step.sink.open(context)
    step.sink.write(Batch(1, [rows], len(rows)))
    stored = memory.load(context, step.sink.shape)
    found = {row["word"]: (row["n"], row["longest_line"]) for row in stored.to_pylist()}
    counts = {"who": (1, 5), "counts": (1, 5), "the": (2, 5), "miller's": (1, 5)}
    assert found == counts | {"wheel": (2, 5)}


def test_orders_are_stored_and_what_is_none_is_a_dead_letter(tmp_path):
    topology = own_sink.stored(tmp_path / "orders.db")
    topology.validate()
    order = {"number": 1, "customer": "c"}
    rows, reasons, _ = sent(topology, order, b"{broken", {"customer": "c"})
    assert (rows, len(reasons)) == ([order], 2)


SAID = {
    "own_sink": [
        "refused: orders[0] under epoch 1 has been taken over under epoch 2", "orders [1, 2]",
        "lines [('orders[0]', 2, 2)]",
    ],
    "lookup": ["990 priced, 10 dead-lettered", "the service was asked 4 times"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_the_example_runs_by_itself(name):
    """Each order is stored once, and the service asked once per item."""
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds(60),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("\n".join(SAID[name]))
