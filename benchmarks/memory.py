"""Suite memory: whether memory stays flat over many records, and bytes per pending record."""

import asyncio
import gc
from collections.abc import Callable
from statistics import median

import orjson

from benchmarks.bench import Bench, medians
from benchmarks.child import Figures, Job
from benchmarks.measured import resident_mb, run_headrace
from benchmarks.result import Result, facts, goals, table
from headrace import SKIP, Bolt, Record, Reject, Skip, Topology, bolt
from headrace.sinks import DiscardSink
from partition.kafka.librdkafka import DEFAULTS
from service.app import Service
from service.observability.snapshot import Snapshot

THIRDS = ("first", "middle", "last")
_LOOKS = 30
_HOUR = 3600.0
RECORDS = 10_000_000
WINDOW = 1_000_000
TOPIC = "numbers"
MODULE = "benchmarks.memory"
FLAT = ("noop", "functions")
PENDING = ("behind", "unresolved")
MOST_GROWTH = 1.02  # of the median of the last third of the records, to the third before
_SMALLER = 5  # how much smaller the window is that the large one is held against
COLUMNS = {
    **{f"MB in the {third} third": f"{{mb_{third}:,.0f}}" for third in THIRDS},
    "growth": "{growth:.3f}", "records/s": "{per_second:,.0f}",
}  # fmt: skip


def value(number: int) -> bytes:
    return b'{"n":%d}' % number


def run(bench: Bench) -> Result:
    rounds, records = bench.asked(1, RECORDS)
    large = min(WINDOW, records)
    bench.publish(TOPIC, value, records)
    figures = medians(bench.rounds(MODULE, FLAT, TOPIC, records, rounds=rounds))
    for found in figures.values():
        found["growth"] = found["mb_last"] / found["mb_middle"]
    held = {}
    for window in (large // _SMALLER, large):
        topic = f"{TOPIC}-{window}"
        bench.publish(topic, value, window, partitions=1)
        held[window] = medians(bench.rounds(MODULE, PENDING, topic, window, rounds=rounds))
    pending = {
        name: {
            "bytes_per_pending": _slope(held, name, "held_mb") * 1e6,
            "payload_bytes": _slope(held, name, "payload_bytes"),
        }
        for name in PENDING
    }
    resident = {
        name: [round(found[f"mb_{third}"], 1) for third in THIRDS]
        for name, found in figures.items()
    }
    return Result(
        "memory",
        {
            "records": records,
            "rounds": rounds,
            **facts(figures, open_seconds=3, growth=3),
            "resident_mb": resident,
            "window": large,
            **facts(pending, bytes_per_pending=None, payload_bytes=1),
        },
        [
            table(f"{records:,} records read", figures, COLUMNS),
            table(
                f"{large:,} records pending",
                pending,
                {"bytes each": "{bytes_per_pending:,.0f}", "payload": "{payload_bytes:.0f}"},
            ),
        ],
        goals(figures, "growth", dict.fromkeys(FLAT, MOST_GROWTH), at_most=True),
    )


def _slope(held: dict[int, dict[str, dict[str, float]]], name: str, key: str) -> float:
    small, large = sorted(held)
    return (held[large][name][key] - held[small][name][key]) / (large - small)


class Looks:
    """Resident memory each time that another thirtieth of the records has been read."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._found: list[float] = []

    def __call__(self, _service: Service, snapshot: Snapshot) -> None:
        """Note it for all thirtieths that have been passed since the last snapshot."""
        passed = min(_LOOKS, snapshot.read * _LOOKS // self._records)
        self._found += [resident_mb()] * (passed - len(self._found))

    @property
    def figures(self) -> Figures:
        size = len(self._found) // len(THIRDS)
        parts = (self._found[number * size :][:size] for number in range(len(THIRDS)))
        return {f"mb_{name}": median(part) for name, part in zip(THIRDS, parts, strict=True)}


@bolt
def pass_on(record: Record) -> Record:
    return record


@bolt
def number_of(record: Record) -> int:
    try:
        number: int = orjson.loads(record.value or b"")["n"]
    except (orjson.JSONDecodeError, TypeError, KeyError) as error:
        raise Reject(f"no number: {error}") from error
    return number


@bolt
def keep_even(number: int) -> int | Skip:
    return SKIP if number & 1 else number


@bolt
def to_row(number: int) -> dict[str, int]:
    return {"n": number}


def noop(job: Job) -> Figures:
    topology = Topology("memory-noop")
    topology.source(job.topic).then(pass_on).into(DiscardSink())
    return _watched(topology, job)


def functions(job: Job) -> Figures:
    topology = Topology("memory-functions")
    topology.source(job.topic).then(number_of).then(keep_even).then(to_row).into(DiscardSink())
    return _watched(topology, job)


def _watched(topology: Topology, job: Job) -> Figures:
    looks = Looks(job.records)
    found = run_headrace(topology, job, kafka=DEFAULTS, on_snapshot=looks)
    return {**found, **looks.figures}


@bolt
def first_only(record: Record) -> Record | Skip:
    return record if record.offset == 0 else SKIP


class Hold(Bolt[Record, Record]):
    """Holds the one record that it is given until `release`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._released = asyncio.Event()

    async def process(self, record: Record, /) -> Record:
        self._loop = asyncio.get_running_loop()
        await self._released.wait()
        return record

    def release(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._released.set)


def behind(job: Job) -> Figures:
    """The first record never ends; all others are resolved and wait behind it."""
    hold = Hold()
    topology = Topology("memory-behind")
    records = topology.source(job.topic)
    records.then(first_only).then(hold, timeout_seconds=_HOUR).into(
        DiscardSink(), batch_seconds=0.1
    )
    records.then(pass_on).into(DiscardSink(), batch_seconds=0.1)
    found: Figures = {}

    def taken(service: Service, snapshot: Snapshot) -> None:
        if not found and snapshot.read == job.records and snapshot.acker.in_flight == 1:
            found.update(_held(snapshot))
            hold.release()
            service.stop()

    return {**_windowed(topology, job, taken), **found}


def unresolved(job: Job) -> Figures:
    """All records are in the batch of a sink that is not due."""
    topology = Topology("memory-unresolved")
    huge = job.records * 1_000
    topology.source(job.topic).then(pass_on).into(
        DiscardSink(), batch_rows=huge, batch_bytes=huge, batch_seconds=_HOUR
    )
    found: Figures = {}

    def taken(service: Service, snapshot: Snapshot) -> None:
        if not found and snapshot.acker.in_flight == job.records:
            found.update(_held(snapshot))
            service.stop()

    return {**_windowed(topology, job, taken), **found}


def _held(snapshot: Snapshot) -> Figures:
    gc.collect()
    return {
        "held_mb": resident_mb(),
        "payload_bytes": sum(part.pending_bytes for part in snapshot.partitions),
    }


def _windowed(topology: Topology, job: Job, taken: Callable[[Service, Snapshot], None]) -> Figures:
    window = {
        "max_pending": 2 * job.records,
        "max_pending_bytes": 1_000 * job.records,
        "message_timeout_seconds": _HOUR,
    }
    return run_headrace(
        topology, job, kafka=DEFAULTS, pipeline=window, on_snapshot=taken, until_caught_up=False
    )


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "noop": noop,
    "functions": functions,
    "behind": behind,
    "unresolved": unresolved,
}
