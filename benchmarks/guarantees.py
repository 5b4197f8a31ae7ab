"""Suite guarantees: what exactly once costs against at least once, on the same sink.

They differ by less than one run does from the next, so both run many times, in turn.
"""

from collections.abc import Callable
from functools import partial

from benchmarks.bench import Bench
from benchmarks.child import Figures, Job
from benchmarks.orders import Orders
from benchmarks.result import COMPARED, Goal, Result, compared, compared_facts, table
from benchmarks.tables import local

RECORDS = 2_000_000
ROUNDS = 9
TOPIC = "orders-guarantees"
MODULE = "benchmarks.guarantees"
AGAINST = {"exactly_once": "at_least_once"}
NAMES = ("at_least_once", "exactly_once")
LEAST_KEPT = 0.9  # of the rate


def run(bench: Bench) -> Result:
    rounds, records = bench.asked(ROUNDS, RECORDS)
    bench.publish(TOPIC, Orders().value, records)
    figures = compared(bench.rounds(MODULE, NAMES, TOPIC, records, rounds=rounds), AGAINST)
    kept = figures["exactly_once"]["ratio"]
    cost = {"exactly_once_cost": round(1 - kept, 3)}
    return Result(
        "guarantees",
        {"records": records, "rounds": rounds, **compared_facts(figures), **cost},
        [table(f"{records:,} records, medians of {rounds} rounds", figures, COMPARED)],
        [Goal("exactly once: rate of at least once", kept, LEAST_KEPT)],
    )


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "at_least_once": partial(local, flow="vectorised", reliability="at-least-once"),
    "exactly_once": partial(local, flow="vectorised"),
}
