"""Suite acker: bytes per tree in flight, and time per tree, in batches.

A tree's life is begin, init with one edge, ack of that edge, and its share of the `drain`
of its batch. Every variant runs once per round, in turn; medians of the rounds count. No
server is needed.
"""

import statistics
import time

import numpy as np

from acker.acker import Acker
from benchmarks.bench import Bench
from benchmarks.result import Result, facts, table

IN_FLIGHT = 1_000_000
BATCHES = (1_000, 4_000)
ROUNDS = 9
TREES = 200_000  # per round of a variant
_PLACE = 3 << 48  # an owner is a partition's place and an offset


def run(bench: Bench) -> Result:
    options, rounds = bench.options, bench.options.rounds or ROUNDS
    trees = options.trees or TREES
    in_flight = options.in_flight or IN_FLIGHT
    held = bytes_per_tree(in_flight)
    found: dict[str, list[float]] = {f"batch_{size}": [] for size in BATCHES}
    for _round in range(rounds):
        for size in BATCHES:
            found[f"batch_{size}"].append(batch_ns(size, trees))
    figures = {
        name: {"ns_per_tree": statistics.median(each), "bytes": held}
        for name, each in found.items()
    }
    columns = {"ns/tree": "{ns_per_tree:.0f}", "bytes/tree in flight": "{bytes:.2f}"}
    sizes = {"in_flight": in_flight, "bytes_per_tree": round(held, 2)}
    return Result(
        "acker",
        {"rounds": rounds, **sizes, **facts(figures, ns_per_tree=1)},
        [table(f"begin, init, ack, drain; medians of {rounds} rounds", figures, columns)],
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
