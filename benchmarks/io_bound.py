"""Suite io: records that wait 10 ms each, many at once, without and with very slow ones."""

from typing import NamedTuple

from benchmarks.bench import Bench, medians
from benchmarks.io_variants import (
    FAST_SECONDS,
    MAX_PENDING,
    SLOW_ONE_IN,
    ideal_seconds,
    is_slow,
    kind,
)
from benchmarks.job import Figures
from benchmarks.orders import Orders
from benchmarks.publishing import PARTITIONS
from benchmarks.result import Goal, Result, Table
from benchmarks.watch import Watch, passed, stood_at

RECORDS = 1_200_000  # of the largest run; the others take less time with fewer
ROUNDS = 3
SLOW_SECONDS = 10.0
MODULE = "benchmarks.io_variants"
VARIANTS = ("bare", "headrace")  # the first runs once: it changes little, and takes as long
OURS = ("headrace",)
LEAST = 0.9  # of the ideal rate
MOST_SLOWER = 1.1  # the median of the fast calls beside slow ones, to that without
NOTES = f"""\
Each record is a call that waits 10 ms; in the runs named `slow` one record in {SLOW_ONE_IN:,}
waits 10 s, and so holds half of the workers. The ideal is workers that take the records in order
and lose no time between calls; the rate is that from the first call's start to the last one's.
`bare` is persistent workers on a uvloop event loop that take records from a list: what is
possible on this machine. The configuration is the default one, but for `max_pending`, which is
{MAX_PENDING:,}: the window must hold what overtakes a slow record. The stored offsets are read
from ZooKeeper while it runs, several times a second, and compared with the times at which the
slow calls ended."""


class Case(NamedTuple):
    """So many calls at once, with or without slow ones; `part` of the records."""

    name: str
    in_flight: int
    slow: bool
    part: float


CASES = (
    Case("100", 100, slow=False, part=0.05),
    Case("100 slow", 100, slow=True, part=0.1),
    Case("1,000", 1_000, slow=False, part=0.5),
    Case("1,000 slow", 1_000, slow=True, part=1.0),
)


Found = dict[str, dict[str, float]]  # by variant


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    figures = {case.name: _measure(bench, case, rounds) for case in CASES}
    rows = [
        (
            f"{name}, {case} in flight",
            f"{found['per_second']:,.0f}",
            f"{found['share']:.3f}",
            f"{found['cpu_us']:.1f}",
            f"{found['fast_p50_ms']:.1f}",
            f"{found['fast_p99_ms']:.1f}",
        )
        for case, both in figures.items()
        for name, found in both.items()
    ]
    columns = ("variant", "calls/s", "of the ideal", "CPU µs/call", "fast p50 ms", "fast p99 ms")
    ours = {case: both["headrace"] for case, both in figures.items()}
    looks = sum(int(found["looks"]) for found in ours.values())
    stood = sum(int(found["stood"]) for found in ours.values())
    too_early = sum(int(found["passed"]) for found in ours.values())
    looked = Table(
        "Stored offsets, all rounds",
        ("looks", "stood at a slow record", "past a slow record that had not ended"),
        [(f"{looks:,}", f"{stood:,}", f"{too_early:,}")],
    )
    slower = {
        case.in_flight: ours[case.name]["fast_p50_ms"] / ours[f"{case.in_flight:,}"]["fast_p50_ms"]
        for case in CASES
        if case.slow
    }
    return Result(
        "io",
        {
            "rounds": rounds,
            "records": {case: int(found["records"]) for case, found in ours.items()},
            "of_ideal": {
                case: {name: round(found["share"], 3) for name, found in both.items()}
                for case, both in figures.items()
            },
            "cpu_us": {case: round(found["cpu_us"], 2) for case, found in ours.items()},
            "fast_p50_ms": {case: round(found["fast_p50_ms"], 2) for case, found in ours.items()},
            "fast_p99_ms": {case: round(found["fast_p99_ms"], 2) for case, found in ours.items()},
            "looks": looks,
            "stood_at_slow": stood,
            "passed_slow": too_early,
        },
        [Table(f"Medians of {rounds} rounds, `bare` of one", columns, rows), looked],
        [
            *(Goal(f"{case} in flight: rate", ours[case]["share"], LEAST) for case in ours),
            *(
                Goal(
                    f"{count:,} in flight: fast calls beside slow ones",
                    ratio,
                    MOST_SLOWER,
                    at_most=True,
                )
                for count, ratio in slower.items()
            ),
            Goal("offsets past a slow record", too_early, 0, at_most=True),
        ],
        NOTES,
    )


def _measure(bench: Bench, case: Case, rounds: int) -> Found:
    """Both variants of a case; `looks`, `stood` and `passed` are sums."""
    options = bench.options
    count = int((options.records or RECORDS) * case.part)
    slow_seconds = (options.slow_seconds or SLOW_SECONDS) if case.slow else 0.0
    topic = f"io-{case.in_flight}-{'slow' if case.slow else 'uniform'}"
    orders = Orders()
    bench.publish(topic, lambda n: kind(n, with_slow=case.slow) + orders.value(n), count)
    told = {"in_flight": case.in_flight, "slow_seconds": slow_seconds}
    runs: dict[str, list[Figures]] = {name: [] for name in VARIANTS}
    for turn in range(rounds):
        for name in VARIANTS if turn == 0 else OURS:
            bench.progress.step(f"round {turn + 1}: {name}, {case.name} in flight")
            with Watch(bench.servers.zookeeper.address, PARTITIONS) as watch:
                looks = watch if case.slow and name == "headrace" else None
                found = bench.run(MODULE, name, topic, count, options=told, meanwhile=looks)
            found["looks"] = len(watch.looks)
            found["stood"] = stood_at(watch.looks, found["slow"])
            found["passed"] = len(passed(watch.looks, found["slow"]))
            runs[name].append(found)
    seconds = (
        slow_seconds if case.slow and is_slow(number) else FAST_SECONDS for number in range(count)
    )
    ideal = count / ideal_seconds(seconds, case.in_flight)
    figures = {}
    for name, each in runs.items():
        figures[name] = found = medians(each)
        found["per_second"] = count / found["start_seconds"]
        found["share"] = found["per_second"] / ideal
        for key in ("looks", "stood", "passed"):
            found[key] = sum(run[key] for run in each)
    return figures
