"""Counting words while bolts, commits and whole runs fail: the counts are those of a Counter.

`tests/acceptance/test_word_count.py` does it with real servers and kill -9.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Record, bolt
from headrace.testing import ChaosBolt, ChaosSink
from partition.chunk import Partition
from partition.memory import MemoryLog, MemoryNodes, MemoryStore
from partition.retries import RetryPolicy
from sinks.state.memory import MemoryState
from sinks.tries import WriteRetries
from tests.worlds.running import PATIENCE_SECONDS, Works
from topology.aggregates import count
from topology.sink import Sink, SinkContext
from topology.state import State
from topology.transactional import Kind

CONTEXT = SinkContext("words", "words", {}, "", None, exactly_once=True)
VOCABULARY = [f"word-{number}" for number in range(25)]
PARTITIONS = 2
LINES = 40  # published before each life
LIVES = 3  # each but the last ends at any moment
_TURN_SECONDS = 0.001
RETRIES = RetryPolicy(limit=1_000, initial_seconds=0.5, multiplier=1.0, jitter=0)


@bolt
def split(record: Record) -> Iterator[dict[str, str]]:
    for word in (record.value or b"").decode().split():
        yield {"word": word}


class Trouble:
    """One topology's state, log and offsets, which outlive its runs, and what is published."""

    def __init__(self, seed: int, kind: Kind | None) -> None:
        self.rng = random.Random(seed)
        self.kind = kind
        self.memory = MemoryState()
        self.log = MemoryLog({"t": PARTITIONS})
        self.nodes = MemoryNodes()
        self.published: Counter[str] = Counter()
        self.spoiled = 0

    def live(self, *, until_its_end: bool) -> None:
        """Run over what is published, to its end, or to any moment before."""
        sink = self._sink()
        splitting = ChaosBolt(split, seed=self.rng.randrange(10**6), fail=0.1, retry=0.1)
        with Works(
            splitting,
            sinks=[sink],
            exactly_once=self.kind,
            nodes=self.nodes,
            log=self.log,
            retries=RETRIES,
            write_retries=WriteRetries(first_seconds=0, longest_seconds=0),
            batch_rows=self.rng.choice([1, 20, 1_000]),
            transaction_records=self.rng.choice([3, 10]),
            chunk_records=self.rng.choice([2, 7]),
        ) as works:
            self._publish(works)
            most_turns = 1_000_000 if until_its_end else self.rng.randrange(60)
            ends = time.monotonic() + PATIENCE_SECONDS
            for _ in range(most_turns):
                if self._has_ended():
                    break
                assert time.monotonic() < ends, works.ledger
                works.advance(0.1, step=0.1)
                time.sleep(_TURN_SECONDS)
        self.spoiled += sink.counts.failed_before + sink.counts.failed_after
        self.spoiled += splitting.counts.spoiled
        sink.close()

    def counted(self) -> Counter[str]:
        """What the state says."""
        state = self._state()
        table = state.holds(n=count()).shape.over_lines(self.memory.load(CONTEXT, state.shape))
        return Counter(dict(zip(*(table[name].to_pylist() for name in ("word", "n")), strict=True)))

    def _state(self) -> State:
        layout: Kind = self.kind or "transactional"
        there = MemoryState(beside=self.memory)
        return State("words", key={"word": str}, into=there, layout=layout)

    def _sink(self) -> ChaosSink[Any]:
        inner: Sink[Any] = self._state().sink({"n": count()})
        chaos = ChaosSink(
            inner, seed=self.rng.randrange(10**6), busy=0.1, fail_before=0.15, fail_after=0.15
        )
        chaos.open(CONTEXT)
        return chaos

    def _publish(self, works: Works) -> None:
        for number in range(LINES):
            words = self.rng.choices(VOCABULARY, k=self.rng.randrange(6))
            self.published.update(words)
            works.send(" ".join(words).encode(), partition=number % PARTITIONS)

    def _has_ended(self) -> bool:
        store = MemoryStore(self.nodes)
        store.open()
        for number in range(PARTITIONS):
            place = Partition("t", number)
            stored = store.load(place)
            if stored is None or stored.offset < self.log.log_range(place)[1]:
                return False
        return True


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize("seed", range(20))
def test_each_word_is_counted_once_whatever_fails_in_between(seed: int, kind: Kind) -> None:
    """Promises 3 and 14: in the layout of the same name."""
    trouble = Trouble(seed, kind)
    for life in range(LIVES):
        trouble.live(until_its_end=life == LIVES - 1)
    assert trouble.counted() == trouble.published
    assert trouble.spoiled > 0


def test_at_least_once_the_same_trouble_counts_some_words_twice() -> None:
    """The control: the chaos does harm where nothing prevents it."""
    trouble = Trouble(0, None)
    for life in range(LIVES):
        trouble.live(until_its_end=life == LIVES - 1)
    assert trouble.counted() > trouble.published
