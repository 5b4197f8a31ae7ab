"""Suite tracing: every share of traced records is held against none at all."""

import json
from http.client import HTTPConnection
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from benchmarks import tracing
from benchmarks.collector import Collector
from benchmarks.tracing_variants import VARIANTS

RATES = {"off": 500.0, "none": 490.0, "one_in_1000": 440.0, "one_in_100": 300.0, "one_in_10": 50.0}


@pytest.fixture
def bench(fake_bench, monkeypatch):
    monkeypatch.setattr(tracing, "publish", lambda *_args, **_more: SimpleNamespace(total=336_776))
    return fake_bench(RATES)


def test_every_variant_of_the_suite_is_there():
    assert list(VARIANTS) == list(tracing.VARIANTS) == list(RATES)


def test_each_share_is_held_against_the_rate_without_tracing(bench):
    facts = tracing.run(bench).json
    assert facts["ratio"] == {
        "none": 0.98,
        "one_in_1000": 0.88,
        "one_in_100": 0.6,
        "one_in_10": 0.1,
    }
    assert [goal["met"] for goal in facts["goals"].values()] == [True, False]
    assert bench.profiled == ["one_in_1000"]
    assert facts["traced_us"]["one_in_10"] == round((1_000 / 50 - 2) * 336_776 / 20, 1)
    json.dumps(facts)


def test_the_collector_counts_the_spans_that_came():
    asked = trace_service_pb2.ExportTraceServiceRequest()
    spans = asked.resource_spans.add().scope_spans.add().spans
    for number in range(3):
        spans.add().name = str(number)
    with Collector() as collector:
        for _ in range(2):
            connection = HTTPConnection(urlsplit(collector.endpoint).netloc)
            connection.request("POST", "/v1/traces", asked.SerializeToString())
            assert connection.getresponse().status == 200
            connection.close()
    assert collector.spans == 6
