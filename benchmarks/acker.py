"""Suite acker: bytes per tree in flight, and time per tree, in batches and one by one.

A tree's life is begin, init with one edge, ack of that edge, and its share of the `drain`
of its batch. Every variant runs once per round, in turn; medians of the rounds count. No
server is needed.
"""

import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from acker.acker import Acker
from benchmarks.bench import Bench
from benchmarks.dictionary_acker import DictionaryAcker
from benchmarks.result import Result, Table

IN_FLIGHT = 1_000_000
BATCHES = (1_000, 4_000)
SINGLES_IN_FLIGHT = 1_000
ROUNDS = 9
TREES = 200_000  # per round of a batch variant; a quarter of them one by one
_DRAIN_EVERY = 1_000  # trees, one by one
_PLACE = 3 << 48  # an owner is a partition's place and an offset


def run(bench: Bench) -> Result:
    """Measure."""
    options = bench.options
    trees = options.trees or TREES
    in_flight = options.in_flight or IN_FLIGHT
    rounds = options.rounds or ROUNDS
    held = bytes_per_tree(in_flight)
    ones = Ones(max(trees // 4, 2 * SINGLES_IN_FLIGHT))
    variants: dict[str, Callable[[], float]] = {
        f"batch_{size}": partial(batch_ns, size, trees) for size in BATCHES
    }
    variants["single"] = ones.acker_ns
    variants["dictionary"] = ones.dictionary_ns
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _round in range(rounds):
        for name, measure in variants.items():
            found[name].append(measure())
    figures = {name: statistics.median(values) for name, values in found.items()}
    ratio = statistics.median(
        one / other for one, other in zip(found["single"], found["dictionary"], strict=True)
    )
    rows = [(name, f"{nanoseconds:.0f}") for name, nanoseconds in figures.items()]
    title = f"begin, init, ack, drain; medians of {rounds} rounds"
    return Result(
        "acker",
        {
            "rounds": rounds,
            "in_flight": in_flight,
            "bytes_per_tree": round(held, 2),
            "ns_per_tree": {name: round(value, 1) for name, value in figures.items()},
            "single_to_dictionary": round(ratio, 3),
        },
        [Table(title, ("variant", "ns/tree"), rows)],
        notes=f"{held:.2f} bytes per tree with {in_flight:,} in flight. One by one, the acker "
        f"takes {ratio:.2f} of a plain dictionary's time.",
    )


def bytes_per_tree(in_flight: int, batch: int = 1_000) -> float:
    """What an acker holds per tree after it has grown from its default size."""
    acker = Acker(timeout_seconds=30)
    for first in range(0, in_flight, batch):
        owners = np.arange(first, min(first + batch, in_flight), dtype=np.int64)
        acker.init(acker.begin(owners + _PLACE), np.ones(len(owners), np.uint64))
    statistics_now = acker.statistics()
    return statistics_now.bytes_held / statistics_now.in_flight


def batch_ns(size: int, trees: int) -> float:
    """Nanoseconds per tree, in batches of so many."""
    acker = Acker(timeout_seconds=30)
    rng = np.random.default_rng(1)
    owners = _PLACE + np.arange(size, dtype=np.int64)
    edges = rng.integers(1, 2**64, size, np.uint64)
    batches = max(trees // size, 1)
    started = time.perf_counter()
    for _batch in range(batches):
        handles = acker.begin(owners)
        acker.init(handles, edges)
        acker.ack(handles, edges, distinct=True)
        acker.drain()
    seconds = time.perf_counter() - started
    if acker.statistics().acked != batches * size:
        raise SystemExit("not every tree was acked")
    return seconds / (batches * size) * 1e9


class Ones:
    """Trees one by one, a thousand of them in flight, through either acker."""

    def __init__(self, trees: int) -> None:
        rng = random.Random(1)  # noqa: S311 - edges need be no secrets
        self._roots = [rng.getrandbits(63) for _ in range(trees)]
        self._edges = [rng.getrandbits(64) | 1 for _ in range(trees)]
        self._owners = [_PLACE + offset for offset in range(trees)]

    def acker_ns(self) -> float:
        """Nanoseconds per tree by the single calls, with a `drain` every thousand trees."""
        acker = Acker(timeout_seconds=30)
        begin, init, ack, drain = acker.begin_one, acker.init_one, acker.ack_one, acker.drain
        edges, behind = self._edges, SINGLES_IN_FLIGHT
        handles = []
        started = time.perf_counter()
        for place, owner in enumerate(self._owners):
            tree = begin(owner)
            handles.append(tree)
            init(tree, edges[place])
            if place >= behind:
                ack(handles[place - behind], edges[place - behind])
                if not place % _DRAIN_EVERY:
                    drain()
        for place in range(len(edges) - behind, len(edges)):
            ack(handles[place], edges[place])
        drain()
        return self._ns(started, acker.statistics().acked)

    def dictionary_ns(self) -> float:
        """The same with the dictionary; its results are forgotten every thousand trees."""
        acker = DictionaryAcker()
        begin, init, ack = acker.begin, acker.init, acker.ack
        edges, roots, behind, acked = self._edges, self._roots, SINGLES_IN_FLIGHT, 0
        handles = []
        started = time.perf_counter()
        for place, owner in enumerate(self._owners):
            root = roots[place]
            begin(root, owner)
            handles.append(root)
            init(root, edges[place])
            if place >= behind:
                ack(handles[place - behind], edges[place - behind])
                if not place % _DRAIN_EVERY:
                    acked += len(acker.acked)
                    acker.acked.clear()
        for place in range(len(edges) - behind, len(edges)):
            ack(handles[place], edges[place])
        return self._ns(started, acked + len(acker.acked))

    def _ns(self, started: float, acked: int) -> float:
        seconds = time.perf_counter() - started
        if acked != len(self._edges):
            raise SystemExit("not every tree was acked")
        return seconds / acked * 1e9
