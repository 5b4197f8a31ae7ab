import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from headrace import Record, bolt
from partition.ledger import RetryPolicy
from partition.records import Partition
from sinks.state.store import MemoryState
from sinks.storage import Storage
from sinks.writer import WriteRetries
from tests.support import spark_engine
from tests.support.chaos import chaotic, spoil
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes
from tests.support.patience import Limit
from tests.support.pipeline import Works, stored_in
from tests.support.spark_engine import Driving
from topology.aggregates import count
from topology.sink import SinkContext
from topology.state import State
from transactions import groups
from transactions.groups import RangePolicy

CONTEXT = SinkContext("words", "words", {}, Storage(""), None, exactly_once=True)
VOCABULARY = [f"word-{number}" for number in range(25)]
PARTITIONS = 2
LIVES = 3  # each but the last ends at any moment
PATIENCE_SECONDS = 60.0
RETRIES = RetryPolicy(limit=1_000, initial_seconds=0.5, multiplier=1.0, jitter=0)


@bolt
def split(record: Record) -> Iterator[dict[str, str]]:
    for word in (record.value or b"").decode().split():
        yield {"word": word}


class Trouble:
    """One topology's state, log and offsets, which outlive its runs on the local engine."""

    lines = 40  # published before each life

    def __init__(self, seed, kind, folder):
        self.rng = random.Random(seed)
        self.kind = kind
        self.folder = folder
        self.memory = MemoryState()
        self.log = FaultyLog({"t": PARTITIONS})
        self.nodes = FaultyNodes()
        self.published: Counter[str] = Counter()
        self.looked_up: Counter[str] = Counter()
        """What look-ups of the last life told when it was over."""
        self.spoiled = 0

    def live(self, *, until_its_end):
        words = self._state()
        sink = words.sink({"n": count()})
        sink.open(CONTEXT)
        ills = {"busy": 0.1, "fail_before": 0.15, "fail_after": 0.15}
        counts = spoil(sink, seed=self.rng.randrange(10**6), **ills)
        words.follow()
        words.use(words.read(words.fetch(CONTEXT)))
        splitting = chaotic(split, seed=self.rng.randrange(10**6), fail=0.1, retry=0.1)
        with self._engine(splitting, sink) as turn:
            for number in range(self.lines):
                text = self.rng.choices(VOCABULARY, k=self.rng.randrange(6))
                self.published.update(text)
                self.log.append(Partition("t", number % PARTITIONS), " ".join(text).encode())
            most_turns = 1_000_000 if until_its_end else self.rng.randrange(60)
            ends = Limit(PATIENCE_SECONDS)
            for _ in range(most_turns):
                if self._has_ended():
                    break
                assert not ends.passed, "it never came to the end"
                words.catch_up()
                turn()
                time.sleep(0.001)
        self.spoiled += counts["failed_before"] + counts["failed_after"] + splitting.chaos.spoiled
        sink.close()
        words.catch_up()
        self.looked_up = Counter({word: row["n"] for word, row in words.items()})

    def counted(self):
        state = self._state()
        table = state.holds(n=count()).shape.over_lines(self.memory.load(CONTEXT, state.shape))
        return Counter(dict(zip(*(table[name].to_pylist() for name in ("word", "n")), strict=True)))

    @contextmanager
    def _engine(self, splitting, sink):
        """An engine that runs inside the block; each call turns it."""
        with Works(
            splitting, sinks=[sink], exactly_once=self.kind, nodes=self.nodes, log=self.log,
            retries=RETRIES, write_retries=WriteRetries(first_seconds=0, longest_seconds=0),
            batch_rows=self.rng.choice([1, 20, 1_000]), chunk_records=self.rng.choice([2, 7]),
            transaction_records=self.rng.choice([3, 10]),
        ) as works:  # fmt: skip
            yield lambda: works.advance(0.1, step=0.1)

    def _state(self):
        there = MemoryState(beside=self.memory)
        return State("words", key={"word": str}, into=there, layout=self.kind)

    def _has_ended(self):
        places = [Partition("t", number) for number in range(PARTITIONS)]
        stored = [stored_in(self.nodes, place) for place in places]
        ends = [self.log.log_range(place)[1] for place in places]
        return all(stored) and [each.offset for each in stored] == ends


class TroubleOnSpark(Trouble):
    lines = 12

    @contextmanager
    def _engine(self, splitting, sink):
        rng = random.Random(self.rng.random())  # for the executors' threads
        ranges = RangePolicy(rng.choice([6, 20]), 0.002, max_active=rng.choice([1, 2]))
        drives = Driving(
            self.folder, splitting, sinks=[sink], log=self.log, nodes=self.nodes, ranges=ranges,
            opaque=self.kind == "opaque",
        )  # fmt: skip
        run = drives.executors.run

        def losing(name, tasks):
            """Lose tries before they run, or what they came to."""
            if rng.random() < 0.15:
                raise OSError("an executor was lost")
            results = run(name, tasks)
            if rng.random() < 0.1:
                raise OSError("what it had done was lost")
            return results

        drives.executors.run = losing
        with drives:
            yield drives.engine.step


@pytest.fixture
def impatient(monkeypatch):
    """The spark engine tries again at once, and as often as it takes."""
    monkeypatch.setattr(groups, "_FIRST_PAUSE_SECONDS", 0.005)
    monkeypatch.setattr(groups, "_LONGEST_PAUSE_SECONDS", 0.02)
    retries = replace(spark_engine.SETTINGS.retries, limit=RETRIES.limit)
    monkeypatch.setattr(spark_engine, "SETTINGS", replace(spark_engine.SETTINGS, retries=retries))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_each_word_is_counted_once_whatever_fails_in_between(seed, engine, kind, tmp_path):
    """Promises 3 and 14: on Spark also when tries of a range, or what came of them, are lost."""
    trouble = (TroubleOnSpark if engine == "spark" else Trouble)(seed, kind, tmp_path)
    for life in range(LIVES):
        trouble.live(until_its_end=life == LIVES - 1)
    assert trouble.counted() == trouble.published
    assert trouble.looked_up == trouble.published, "what was committed shows"
    assert trouble.spoiled > 0
