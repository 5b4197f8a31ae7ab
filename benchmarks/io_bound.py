"""Suite io: records that wait 10 ms each, many at once, without and with very slow ones."""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import uvloop

from benchmarks.bench import Bench, medians
from benchmarks.child import Figures, Job
from benchmarks.measured import run_headrace
from benchmarks.orders import Orders
from benchmarks.result import Goal, Result, facts, table
from headrace import Bolt, Record, Topology
from headrace.sinks import DiscardSink
from partition.kafka.librdkafka import DEFAULTS

FAST_SECONDS = 0.01
SLOW_ONE_IN = 1_000
MAX_PENDING = 400_000  # a window must hold what overtakes a slow record
_SLOW, _FAST = b"slow", b"fast"
_TIMED_ONE_IN = 16
RECORDS = 1_200_000  # of the largest run; the others take less time with fewer
ROUNDS = 3
SLOW_SECONDS = 10.0
MODULE = "benchmarks.io_bound"
NAMES = ("bare", "headrace")  # the first runs once: it changes little, and takes as long
OURS = ("headrace",)
LEAST = 0.9  # of the ideal rate
MOST_SLOWER = 1.1  # the median of the fast calls beside slow ones, to that without


COLUMNS = {
    "calls/s": "{per_second:,.0f}", "of the ideal": "{share:.3f}", "CPU µs/call": "{cpu_us:.1f}",
    "fast p50 ms": "{fast_p50_ms:.1f}", "fast p99 ms": "{fast_p99_ms:.1f}",
}  # fmt: skip


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


def run(bench: Bench) -> Result:
    rounds = bench.options.rounds or ROUNDS
    figures = {case.name: _measure(bench, case, rounds) for case in CASES}
    every = {
        f"{name}, {case} in flight": found
        for case, both in figures.items()
        for name, found in both.items()
    }
    ours = {case: both["headrace"] for case, both in figures.items()}
    slower = {
        case.in_flight: ours[case.name]["fast_p50_ms"] / ours[f"{case.in_flight:,}"]["fast_p50_ms"]
        for case in CASES
        if case.slow
    }
    shares = {case: facts(both, share=3)["share"] for case, both in figures.items()}
    rounded = facts(ours, records=None, cpu_us=2, fast_p50_ms=2, fast_p99_ms=2)
    return Result(
        "io",
        {"rounds": rounds, "of_ideal": shares, **rounded},
        [table(f"Medians of {rounds} rounds, `bare` of one", every, COLUMNS)],
        [
            *(Goal(f"{case} in flight: rate", ours[case]["share"], LEAST) for case in ours),
            *(
                Goal(
                    f"{n:,} in flight: fast calls beside slow ones", each, MOST_SLOWER, at_most=True
                )
                for n, each in slower.items()
            ),
        ],
    )


def _measure(bench: Bench, case: Case, rounds: int) -> dict[str, Figures]:
    options = bench.options
    count = int((options.records or RECORDS) * case.part)
    slow_seconds = (options.slow_seconds or SLOW_SECONDS) if case.slow else 0.0
    topic = f"io-{case.in_flight}-{'slow' if case.slow else 'uniform'}"
    orders = Orders()
    bench.publish(topic, lambda n: kind(n, with_slow=case.slow) + orders.value(n), count)
    told = {"in_flight": case.in_flight, "slow_seconds": slow_seconds}
    runs: dict[str, list[Figures]] = {name: [] for name in NAMES}
    for turn in range(rounds):
        for name in NAMES if turn == 0 else OURS:
            bench.progress.step(f"round {turn + 1}: {name}, {case.name} in flight")
            runs[name].append(bench.run(MODULE, name, topic, count, options=told))
    seconds = (
        slow_seconds if case.slow and is_slow(number) else FAST_SECONDS for number in range(count)
    )
    ideal = count / ideal_seconds(seconds, case.in_flight)
    figures = medians(runs)
    for found in figures.values():
        found["per_second"] = count / found["start_seconds"]
        found["share"] = found["per_second"] / ideal
    return figures


def is_slow(number: int) -> bool:
    """Whether a record is one of the slow ones: one in each thousand, on all partitions alike."""
    block, place = divmod(number, SLOW_ONE_IN)
    return place == block * 251 % SLOW_ONE_IN


def kind(number: int, *, with_slow: bool) -> bytes:
    """Return the prefix of a record's value, which says how long its call waits."""
    return _SLOW if with_slow and is_slow(number) else _FAST


def ideal_seconds(seconds: Iterator[float], workers: int) -> float:
    """When the last of these calls would start if workers took them in order and lost no time.

    For equal calls that is their number, by the workers, times their seconds.
    """
    free = [0.0] * workers
    starts = 0.0
    for each in seconds:
        starts = free[0]
        heapq.heapreplace(free, starts + each)
    return starts


class Wait(Bolt[Record, Record]):
    """Waits as long as the record says, and keeps times."""

    def __init__(self, slow_seconds: float) -> None:
        self._slow_seconds = slow_seconds
        self._calls = 0
        self.first_start = 0.0
        self.last_start = 0.0
        self.fast: list[float] = []  # seconds of some of the fast calls

    async def process(self, record: Record, /) -> Record:
        self._calls += 1
        started = self.last_start = time.monotonic()
        if self._calls == 1:
            self.first_start = started
        if (record.value or b"").startswith(_SLOW):
            await asyncio.sleep(self._slow_seconds)
        elif self._calls % _TIMED_ONE_IN:
            await asyncio.sleep(FAST_SECONDS)
        else:
            await asyncio.sleep(FAST_SECONDS)
            self.fast.append(time.monotonic() - started)
        return record

    def figures(self) -> Figures:
        ordered = sorted(self.fast)
        return {
            "start_seconds": self.last_start - self.first_start,
            "fast_p50_ms": 1e3 * ordered[len(ordered) // 2],
            "fast_p99_ms": 1e3 * ordered[len(ordered) * 99 // 100],
        }


def headrace(job: Job) -> Figures:
    wait = Wait(job.options["slow_seconds"])
    topology = Topology("io")
    topology.source(job.topic).then(wait, workers=int(job.options["in_flight"])).into(
        DiscardSink(), batch_seconds=0.2
    )
    window = {"max_pending": MAX_PENDING}
    return {**run_headrace(topology, job, kafka=DEFAULTS, pipeline=window), **wait.figures()}


class _Made:
    """A record of the bare variant; nothing asks for its place."""

    partition = offset = 0

    def __init__(self, value: bytes) -> None:
        self.value = value


def bare(job: Job) -> Figures:
    wait = Wait(job.options["slow_seconds"])
    with_slow = bool(job.options["slow_seconds"])
    left = (_Made(kind(number, with_slow=with_slow)) for number in range(job.records))

    async def work() -> None:
        for record in left:
            await wait.process(record)  # type: ignore[arg-type]  # only its value is asked for

    async def work_all() -> None:
        await asyncio.gather(*(work() for _worker in range(int(job.options["in_flight"]))))

    cpu = time.process_time()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work_all())
    cpu_us = (time.process_time() - cpu) / job.records * 1e6
    return {"records": job.records, "cpu_us": cpu_us, **wait.figures()}


VARIANTS: dict[str, Callable[[Job], Figures]] = {"bare": bare, "headrace": headrace}
