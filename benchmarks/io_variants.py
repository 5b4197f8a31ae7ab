"""The variants of suite io: every record waits, most of them 10 ms, some much longer.

`bare` is what is possible on this machine at all: persistent workers on one event loop that
take records from a list. `headrace` is an async bolt with as many workers.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator

import uvloop

from benchmarks.job import Figures, Job
from benchmarks.measured import run_headrace
from headrace import Bolt, Record, Topology
from headrace.sinks import DiscardSink
from partition.kafka.librdkafka import DEFAULTS

FAST_SECONDS = 0.01
SLOW_ONE_IN = 1_000
MAX_PENDING = 400_000  # a window must hold what overtakes a slow record
_SLOW, _FAST = b"slow", b"fast"
_TIMED_ONE_IN = 16


def is_slow(number: int) -> bool:
    """Whether a record is one of the slow ones: one in each thousand, on all partitions alike."""
    block, place = divmod(number, SLOW_ONE_IN)
    return place == block * 251 % SLOW_ONE_IN


def kind(number: int, *, with_slow: bool) -> bytes:
    """How a record's value begins: what says how long its call waits."""
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
        self.slow: list[tuple[int, int, float]] = []  # partition, offset, monotonic end

    async def process(self, record: Record, /) -> Record:
        """Wait."""
        self._calls += 1
        started = self.last_start = time.monotonic()
        if self._calls == 1:
            self.first_start = started
        if (record.value or b"").startswith(_SLOW):
            await asyncio.sleep(self._slow_seconds)
            self.slow.append((record.partition, record.offset, time.monotonic()))
        elif self._calls % _TIMED_ONE_IN:
            await asyncio.sleep(FAST_SECONDS)
        else:
            await asyncio.sleep(FAST_SECONDS)
            self.fast.append(time.monotonic() - started)
        return record

    def figures(self) -> Figures:
        """What the suite wants to know, after the run."""
        ordered = sorted(self.fast)
        return {
            "start_seconds": self.last_start - self.first_start,
            "fast_p50_ms": 1e3 * ordered[len(ordered) // 2],
            "fast_p99_ms": 1e3 * ordered[len(ordered) * 99 // 100],
            "slow": self.slow,
        }


def headrace(job: Job) -> Figures:
    """An async bolt."""
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
    """Workers on an event loop, and nothing else."""
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
    return {"records": job.records, "cpu_us": cpu_us, **wait.figures(), "slow": []}


VARIANTS: dict[str, Callable[[Job], Figures]] = {"bare": bare, "headrace": headrace}
