"""A bench that measures nothing."""

from types import SimpleNamespace

import pytest

from benchmarks.options import Options


class FakeBench:
    """Gives figures that were not measured: rates by variant; one may make other rows."""

    options = Options()

    def __init__(self, rates, odd=None):
        self.rates = rates
        self.odd = odd
        self.profiled = []
        self.steps = []
        self.topics = []
        self.endpoints = {}
        self.progress = SimpleNamespace(step=lambda text, *_counts: self.steps.append(text))
        kafka = SimpleNamespace(
            address="nowhere", create_topic=lambda name, _partitions: self.topics.append(name)
        )
        self.servers = SimpleNamespace(kafka=kafka)

    def publish(self, topic, value_of, records):
        self.topics.append(topic)

    def rounds(self, module, variants, topic, records, *, rounds, profile=(), endpoints=None):
        self.profiled += profile
        self.endpoints |= endpoints or {}
        return {name: [self.run(module, name, topic, records)] * rounds for name in variants}

    def run(self, module, variant, topic, records):
        rate = self.rates[variant]
        return {
            "records": records, "per_second": rate, "cpu_us": 1_000 / rate, "batches": 2,
            "rows": 11, "order_ids": 7, "cents": 9 if variant == self.odd else 8,
            "open_seconds": 1.5, "p50_ms": rate, "p99_ms": 3 * rate, "most_ms": 4 * rate,
            "commits": 60, "published_per_second": 19_998.4,
            "traced": 20.0, "spans": 41.0, "end_mb": 130.0,
        }  # fmt: skip


@pytest.fixture
def fake_bench():
    return FakeBench
