"""The contract of sinks, for every guarantee.

A line is a series of transactions that are numbered together, 1, 2, 3, …: those of one partition.
A share is one line's transaction; a batch has the rows of the shares that one commit makes durable
together, or, unless the topology is exactly-once, rows of no transaction. A retried (line, txid)
has the same records ("transactional"), or, if the sink has not committed it, perhaps others
("opaque"; Trident's words).
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
"""By row: the headers of its record, if it has one that is traced."""

NO_TRACES: RowTraces = MappingProxyType({})


def is_of_trace(name: str) -> bool:
    """Whether a header carries trace context; names are case-insensitive."""
    return name.lower() in TRACE_HEADERS


class SparkJobs(Protocol):
    """The process's one Spark session, restarted when it dies."""

    def run(
        self, job: Callable[[Any], Result], *, group: str, deadline_seconds: float | None = None
    ) -> Result:
        """Run `job(session)` under a job group and a deadline, by default the driver's."""
        ...

    def passage(self, step: "SparkStep", sink: "Sink[Any]", context: "SinkContext") -> "Passage":
        """Start a Spark step in front of an open sink. Raises SinkFailed."""
        ...


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Passed to a sink when it is opened."""

    pipeline: str
    sink: str
    kafka: Mapping[str, Scalar]  # librdkafka properties of a client
    storage: "Storage"  # where tables lie, and how to reach it
    spark: SparkJobs | None
    exactly_once: bool = False


class Fence(NamedTuple):
    """An owner of a line: owners with a lower epoch must not commit any more."""

    line: str  # "orders[3]"
    epoch: int


class Committed(NamedTuple):
    """The last transaction of a line that a sink has committed; 0, 0: it has none."""

    line: str
    epoch: int
    txid: int


@dataclass(frozen=True, slots=True)
class Share:
    """One line's transaction, for one sink."""

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
    sink and process; a retried batch keeps its number. The rows are sorted by share, in the order
    of `shares`; without shares they are of no transaction. `offsets` has each row's record in its
    share's partition, or is None if unknown.
    """

    sequence: int
    pieces: list[Piece]
    num_rows: int
    shares: tuple[Share, ...] = ()
    offsets: npt.NDArray[np.int64] | None = None
    traces: RowTraces = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch that is ready for its commit; `parts` (files, rows) are private to the sink."""

    shares: tuple[Share, ...]
    num_rows: int
    parts: tuple[Any, ...] = ()
    rejected: Mapping[int, str] = field(default_factory=dict)  # reasons by row


class Stager(Protocol):
    """Stages batches in another process, for a sink that commits them in this one.

    It can be pickled, and does not read the table's log. Any thread may call it, one at a time.
    """

    def stage(self, batch: Batch) -> Staged:
        """See Sink; `parts` can be pickled."""
        ...

    def discard(self, staged: Staged) -> None: ...


class Sink(ABC, Generic[Row]):
    """A destination of rows.

    The owner thread calls `open` and `close`, the sink's staging thread `stage`, its commit thread
    `fence`, `committed` and `commit`, either of the two `discard`, any `stager`. A batch may be
    staged while the preceding one is committed. `fence`, `stage` and `commit` may be repeated
    with the same arguments: after SinkBusy when it says so, after any error but SinkFailed and
    SinkFenced with backoff. At most once, a commit is repeated after SinkBusy only.

    A sink in front of another one takes over its `batch_rows`.
    """

    name: str

    batch_rows: int = BATCH_ROWS
    """Rows of a full batch, unless `into` says otherwise.

    Many where each write is expensive, as a file and its commit are. Few where it costs
    nothing: a large batch then only keeps records in memory until they have left the caches.
    """

    needs_spark: bool = False
    """Whether `open` needs a SparkJobs."""

    needs_jars: tuple[str, ...] = ()
    """Sets of jars that Spark must load for it."""

    kinds: frozenset[Kind] = frozenset()
    """Kinds of transactions that it supports; none: it cannot be exactly-once."""

    row_schema: pa.Schema | None = None
    """Schema of the rows of `stage`: dictionaries may come as columns of it. None: never."""

    def open(self, context: SinkContext) -> None:
        """Connect, and check that the place can be written. Raises SinkFailed."""

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs of lines durably; return the last commit of each, in order.

        From then on no commit under a lower epoch has any effect. A run begins with a fence, of no
        lines unless it is exactly-once, which prepares the place for `stage`. Raises SinkFenced
        when a line's epoch is higher already.
        """
        if fences:
            raise NotImplementedError(f"{self.name} has no transactions")
        return []

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Return the last commit of each line, without a change. For operators, not for a run."""
        raise NotImplementedError(f"{self.name} does not read its commits")

    def stage(self, batch: Batch) -> Staged:
        """Prepare the rows, invisibly; leave out and name those that do not fit.

        The result may be lost without harm. The default asks the stager; without one it keeps the
        pieces as parts.
        """
        if (stager := self.stager()) is not None:
            return stager.stage(batch)
        return Staged(batch.shares, batch.num_rows, tuple(batch.pieces))

    @abstractmethod
    def commit(self, staged: Staged) -> None:
        """Make all rows and every share's txid durable at once, or nothing.

        Does nothing when every share is committed already. Raises SinkFenced when a line's epoch
        is higher than its share's, SinkBusy when nothing was done, and SinkFailed when a retry
        cannot help, or only some of the shares are committed; after any other error the outcome
        is unknown. Without shares it may raise RowsRejected for rows that only the place itself
        can judge: all others are durable then.
        """

    def discard(self, staged: Staged) -> None:
        """Remove what `stage` prepared: it will not be committed."""

    def close(self) -> None:
        """Release all resources. May be called twice."""

    def stager(self) -> Stager | None:
        """Return a stager for other processes, if the sink has one. Called after a fence."""
        return None

    def joined(self, shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
        """Join the results of stagers, in the order of the rows, for `commit` or `discard`.

        Raises SinkFailed when this process does not find them.
        """
        raise NotImplementedError(f"{self.name} has no stager")

    def write(self, batch: Batch) -> None:
        """Stage and commit a batch without a fence, in a test. Raises RowsRejected."""
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
    """Return the last sink of a chain."""
    return chain_of(sink)[-1]


def chain_of(sink: Sink[Any]) -> list[Sink[Any]]:
    """Return a sink, the one behind it (its `sink`), and so on."""
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
    by_reference: bool = False  # without its payload, which was too large
    trace: TraceHeaders = ()  # replaces the record's own
    error_at: str = ""  # file:line of the user's code, if the error comes from there
    error: Exception | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class RangeNotice:
    """Skipped offsets of a partition, sent to the dead letters."""

    topic: str
    partition: int
    first_offset: int
    resume_offset: int
    lost: int  # known number of records
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

    def open(self, context: SinkContext) -> None:  # noqa: B027 - not every place needs a connection
        """Raises SinkFailed when the place cannot be used."""

    @abstractmethod
    def send(self, letter: DeadLetter | RangeNotice, token: int) -> None:
        """Send a dead letter or notice; `poll` later returns its `token`."""

    @abstractmethod
    def poll(self) -> list[Delivered]:
        """Return new answers, each once."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """Number of sent letters without an answer from `poll`."""

    def flush(self, timeout_seconds: float) -> None:  # noqa: B027 - some answer at once
        """Wait for the answers; `poll` then returns them."""

    def close(self) -> None:  # noqa: B027 - nor does every one hold resources
        """Release all resources. May be called twice."""


class Passage(Protocol):
    """A running Spark step in front of an open sink. One thread calls it at a time."""

    def stage(self, batch: Batch) -> Staged:
        """Have the sink stage the output of the step for these rows.

        Rejected rows are those that do not fit the step's columns. Raises SinkFailed when a row of
        the output does not fit the sink; other errors are transient.
        """
        ...

    def close(self) -> None:
        """Release all resources; the sink stays open."""
        ...


MIN_AGE_HOURS = 24
"""Younger files are never vacuumed: a commit may be about to name them."""


class Compaction(NamedTuple):
    """Result of a compaction. 0, 0, 0: nothing to do."""

    files_replaced: int
    files_written: int
    bytes_replaced: int


class Removal(NamedTuple):
    """Removed snapshots or log entries, and files."""

    versions_removed: int
    files_removed: int


class Maintenance(Protocol):
    """Maintenance of a table beside a running pipeline. It changes no row and no txid.

    `dry_run` only returns what would be done, for a compaction roughly. Raises SinkBusy when
    others kept committing first, and SinkFailed.
    """

    def compact(self, target_bytes: int, *, dry_run: bool = False) -> Compaction:
        """Join files smaller than `target_bytes` into ones of about that size."""

    def vacuum(self, older_than_hours: int, *, dry_run: bool = False) -> Removal:
        """Remove old files that the table does not name. Raises ValueError below MIN_AGE_HOURS."""

    def expire(self, *, dry_run: bool = False) -> Removal:
        """Remove versions that the table's own retention properties do not keep."""

    def data_files(self) -> list[str]:
        """Return the table's current files, as absolute paths or URIs."""


@runtime_checkable
class Maintained(Protocol):
    """A sink whose table is made of files."""

    def maintenance(self) -> Maintenance:
        """Return the maintenance of the table of an open sink."""
