"""What waits for its key, and what advanced bolts keep: it is bounded, and what it waits for comes.

The window bounds records, and each of these here has a hundred tuples.
"""

from collections.abc import Iterator

import pytest

from headrace import AdvancedBolt, Record, Retry, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import RetryPolicy, topology_test

TUPLES = 100
MOST = 500
RETRY_SECONDS = 20.0


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr("service.pipeline.backpressure._MAX_KEPT", MOST)


@bolt
def letters_of(record: Record) -> Iterator[dict[str, str]]:
    for place in range(TUPLES):
        yield {"key": (record.value or b"").decode(), "place": f"{record.offset}-{place}"}


class FailsFirst:
    """Asks for one retry, at the first call of all, or always for one record."""

    def __init__(self, *, always: bool = False) -> None:
        self.always = always
        self.failing = ""

    def check(self, row: dict[str, str]) -> dict[str, str]:
        first = not self.failing
        self.failing = self.failing or row["place"]
        if first or (self.always and row["place"] == self.failing):
            raise Retry("later", after_seconds=RETRY_SECONDS)
        return row

    def of(self, kind):
        @bolt
        def here(row: dict[str, str]) -> dict[str, str]:
            return self.check(row)

        @bolt
        async def there(row: dict[str, str]) -> dict[str, str]:
            return self.check(row)

        @bolt(blocking=True)
        def in_a_thread(row: dict[str, str]) -> dict[str, str]:
            return self.check(row)

        return {"function": here, "async": there, "blocking": in_a_thread}[kind]


def fanned_out(keeper, order="key"):
    """words -> letters_of -> keeper -> out, and a source of its own: others -> rest."""
    topology = Topology("kept")
    letters = topology.source("words").then(letters_of)
    ordered = letters.keyed_by("key") if order == "key" else letters.ordered()
    ordered.then(keeper, name="keeper").into(MemorySink("out"))
    topology.source("others").into(MemorySink("rest"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


def send_many(kit, count=12):
    for _ in range(count):
        kit.send(b"a")


def places(kit):
    return sorted(row["place"] for row in kit.rows_of("out"))


def all_places(*offsets):
    return sorted(f"{offset}-{place}" for offset in offsets for place in range(TUPLES))


@pytest.mark.parametrize("order", ["key", "partition"])
@pytest.mark.parametrize("kind", ["function", "async", "blocking"])
def test_tuples_behind_a_retry_are_bounded(kind, order):
    """Promise 10."""
    with topology_test(fanned_out(FailsFirst().of(kind), order)) as kit:
        send_many(kit)
        waiting = kit.metrics['headrace_topology_waiting_tuples{step="keeper"}']
        assert MOST < waiting <= MOST + TUPLES
        assert kit.metrics["headrace_service_held_back_state"] == 1
        assert places(kit) == []
        kit.send(b"x", topic="others")
        assert len(kit.rows_of("rest")) == 1
        kit.advance(2 * RETRY_SECONDS)
        assert places(kit) == all_places(*range(12))
        assert kit.unresolved == 0
        assert kit.metrics["headrace_service_held_back_state"] == 0


class Keeps(AdvancedBolt):
    """Answers what it keeps at the next tick, but not the first time."""

    tick_seconds = 10.0

    def open(self):
        self.kept = []
        self.most = 0
        self.ticks = 0

    def process(self, tuple_, collector, /):
        self.kept.append(tuple_)
        self.most = max(self.most, len(self.kept))

    def tick(self, collector, /):
        self.ticks += 1
        for tuple_ in collector.pending(self.kept):
            if self.ticks == 1:
                collector.fail(tuple_)
            else:
                collector.emit(tuple_.value, anchors=tuple_)
                collector.ack(tuple_)
        self.kept = []


def test_tuples_held_by_an_advanced_bolt_are_bounded():
    """Promise 10."""
    keeps = Keeps()
    topology = Topology("kept")
    topology.source("words").then(letters_of).then(keeps).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    retries = RetryPolicy(initial_seconds=1, jitter=0)
    with topology_test(topology, retries=retries, message_timeout_seconds=600) as kit:
        send_many(kit)
        assert keeps.most == MOST + TUPLES
        assert kit.metrics["headrace_service_held_back_state"] == 1
        kit.advance(60)
        assert set(places(kit)) == set(all_places(*range(12)))
        assert kit.unresolved == 0
