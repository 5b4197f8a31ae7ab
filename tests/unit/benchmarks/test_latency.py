"""Suite latency: both get a topic of their own each round, and the order is turned."""

import json

import pytest

from benchmarks import latency
from benchmarks.latency_variants import VARIANTS

LATENCIES = {"structured": 2_000.0, "headrace": 800.0}  # ms; the fake takes them for p50


def test_every_variant_of_the_suite_is_there():
    assert list(VARIANTS) == list(latency.VARIANTS) == list(LATENCIES)


def test_percentiles_stand_beside_those_of_structured_streaming(fake_bench):
    bench = fake_bench(LATENCIES)
    facts = latency.run(bench).json
    assert facts["suite"] == "latency"
    assert facts["latency_ms"] == {
        "structured": {"p50": 2_000, "p99": 6_000}, "headrace": {"p50": 800, "p99": 2_400},
    }  # fmt: skip
    assert facts["ratio"] == {"p50": 0.4, "p99": 0.4}
    assert facts["published_per_second"] == {"structured": 19_998, "headrace": 19_998}
    assert all(goal["met"] for goal in facts["goals"].values())
    json.dumps(facts)


def test_the_order_is_turned_and_no_topic_is_read_twice(fake_bench):
    bench = fake_bench(LATENCIES)
    latency.run(bench)
    assert bench.steps == [
        "round 1: structured", "round 1: headrace", "round 2: headrace", "round 2: structured",
    ]  # fmt: skip
    assert len(set(bench.topics)) == len(bench.topics) == 4


def test_variants_that_make_other_rows_end_the_suite(fake_bench):
    with pytest.raises(SystemExit, match="do not make the same rows"):
        latency.run(fake_bench(LATENCIES, odd="headrace"))
