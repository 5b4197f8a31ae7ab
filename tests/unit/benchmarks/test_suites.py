import json
import sys
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from benchmarks import __main__ as benchmarks
from benchmarks import (
    enrich,
    fanout,
    guarantees,
    hot_path,
    latency,
    tables,
    tables_growth,
    tables_s3,
    tracing,
)
from benchmarks.bench import Options
from benchmarks.report import Conditions, written_into
from benchmarks.result import Goal, Result, Table

ROOT = Path(__file__).resolve().parents[3]
PAGE = "# B\n\nBy hand.\n\n<!-- suite: one -->\n\nOld.\n\n<!-- end -->\n\nKept.\n"
CONDITIONS = Conditions("2026-01-02", 2, "a processor", "3.11.0", {"numpy": "2.0"}, 0.05)
RESULT = Result(
    "one",
    {"records": 10},
    [Table("Ten records", ("variant", "µs"), [("raw", "1.5")])],
    [Goal("raw: rate", 0.95, 0.9), Goal("raw: CPU", 1.3, 1.25, at_most=True)],
)
GROWTH = {
    "writers": {"commits_per_second": 15.9, "p50_ms": 30.0, "p99_ms": 1_200.0},
    "pipeline": {"rows": 11, "whole_seconds": 9.0, "peak_mb": 313.0, "first_row_seconds": 2.5},
}


class FakeBench:
    """Gives figures that were not measured: rates by variant; one may make other rows."""

    options = Options()

    def __init__(self, rates, odd=None):
        self.rates, self.odd = rates, odd
        self.steps, self.topics, self.endpoints = [], [], {}
        self.progress = SimpleNamespace(step=lambda text, *_counts: self.steps.append(text))
        kafka = SimpleNamespace(
            address="nowhere", create_topic=lambda name, _partitions: self.topics.append(name)
        )
        self.servers = SimpleNamespace(kafka=kafka)

    def asked(self, rounds, records):
        return rounds, records

    def publish(self, topic, value_of, records):
        self.topics.append(topic)

    def publish_flights(self, topic, records):
        self.topics.append(topic)
        return 336_776

    def rounds(self, module, variants, topic, records, *, rounds, endpoints=None):
        self.endpoints |= endpoints or {}
        return {name: [self.run(module, name, topic, records)] * rounds for name in variants}

    def run(self, module, variant, topic, records, *, options=None):
        if variant in GROWTH or options:
            return {"records": records, **(GROWTH.get(variant) or {"commit_ms": options["files"]})}
        rate = self.rates[variant]
        return {
            "records": records, "per_second": rate, "cpu_us": 1_000 / rate, "batches": 2,
            "rows": 11, "order_ids": 7, "cents": 9 if variant == self.odd else 8,
            "open_seconds": 1.5, "p50_ms": rate, "p99_ms": 3 * rate, "most_ms": 4 * rate,
            "commits": 60, "published_per_second": 19_998.4, "traced": 20.0, "spans": 41.0,
            "early_mb": 120.0, "end_mb": 130.0, "peak_mb": 140.0,
        }  # fmt: skip


RATES = {
    enrich: {"loop": 500.0, "loop_few": 550.0, "functions": 450.0, "vectorised": 700.0},
    hot_path: {
        "raw": 1_000.0, "raw_json": 500.0, "raw_few": 1_250.0, "raw_json_few": 625.0,
        "noop": 950.0, "functions": 310.0, "vectorised": 490.0,
        "functions_flights": 250.0, "vectorised_flights": 400.0,
    },
    guarantees: {"at_least_once": 500.0, "exactly_once": 420.0},
    latency: {"structured": 2_000.0, "headrace": 800.0},
    tracing: {
        "off": 500.0, "none": 490.0, "one_in_1000": 440.0, "one_in_100": 300.0, "one_in_10": 50.0,
    },
    tables: {
        "structured_delta": 100.0, "delta_vectorised": 600.0, "delta_functions": 200.0,
        "delta_large": 600.0, "delta_delayed": 540.0, "engine_vectorised": 450.0,
        "engine_functions": 260.0, "spark_sink": 210.0, "spark_sink_functions": 160.0,
        "structured_iceberg": 200.0, "iceberg_vectorised": 900.0, "iceberg_functions": 600.0,
        "write_deltalake": 400.0, "sink_alone": 360.0,
    },
}  # fmt: skip
RATIOS = {
    hot_path: {
        "noop": 0.95, "functions": 0.62, "vectorised": 0.98, "functions_flights": 0.5,
        "vectorised_flights": 0.8,
    },
    guarantees: {"exactly_once": 0.84},
    latency: {"p50": 0.4, "p99": 0.4},
    tracing: {"none": 0.98, "one_in_1000": 0.88, "one_in_100": 0.6, "one_in_10": 0.1},
    tables: {
        "delta_vectorised": 6.0, "delta_functions": 2.0, "iceberg_vectorised": 4.5,
        "iceberg_functions": 3.0, "engine_vectorised": 4.5, "engine_functions": 2.6,
        "spark_sink": 2.1, "spark_sink_functions": 1.6, "bare_loop": 0.9,
    },
}  # fmt: skip
UNMET = {
    hot_path: ["vectorised: rate"],
    guarantees: ["exactly once: rate of at least once"],
    latency: [],
    tracing: ["one_in_10: µs for each"],
    tables: ["delta_functions: rate", "delta_vectorised: CPU", "delta_functions: CPU"],
}


@pytest.mark.parametrize("suite", RATES, ids=lambda suite: suite.__name__)
def test_variants_are_compared_with_their_peers_and_goals(suite):
    assert set(suite.VARIANTS) == set(RATES[suite])
    facts = json.loads(json.dumps(suite.run(FakeBench(RATES[suite])).json))
    if suite in RATIOS:
        assert facts["ratio"] == RATIOS[suite]
        assert [name for name, goal in facts["goals"].items() if not goal["met"]] == UNMET[suite]


@pytest.mark.parametrize(
    ("suite", "odd"),
    [
        (tables, "delta_functions"), (tables, "sink_alone"), (latency, "headrace"),
        (guarantees, "exactly_once"),
    ],
)  # fmt: skip
def test_suite_ends_if_a_variant_makes_other_rows(suite, odd):
    with pytest.raises(SystemExit, match="do not make the same rows"):
        suite.run(FakeBench(RATES[suite], odd=odd))


def test_object_store_is_compared_with_itself_without_delays(monkeypatch):
    store = SimpleNamespace(port=1, url="http://store", open=lambda: None, close=lambda: None)
    slow = SimpleNamespace(address="slow", close=lambda: None)
    monkeypatch.setattr(tables_s3, "EmbeddedSeaweed", lambda _folder: store)
    monkeypatch.setattr(tables_s3, "Relay", lambda _port: slow)
    bench = FakeBench(RATES[tables])
    facts = tables_s3.run(bench).json
    assert facts["ratio"]["s3_delta_delayed"] == 0.9
    assert slow.delay == 0.1  # each way
    assert bench.endpoints.pop("delta_delayed") == "http://slow"
    assert set(bench.endpoints.values()) == {"http://store"}


def test_growing_table_reports_spreads_and_goals():
    facts = tables_growth.run(FakeBench({})).json
    assert facts["commit_ms"]["100000"] == 100_000
    assert facts["spread"]["peak_mb"] == [313.0, 313.0]
    assert not facts["goals"]["writers: p99, ms"]["met"]
    json.dumps(facts)


def test_latency_reads_a_topic_of_its_own_each_round_in_turn():
    bench = FakeBench(RATES[latency])
    latency.run(bench)
    assert bench.steps == [
        "round 1: structured", "round 1: headrace", "round 2: headrace", "round 2: structured",
    ]  # fmt: skip
    assert len(set(bench.topics)) == len(bench.topics) == 4


def test_fanout_divides_by_the_tuples():
    with pytest.raises(SystemExit, match="11 rows"):
        fanout.run(FakeBench(dict.fromkeys(fanout.NAMES, 1.0)))


@pytest.mark.slow
def test_collector_counts_spans():
    asked = trace_service_pb2.ExportTraceServiceRequest()
    spans = asked.resource_spans.add().scope_spans.add().spans
    for number in range(3):
        spans.add().name = str(number)
    collector = tracing.Collector()
    with collector.running() as endpoint:
        for _ in range(2):
            connection = HTTPConnection(urlsplit(endpoint).netloc)
            connection.request("POST", "/v1/traces", asked.SerializeToString())
            assert connection.getresponse().status == 200
            connection.close()
    assert collector.spans == 6


def test_report_rewrites_only_the_suites_own_part():
    page = written_into(PAGE, RESULT, CONDITIONS)
    assert "Old." not in page
    for kept in ("By hand.", "Kept.", "2026-01-02; 2 cores (a processor)", "| raw | 1.5 |"):
        assert kept in page
    assert "| raw: rate | 0.95 | at least 0.9 | yes |" in page
    assert "| raw: CPU | 1.30 | at most 1.25 | no |" in page
    assert written_into(page, RESULT, CONDITIONS) == page
    with pytest.raises(KeyError, match="suite: one"):
        written_into("# Benchmarks\n", RESULT, CONDITIONS)


def test_documentation_has_a_place_for_every_suite():
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    for suite in benchmarks.SUITES:
        assert "2 cores (a processor)" in written_into(page, Result(suite, {}, []), CONDITIONS)
        assert f"\n## {suite}\n" in page


def test_all_suites_end_with_one_json_object(monkeypatch, capsys):
    monkeypatch.setattr(benchmarks, "SUITES", {"acker": benchmarks.SUITES["acker"]})
    words = ["benchmarks", "all", "--rounds", "1", "--trees", "800", "--in-flight", "5000"]
    monkeypatch.setattr(sys, "argv", words)
    assert benchmarks.main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    (facts,) = found["suites"]
    assert facts["suite"] == "acker"
    assert set(facts["ns_per_tree"]) == {"batch_1000", "batch_4000"}
