"""The contract of sinks, for every guarantee.

A line is a run of transactions that are numbered together, 1, 2, 3, …: those of one partition.
A share is one line's transaction; a batch has the rows of the shares that one commit makes durable
together, or, where the topology is not exactly-once, rows of no transaction. Under one (line, txid)
come the same records whatever happens ("transactional"), or, if the sink has not committed it,
perhaps others ("opaque"; Trident's words).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topology.errors import RowsRejected
from topology.record import Record

if TYPE_CHECKING:
    from sinks.storage import Storage
    from topology.spark_step import SparkStep

Row = TypeVar("Row", contravariant=True)
Result = TypeVar("Result")
Piece: TypeAlias = "list[Any] | pa.RecordBatch"
Scalar: TypeAlias = str | int | float | bool
Kind: TypeAlias = Literal["transactional", "opaque"]

BATCH_ROWS = 100_000
BOTH_KINDS: frozenset[Kind] = frozenset({"transactional", "opaque"})


TRACE_HEADERS = ("traceparent", "tracestate")

TraceHeaders: TypeAlias = tuple[tuple[str, bytes], ...]
RowTraces: TypeAlias = Mapping[int, TraceHeaders]
"""By row: the headers of the one record that it came of, if that is traced."""

NO_TRACES: RowTraces = MappingProxyType({})


def is_of_trace(name: str) -> bool:
    """Whether a header of this name tells of a trace; names have no case."""
    return name.lower() in TRACE_HEADERS


class SparkJobs(Protocol):
    """The process's one Spark session, healed when it dies."""

    def run(
        self, job: Callable[[Any], Result], *, group: str, deadline_seconds: float | None = None
    ) -> Result:
        """Run `job(session)` under a job group and a deadline; what it raises is passed on.

        The deadline is the driver's, unless one is given.
        """
        ...

    def passage(self, step: "SparkStep", sink: "Sink[Any]", context: "SinkContext") -> "Passage":
        """Have a Spark step work in front of a sink that is open. Raises SinkFailed."""
        ...


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Passed to a sink when it is opened."""

    pipeline: str
    sink: str
    kafka: Mapping[str, Scalar]  # librdkafka properties of a client
    storage: "Storage"  # where tables lie, and how that store is reached
    spark: SparkJobs | None
    exactly_once: bool = False  # whether it will be asked for transactions


class Fence(NamedTuple):
    """An owner of a line: whoever has a lower epoch may commit no more."""

    line: str  # "orders[3]"
    epoch: int


class Committed(NamedTuple):
    """The last transaction of a line that a sink has; 0, 0: it knows nothing of the line."""

    line: str
    epoch: int
    txid: int


@dataclass(frozen=True, slots=True)
class Share:
    """One line's transaction, as one sink gets it."""

    line: str
    epoch: int
    txid: int
    attempt: int
    first: int  # offsets from here
    end: int  # up to before this one
    digest: str
    num_rows: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: rows that one commit makes durable.

    A row's index is its place in the concatenation of `pieces`. `sequence` counts 1, 2, 3, … per
    sink and process; a batch tried again keeps its number. The rows of `shares` come one share's
    after the other's, in their order; without shares the rows are of no transaction. `offsets`
    tells of each row which record it came of, in its share's partition; None: it is not told.
    """

    sequence: int
    pieces: list[Piece]
    num_rows: int
    shares: tuple[Share, ...] = ()
    offsets: npt.NDArray[np.int64] | None = None
    traces: RowTraces = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch that is ready for its commit; `parts` are the sink's own (files, rows)."""

    shares: tuple[Share, ...]
    num_rows: int
    parts: tuple[Any, ...] = ()
    rejected: Mapping[int, str] = field(default_factory=dict)  # row: why it does not fit


class Stager(Protocol):
    """Stages batches in another process, for a sink that then commits them here.

    It can be pickled, and asks nothing of the table's log. Any thread may call it, one at a time.
    """

    def stage(self, batch: Batch) -> Staged:
        """See Sink; what `parts` hold can be pickled too."""
        ...

    def discard(self, staged: Staged) -> None: ...


class Sink(ABC, Generic[Row]):
    """A place for rows.

    The owner thread calls `open`, `close` and `stager`, the sink's staging thread `stage`, its
    commit thread `fence`, `committed` and `commit`, either of the two `discard`. A batch may be
    staged while the one before it is committed. `fence`, `stage` and `commit` may be repeated with
    the same arguments: after SinkBusy when it says so, after any error but SinkFailed and
    SinkFenced with growing pauses. At most once, a commit is repeated after SinkBusy only.

    A sink that stands in front of another one takes over its `batch_rows`.
    """

    name: str

    batch_rows: int = BATCH_ROWS
    """Rows of a full batch, unless `into` says otherwise.

    Many where each write is expensive, as a file and its commit are. Few where it costs
    nothing: a large batch then only keeps records in memory until they have left the caches.
    """

    needs_spark: bool = False
    """Whether `open` is to be given a SparkJobs."""

    needs_jars: tuple[str, ...] = ()
    """The sets of jars that Spark must have for it."""

    kinds: frozenset[Kind] = frozenset()
    """Kinds of transactions it keeps; none: it cannot be exactly-once."""

    row_schema: pa.Schema | None = None
    """To which `stage` fits rows: dictionaries may come as columns of it. None: they never do."""

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Connect, and check that the place can be written. Raises SinkFailed if not."""

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs of lines durably, then return what is committed of each, in order.

        From then on no commit under a lower epoch has any effect. A run begins with a fence, of no
        lines if it is not exactly-once; then the place is made ready for `stage`. Raises
        SinkFenced when a line's epoch is higher already.
        """
        if fences:
            raise NotImplementedError(f"{self.name} keeps no transactions")
        return []

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Return what is committed of each line; change nothing. For operators, not for a run."""
        raise NotImplementedError(f"{self.name} does not say it")

    def stage(self, batch: Batch) -> Staged:
        """Make the rows ready, not visible; those that do not fit are named and left out.

        What it made may be lost without harm. By default nothing is made, and the parts are the
        batch's pieces.
        """
        return Staged(batch.shares, batch.num_rows, tuple(batch.pieces))

    @abstractmethod
    def commit(self, staged: Staged) -> None:
        """Make all rows and every share's txid durable at once, or nothing.

        Does nothing when every share is committed already. Raises SinkFenced when a line's epoch
        is higher than its share's, SinkBusy when nothing was done, and SinkFailed when trying
        again cannot help, or only some of the shares are committed; after anything else it is not
        known whether it is committed. Without shares it may raise RowsRejected for rows of the
        batch that only the place itself can judge: all others are durable then.
        """

    def discard(self, staged: Staged) -> None:
        """Called when this will not be committed: what was made for it may go."""

    @abstractmethod
    def close(self) -> None:
        """Release what `open` took. May be called twice."""

    def stager(self) -> Stager | None:
        """Return what stages in other processes for the place as it is now; None: only this can.

        Asked after a fence.
        """
        return None

    def joined(self, shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
        """Join what stagers made, in the order of the rows, for `commit` or `discard`.

        Raises SinkFailed when this process does not find what they have made.
        """
        raise NotImplementedError(f"{self.name} has no stager")

    def write(self, batch: Batch) -> None:
        """Fence no line, then stage and commit a batch: for trials. Raises RowsRejected."""
        self.fence(())
        staged = self.stage(batch)
        rejected = dict(staged.rejected)
        try:
            self.commit(staged)
        except RowsRejected as error:
            rejected |= error.reasons
        if rejected:
            raise RowsRejected(rejected)


def innermost(sink: Sink[Any]) -> Sink[Any]:
    """Return the sink that others stand in front of, as their `sink`; else the sink itself."""
    return chain_of(sink)[-1]


def chain_of(sink: Sink[Any]) -> list[Sink[Any]]:
    """Return a sink, the one that it stands in front of, and so on."""
    chain = [sink]
    while isinstance(inner := getattr(chain[-1], "sink", None), Sink):
        chain.append(inner)
    return chain


@dataclass(frozen=True, slots=True)
class DeadLetter:
    record: Record
    reason: str
    attempts: int
    error_class: str
    step: str
    failed_at_ms: int
    by_reference: bool = False  # without its payload: that was too large to be wanted
    trace: TraceHeaders = ()  # instead of those that the record came with


@dataclass(frozen=True, slots=True)
class RangeNotice:
    """Offsets of a partition that were skipped, and why: sent to the dead letters."""

    topic: str
    partition: int
    first_offset: int
    resume_offset: int  # where reading went on
    lost: int  # records, as far as it is known
    reason: str
    found: str
    noticed_at_ms: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """The broker's answer for one dead letter or notice: durable, or not (`error`)."""

    token: int
    error: str | None


class DeadLetterSink(ABC):
    """Destination of dead letters. The owner thread calls every method; none blocks."""

    name: str

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Raises SinkFailed when the place cannot be used."""

    @abstractmethod
    def send(self, letter: DeadLetter | RangeNotice, token: int) -> None:
        """Send a dead letter or notice; `poll` later returns its `token`."""

    @abstractmethod
    def poll(self) -> list[Delivered]:
        """Return the answers for letters sent, each once."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """Number of letters sent that `poll` has not returned yet."""

    @abstractmethod
    def flush(self, timeout_seconds: float) -> None:
        """Wait for the letters on their way; `poll` then returns them."""

    @abstractmethod
    def close(self) -> None:
        """Release what `open` took. May be called twice."""


class Passage(Protocol):
    """A Spark step at work, in front of a sink that is open. One thread calls it at a time."""

    def stage(self, batch: Batch) -> Staged:
        """Have the sink stage what the step makes of the rows.

        The rows that are named do not fit the step's columns. Raises SinkFailed when a row that
        came out of the step does not fit the sink; anything else is transient.
        """
        ...

    def close(self) -> None:
        """Release what was taken; the sink stays open."""
        ...


MIN_AGE_HOURS = 24
"""Younger files are never removed as unnamed: a commit may be about to name them."""


class Compaction(NamedTuple):
    """Files that a compaction replaced by fewer ones. 0, 0, 0: there was nothing to do."""

    files_replaced: int
    files_written: int
    bytes_replaced: int


class Removal(NamedTuple):
    """Snapshots or entries of the log that were removed, and files."""

    versions_removed: int
    files_removed: int


class Maintenance(Protocol):
    """Maintenance of a table beside a running pipeline. None of it changes a row or a txid.

    With `dry_run` nothing is changed; the answer is what would be done, for a compaction about.
    Raises SinkBusy when others kept committing first, SinkFailed when it cannot be done.
    """

    def compact(self, target_bytes: int, *, dry_run: bool = False) -> Compaction:
        """Join files that are smaller than `target_bytes` into ones of about that size."""

    def vacuum(self, older_than_hours: int, *, dry_run: bool = False) -> Removal:
        """Remove old files that the table does not name, whoever left them.

        Raises ValueError below MIN_AGE_HOURS.
        """

    def expire(self, *, dry_run: bool = False) -> Removal:
        """Remove versions that are older than the table's own properties keep them."""

    def data_files(self) -> list[str]:
        """Return the files that make up the table now, as absolute paths or URIs."""


@runtime_checkable
class Maintained(Protocol):
    """A sink whose table is made of files."""

    def maintenance(self) -> Maintenance:
        """Needs an open sink."""
