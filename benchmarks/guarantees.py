"""Suite guarantees: what exactly once costs against at least once, on the same sink.

They differ by less than one run does from the next, so both run many times, in turn.
"""

from collections.abc import Callable
from functools import partial

from benchmarks.bench import Bench
from benchmarks.child import Figures, Job
from benchmarks.orders import Orders
from benchmarks.result import Comparison, Goal, Result
from benchmarks.tables import WORK, local

RECORDS = 2_000_000
ROUNDS = 9
TOPIC = "orders-guarantees"
MODULE = "benchmarks.guarantees"
AGAINST = {"exactly_once": "at_least_once"}
NAMES = ("at_least_once", "exactly_once")
LEAST_KEPT = 0.9  # of the rate
NOTES = f"""\
{WORK}

Both are the local engine with two vectorised bolts, into a Delta table of its own that is there
and empty. Rates and CPU are as in suite `tables`. One run takes a few
seconds, and differs from the next by more than the guarantees do: hence the {ROUNDS} rounds."""


def run(bench: Bench) -> Result:
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, Orders().value, records)
    runs = bench.rounds(MODULE, NAMES, TOPIC, records, rounds=rounds)
    found = Comparison(runs, AGAINST)
    kept = found.ratio["exactly_once"]
    return Result(
        "guarantees",
        {
            "records": records,
            "rounds": rounds,
            **found.facts,
            "exactly_once_cost": round(1 - kept, 3),
        },
        [found.table(f"{records:,} records, medians of {rounds} rounds")],
        [Goal("exactly once: rate of at least once", kept, LEAST_KEPT)],
        NOTES,
    )


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "at_least_once": partial(local, flow="vectorised", reliability="at-least-once"),
    "exactly_once": partial(local, flow="vectorised"),
}
