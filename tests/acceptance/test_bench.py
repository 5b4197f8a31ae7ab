"""Every suite runs, and the last line is what its readers expect."""

import functools
import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from benchmarks.__main__ import SUITES
from benchmarks.publishing import publish
from tests.support.patience import seconds

pytestmark = pytest.mark.acceptance

PIECES = (
    ("hot-path", "enrich", "io", "fanout", "memory", "acker", "tracing"),
    ("tables", "guarantees", "latency"),
    ("tables-s3",),
    ("tables-growth",),
)
SLOW = ("tables-s3", "tables-growth")  # make nightly runs them, and scale
TESTED = [name for name in SUITES if name not in ("scale", *SLOW)]
PAGE = Path(__file__).resolve().parents[2] / "docs/benchmarks.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    copy = tmp_path_factory.mktemp("report") / "benchmarks.md"
    copy.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def suites(page):
    """`suites(name)` gives a suite's figures, of few records: they are of no interest.

    Its piece is run once: suites that share servers, in a process with a limit of its own.
    """

    @functools.cache
    def run(piece):
        ended = subprocess.run(
            [
                sys.executable, "-m", "benchmarks", *piece, "--records", "40000", "--rounds", "1",
                "--slow-seconds", "0.5", "--trees", "8000", "--in-flight", "50000",
                "--together", "--report", str(page),
            ],
            capture_output=True,
            text=True,
            timeout=seconds(240),
            check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout.splitlines()[-1])
        return {facts["suite"]: facts for facts in found.get("suites", [found])}

    return lambda name: run(next(piece for piece in PIECES if name in piece))[name]


@pytest.mark.parametrize(
    "name", [*TESTED, *(pytest.param(name, marks=pytest.mark.deep) for name in SLOW)]
)
def test_suite_ends_with_its_figures_as_a_json_object(suites, name):
    facts = suites(name)
    assert name == "acker" or facts["goals"]


def test_the_hot_path_is_held_against_the_bare_loops(suites):
    facts = suites("hot-path")
    assert facts["records"] == 40_000
    ours = {"noop", "functions", "vectorised", "functions_flights", "vectorised_flights"}
    bare = {"raw", "raw_json", "raw_few", "raw_json_few"}
    assert set(facts["per_second"]) == set(facts["cpu_us"]) == ours | bare
    assert set(facts["ratio"]) == set(facts["ratio_few"]) == set(facts["open_seconds"]) == ours
    assert all(value > 0 for value in facts["ratio"].values())
    assert all(value > 0 for value in facts["open_seconds"].values())
    assert set(facts["goals"]) == {"noop: rate", "functions: rate", "vectorised: rate"}


def test_enriching_gives_the_same_rows_by_hand_as_by_headrace(suites):
    facts = suites("enrich")
    assert 0 < facts["rows"] < facts["records"] == 40_000
    assert set(facts["cpu_ratio"]) == set(facts["cpu_ratio_few"]) == {"functions", "vectorised"}


def test_waiting_calls_are_held_against_the_ideal_and_no_offset_passes_a_slow_one(suites):
    """Promise 1."""
    facts = suites("io")
    assert set(facts["of_ideal"]) == {"100", "100 slow", "1,000", "1,000 slow"}
    assert all(0 < share < 1.1 for each in facts["of_ideal"].values() for share in each.values())
    assert facts["looks"] > 0
    assert facts["passed_slow"] == 0


def test_fanning_out_is_measured_per_tuple(suites):
    facts = suites("fanout")
    assert facts["tuples_per_record"] == 10
    assert set(facts["cpu_us_per_tuple"]) == {"loop", "functions", "vectorised"}


def test_memory_is_measured_on_the_way_and_per_pending_record(suites):
    facts = suites("memory")
    assert set(facts["growth"]) == {"noop", "functions"}
    assert set(facts["bytes_per_pending"]) == {"behind", "unresolved"}
    assert all(9 < payload < 15 for payload in facts["payload_bytes"].values())


def test_tables_are_held_against_structured_streaming_with_the_same_rows(suites):
    facts = suites("tables")
    ours = {
        "delta_vectorised", "delta_functions", "iceberg_vectorised", "iceberg_functions",
        "engine_vectorised", "engine_functions", "spark_sink", "spark_sink_functions",
    }  # fmt: skip
    others = {"structured_delta", "structured_iceberg", "write_deltalake", "sink_alone"}
    assert facts["records"] == 40_000
    assert 0 < facts["rows"] < facts["records"]
    assert (
        set(facts["cpu_us"]) == set(facts["per_second"]) == set(facts["batches"]) == ours | others
    )
    assert set(facts["ratio"]) == set(facts["cpu_ratio"]) == ours | {"bare_loop"}
    assert all(value > 0 for value in [*facts["ratio"].values(), *facts["cpu_ratio"].values()])
    assert all(low <= facts["ratio"][name] <= high for name, (low, high) in facts["spread"].items())
    assert len(facts["goals"]) == len(ours) + 3


@pytest.mark.deep
def test_tables_on_an_object_store_have_the_same_rows_through_a_slow_connection_too(suites):
    facts = suites("tables-s3")
    assert facts["rows"] == suites("tables")["rows"]
    assert set(facts["ratio"]) == {
        "s3_delta_vectorised", "s3_delta_functions", "s3_iceberg_vectorised",
        "s3_iceberg_functions", "s3_delta_delayed",
    }  # fmt: skip
    assert all(value > 0 for value in facts["ratio"].values())


@pytest.mark.deep
def test_a_table_that_grows_is_committed_to_by_one_and_by_many(suites):
    facts = suites("tables-growth")
    assert set(facts["commit_ms"]) == {"100", "10000", "40000", "10000_bounded"}
    assert facts["commits_per_second"] > 0
    assert 50 < facts["peak_mb"] < 2_000
    assert 0 < facts["first_row_seconds"] <= facts["whole_seconds"]
    assert set(facts["goals"]) >= {"writers: p99, ms", "pipeline: MB"}


def test_exactly_once_is_held_against_at_least_once_into_the_same_kind_of_table(suites):
    facts = suites("guarantees")
    assert facts["rows"] == suites("tables")["rows"]
    assert set(facts["per_second"]) == {"at_least_once", "exactly_once"}
    assert facts["exactly_once_cost"] < 1
    assert list(facts["goals"]) == ["exactly once: rate of at least once"]


def test_latency_stands_beside_that_of_structured_streaming(suites):
    facts = suites("latency")
    assert facts["records"] == 40_000
    assert facts["rows"] == suites("tables")["rows"]
    assert set(facts["latency_ms"]) == set(facts["commits"]) == {"headrace", "structured"}
    for found in facts["latency_ms"].values():
        assert 0 < found["p50"] <= found["p99"]
    assert set(facts["ratio"]) == {"p50", "p99"}
    assert len(facts["goals"]) == 2


def test_the_report_has_every_suite_and_where_the_time_goes(suites, page):
    for name in TESTED:
        suites(name)
    text = page.read_text(encoding="utf-8")
    assert "Not measured yet." not in text
    assert text.count("Where the owner thread is in") == 10  # of five suites
    for suite in TESTED:
        assert f"\n## {suite}\n" in text


def test_records_are_published_to_the_partitions_in_turn(kafka):
    name = f"published-{uuid.uuid4().hex[:8]}"
    publish(kafka, name, b"%d".__mod__, 10_007, partitions=3)
    client = Consumer({"bootstrap.servers": kafka.address, "group.id": name})
    try:
        client.assign([TopicPartition(name, number, 0) for number in range(3)])
        records = []
        while len(records) < 10_007:
            records += client.consume(10_007, timeout=1.0)
    finally:
        client.close()
    assert all(int(r.value()) == 3 * r.offset() + r.partition() for r in records)
