"""Suite memory: whether memory stays flat over many records, and bytes per pending record."""

import asyncio
import gc
from collections.abc import Callable
from statistics import median

import orjson

from benchmarks.bench import Bench, medians, opened
from benchmarks.child import Figures, Job
from benchmarks.measured import resident_mb, run_headrace
from benchmarks.result import Goal, Result, Table
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
NOTES = """\
Records are JSON of about 13 bytes, the configuration is the default one. Resident memory is looked
at thirty times; growth is the median of the last third of the looks to that of the third before,
for in the first the client's queues and the allocators' pools fill. A pending record's
bytes are the resident memory that a window of a million takes more than one of a fifth, divided
by the records it has more: payload, librdkafka's and Python's message, offset, state, and for
`unresolved` the row in the batch, tree and edge. `behind` is a window of records that are done,
behind one that is not."""


def value(number: int) -> bytes:
    return b'{"n":%d}' % number


def run(bench: Bench) -> Result:
    rounds = bench.options.rounds or 1
    records = bench.options.records or RECORDS
    large = min(WINDOW, records)
    bench.publish(TOPIC, value, records)
    flat = bench.rounds(MODULE, FLAT, TOPIC, records, rounds=rounds)
    figures = {name: medians(found) for name, found in flat.items()}
    held = {}
    for window in (large // _SMALLER, large):
        topic = f"{TOPIC}-{window}"
        bench.publish(topic, value, window, partitions=1)
        runs = bench.rounds(MODULE, PENDING, topic, window, rounds=rounds)
        held[window] = {name: medians(found) for name, found in runs.items()}
    per_record = {name: _slope(held, name, "held_mb") * 1e6 for name in PENDING}
    payload = {name: _slope(held, name, "payload_bytes") for name in PENDING}
    growth = {name: found[mark("last")] / found[mark("middle")] for name, found in figures.items()}
    flat_rows = [
        (
            name,
            *(f"{found[mark(third)]:,.0f}" for third in THIRDS),
            f"{growth[name]:.3f}",
            f"{found['per_second']:,.0f}",
        )
        for name, found in figures.items()
    ]
    pending_rows = [
        (name, f"{bytes_each:,.0f}", f"{payload[name]:.0f}")
        for name, bytes_each in per_record.items()
    ]
    marks = [f"MB in the {third} third" for third in THIRDS]
    return Result(
        "memory",
        {
            "records": records,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "resident_mb": {
                name: [round(found[mark(third)], 1) for third in THIRDS]
                for name, found in figures.items()
            },
            "growth": {name: round(value, 3) for name, value in growth.items()},
            "window": large,
            "bytes_per_pending": {name: round(value) for name, value in per_record.items()},
            "payload_bytes": {name: round(value, 1) for name, value in payload.items()},
        },
        [
            Table(
                f"{records:,} records read",
                ("variant", *marks, "growth", "records/s"),
                flat_rows,
            ),
            Table(f"{large:,} records pending", ("variant", "bytes each", "payload"), pending_rows),
        ],
        [Goal(f"{name}: growth", growth[name], MOST_GROWTH, at_most=True) for name in FLAT],
        NOTES,
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
        return {mark(name): median(part) for name, part in zip(THIRDS, parts, strict=True)}


def mark(third: str) -> str:
    return f"mb_{third}"


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
