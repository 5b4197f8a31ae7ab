"""What a sink promises: the contract that every place for rows keeps."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from topology.record import Record
from topology.traced import RowTraces, TraceHeaders

if TYPE_CHECKING:
    from sinks.storage import Storage
    from topology.passage import Passage
    from topology.spark_step import SparkStep

Row = TypeVar("Row", contravariant=True)
Result = TypeVar("Result")
Piece: TypeAlias = "list[Any] | pa.RecordBatch"
Scalar: TypeAlias = str | int | float | bool

BATCH_ROWS = 100_000


class SparkDriver(Protocol):
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
    """What the service gives a sink when it opens it."""

    pipeline: str
    sink: str
    kafka: Mapping[str, Scalar]  # librdkafka properties of a client
    storage: "Storage"  # where tables lie, and how that store is reached
    spark: SparkDriver | None
    exactly_once: bool = False  # whether it will be asked for transactions


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: rows handed to a sink in one write.

    A row's index is its place in the concatenation of `pieces`. `sequence` counts
    1, 2, 3, … per sink and process; a batch tried again keeps its number.
    """

    sequence: int
    pieces: list[Piece]
    num_rows: int
    traces: RowTraces = field(default_factory=dict)


class Sink(ABC, Generic[Row]):
    """A place for rows.

    `open` and `close` are called by the owner thread, `write` by the sink's writer
    thread; never two at once. A sink that stands in front of another one takes over its
    `batch_rows`.
    """

    name: str

    batch_rows: int = BATCH_ROWS
    """How many rows make a batch full, unless `into` says otherwise.

    Many where a write costs much by itself, as a file and its commit do. Few where it costs
    nothing: a large batch then only keeps records in memory until they have left the caches.
    """

    needs_spark: bool = False
    """Whether `open` is to be given a SparkDriver."""

    needs_jars: tuple[str, ...] = ()
    """The sets of jars that Spark must have for it."""

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Touch the world: check that the place can be written. Raises SinkFailed if not."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Return when every row of the batch is durable.

        Raises RowsRejected when some rows do not fit (all others are durable then),
        SinkBusy when nothing was written and the same batch should come later, and
        SinkFailed when trying again cannot help. Anything else is taken as passing:
        the same batch is tried again with growing pauses.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of what `open` took. May be called twice."""


def innermost(sink: Sink[Any]) -> Sink[Any]:
    """The sink itself, or the one that it stands in front of and has as its `sink`."""
    return chain_of(sink)[-1]


def chain_of(sink: Sink[Any]) -> list[Sink[Any]]:
    """A sink, the one that it stands in front of, and so on."""
    chain = [sink]
    while isinstance(inner := getattr(chain[-1], "sink", None), Sink):
        chain.append(inner)
    return chain


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be processed, and why."""

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
    """Offsets of a partition that were skipped, and why: told where the dead letters go."""

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
    """The broker's word on one dead letter or notice: durable, or not (`error`)."""

    token: int
    error: str | None


class DeadLetterSink(ABC):
    """Where dead letters go. Every method is called by the owner thread and none blocks."""

    name: str

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Touch the world. Raises SinkFailed when the place cannot be used."""

    @abstractmethod
    def send(self, letter: DeadLetter | RangeNotice, token: int) -> None:
        """Take a letter or notice; `poll` later says under `token` whether it is durable."""

    @abstractmethod
    def poll(self) -> list[Delivered]:
        """What became of the letters sent, each told once."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """Letters sent of which `poll` has not told yet."""

    @abstractmethod
    def flush(self, timeout_seconds: float) -> None:
        """Wait, at most so long, for the letters on their way; `poll` then tells of them."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what `open` took. May be called twice."""
