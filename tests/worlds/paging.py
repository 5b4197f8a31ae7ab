"""A topology with two sources and a named stream, and snapshots of it, for the status page."""

from headrace import Record, To, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import TopologyTest
from service.snapshot import Snapshot, snapshot_of


@bolt
def parse(record: Record) -> int:
    return int(record.value or b"")


@bolt
def check(value: int) -> int | To:
    return To("late", value) if value > 60 else value


def topology() -> Topology:
    made = Topology("orders")
    orders = made.source("orders").then(parse)
    returns = made.source("returns").then(parse, name="parse_returns")
    checked = orders.merge(returns).then(check, streams=("late",))
    checked.into(MemorySink("all"))
    checked["late"].into(MemorySink("late"))
    made.dead_letters.into(MemoryDeadLetters())
    return made


def snapshot(test: TopologyTest, now: float = 100.0) -> Snapshot:
    return snapshot_of(test._bench.pipeline, now)
