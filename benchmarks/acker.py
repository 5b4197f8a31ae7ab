"""Suite acker: bytes per tree in flight, and time per tree, in batches.

A tree's life is begin, init with one edge, ack of that edge, and its share of the `drain`
of its batch. Every variant runs once per round, in turn; medians of the rounds count. No
server is needed.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from acker.acker import Acker
from benchmarks.bench import Bench
from benchmarks.result import Result, Table

IN_FLIGHT = 1_000_000
BATCHES = (1_000, 4_000)
ROUNDS = 9
TREES = 200_000  # per round of a variant
_PLACE = 3 << 48  # an owner is a partition's place and an offset


def run(bench: Bench) -> Result:
    options = bench.options
    trees = options.trees or TREES
    in_flight = options.in_flight or IN_FLIGHT
    rounds = options.rounds or ROUNDS
    held = bytes_per_tree(in_flight)
    variants: dict[str, Callable[[], float]] = {
        f"batch_{size}": partial(batch_ns, size, trees) for size in BATCHES
    }
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _round in range(rounds):
        for name, measure in variants.items():
            found[name].append(measure())
    figures = {name: statistics.median(values) for name, values in found.items()}
    rows = [(name, f"{nanoseconds:.0f}") for name, nanoseconds in figures.items()]
    title = f"begin, init, ack, drain; medians of {rounds} rounds"
    return Result(
        "acker",
        {
            "rounds": rounds,
            "in_flight": in_flight,
            "bytes_per_tree": round(held, 2),
            "ns_per_tree": {name: round(value, 1) for name, value in figures.items()},
        },
        [Table(title, ("variant", "ns/tree"), rows)],
        notes=f"{held:.2f} bytes per tree with {in_flight:,} in flight.",
    )


def bytes_per_tree(in_flight: int, batch: int = 1_000) -> float:
    """Return the bytes per tree of an acker that has grown from its default size."""
    acker = Acker(timeout_seconds=30)
    for first in range(0, in_flight, batch):
        owners = np.arange(first, min(first + batch, in_flight), dtype=np.int64)
        acker.init(acker.begin(owners + _PLACE), np.ones(len(owners), np.uint64))
    statistics_now = acker.statistics()
    return statistics_now.bytes_held / statistics_now.in_flight


def batch_ns(size: int, trees: int) -> float:
    acker = Acker(timeout_seconds=30)
    rng = np.random.default_rng(1)
    owners = _PLACE + np.arange(size, dtype=np.int64)
    edges = rng.integers(1, 2**64, size, np.uint64)
    batches = max(trees // size, 1)
    started = time.perf_counter()
    for _batch in range(batches):
        handles = acker.begin(owners)
        acker.init(handles, edges)
        acker.ack(handles, edges)
        acker.drain()
    seconds = time.perf_counter() - started
    if acker.statistics().acked != batches * size:
        raise SystemExit("not every tree was acked")
    return seconds / (batches * size) * 1e9
