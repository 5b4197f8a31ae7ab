"""A key that a failed call holds is free again when nothing will come for it."""

import threading
from collections.abc import Iterator

import pytest

from headrace import AdvancedBolt, Collector, Record, Topology, Tuple, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import RetryPolicy, topology_test
from tests.support.patience import seconds


@bolt
def letters_of(record: Record) -> Iterator[str]:
    for letter in (record.value or b"").decode():
        yield letter * (record.offset + 1)


def keyed(look_up) -> Topology:
    topology = Topology("keyed")
    letters = topology.source("words").then(letters_of)
    checked = letters.keyed_by(lambda letter: letter[0]).then(look_up, workers=2)
    checked.then(row).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


@bolt
def row(letter: str) -> dict[str, str]:
    return {"letter": letter}


def test_late_failure_of_a_rejected_record_holds_no_key():
    """Promise 10: a record that is done stops no other."""
    buried = threading.Event()

    @bolt(blocking=True)
    def look_up(letter: str) -> str:
        if letter == "a":
            raise ValueError("a")
        if letter == "b":
            buried.wait(seconds(20))
            raise ValueError("b")
        return letter

    with topology_test(keyed(look_up), retries=RetryPolicy(limit=0)) as kit:
        acks = kit._reader.ack

        def ack(owners) -> None:
            acks(owners)
            buried.set()

        kit._reader.ack = ack
        kit.send(b"ab").send(b"ab")
        kit.advance(60)
        assert [letter.record.offset for letter in kit.rejected] == [0]
        assert sorted(row["letter"] for row in kit.rows) == ["aa", "bb"]
        assert kit.unresolved == 0


@bolt
def always_fails(letter: str) -> str:
    raise ValueError(letter)


class Pair(AdvancedBolt[Record, str]):
    """Passes what is alone on, and makes one value of two that are not."""

    def open(self) -> None:
        self._kept: list[Tuple[Record]] = []

    def process(self, tuple_: Tuple[Record], collector: Collector[str]) -> None:
        self._kept.append(tuple_)
        if tuple_.value.value == b"alone" or len(self._kept) == 2:
            collector.emit("a", anchors=self._kept)
            for each in self._kept:
                collector.ack(each)
            self._kept = []


@pytest.mark.parametrize("first", [letters_of, Pair])
def test_drain_does_not_wait_behind_a_retry(first):
    """Promise 16: it ends when nothing can move before the retry, also of joined records."""
    topology = Topology("keyed")
    values = topology.source("words").then(first)
    values.keyed_by(lambda letter: letter[0]).then(always_fails).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology, retries=RetryPolicy(initial_seconds=100)) as kit:
        kit.send(b"alone").send(b"a").send(b"a")
        assert (kit.unresolved, kit.retrying) == (3, 1)
        assert kit._pipeline.acker.in_flight > 0
        assert kit._pipeline.is_idle
