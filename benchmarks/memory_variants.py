"""The variants of suite memory: whether it stays flat, and what a pending record takes.

`noop` and `functions` read everything with the default configuration; resident memory is
noted on the way. `behind` and `unresolved` fill a window and stop: behind one record that
never ends, and in the batch of a sink that is not due.
"""

import asyncio
import gc
from collections.abc import Callable
from statistics import median

import orjson

from benchmarks.job import Figures, Job
from benchmarks.measured import resident_mb, run_headrace
from headrace import SKIP, Bolt, Record, Reject, Skip, Topology, bolt
from headrace.sinks import DiscardSink
from partition.kafka.librdkafka import DEFAULTS
from service.app import Service
from service.snapshot import Snapshot

THIRDS = ("first", "middle", "last")
_LOOKS = 30
_HOUR = 3600.0


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
        """The median of each third."""
        size = len(self._found) // len(THIRDS)
        parts = (self._found[number * size :][:size] for number in range(len(THIRDS)))
        return {mark(name): median(part) for name, part in zip(THIRDS, parts, strict=True)}


def mark(third: str) -> str:
    """The name of a third's figure."""
    return f"mb_{third}"


@bolt
def pass_on(record: Record) -> Record:
    """Do nothing."""
    return record


@bolt
def number_of(record: Record) -> int:
    """Read a record."""
    try:
        number: int = orjson.loads(record.value or b"")["n"]
    except (orjson.JSONDecodeError, TypeError, KeyError) as error:
        raise Reject(f"no number: {error}") from error
    return number


@bolt
def keep_even(number: int) -> int | Skip:
    """Drop every second."""
    return SKIP if number & 1 else number


@bolt
def to_row(number: int) -> dict[str, int]:
    """Make a row."""
    return {"n": number}


def noop(job: Job) -> Figures:
    """One bolt that does nothing, the default configuration."""
    topology = Topology("memory-noop")
    topology.source(job.topic).then(pass_on).into(DiscardSink())
    return _watched(topology, job)


def functions(job: Job) -> Figures:
    """Parse, filter and make a row."""
    topology = Topology("memory-functions")
    topology.source(job.topic).then(number_of).then(keep_even).then(to_row).into(DiscardSink())
    return _watched(topology, job)


def _watched(topology: Topology, job: Job) -> Figures:
    looks = Looks(job.records)
    found = run_headrace(topology, job, kafka=DEFAULTS, on_snapshot=looks)
    return {**found, **looks.figures}


@bolt
def first_only(record: Record) -> Record | Skip:
    """Drop all but the first."""
    return record if record.offset == 0 else SKIP


class Hold(Bolt[Record, Record]):
    """Holds the one record that it is given until `release`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._released = asyncio.Event()

    async def process(self, record: Record, /) -> Record:
        """Wait."""
        self._loop = asyncio.get_running_loop()
        await self._released.wait()
        return record

    def release(self) -> None:
        """Let it go; any thread may call."""
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
