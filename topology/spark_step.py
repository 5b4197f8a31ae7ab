"""Steps that Spark itself makes: a function of a DataFrame, between a stream and its sink."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from topology.errors import InvalidTopology, SinkFailed
from topology.schema import schema_of
from topology.sink import BATCH_ROWS, Batch, Sink, SinkContext
from topology.steps import BATCH_BYTES, BATCH_SECONDS, SinkStep, Step
from topology.transactional import Committed, Fence, Group, Kind, Staged, TransactionalSink

if TYPE_CHECKING:
    from topology.stream import Stream

Function: TypeAlias = Callable[[Any], Any]
"""From a pyspark.sql.DataFrame to another."""

_HEADER: "list[pa.Field[Any]]" = [
    pa.field("key", pa.string(), nullable=False),
    pa.field("value", pa.binary()),
]
_FIELDS: "list[pa.Field[Any]]" = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(pa.struct(_HEADER))),
]
KAFKA_COLUMNS = pa.schema(_FIELDS)
"""What a Spark step directly behind a source gets: the columns of Spark's own Kafka source."""


@dataclass(frozen=True, slots=True)
class SparkStep:
    """A function of a DataFrame, and the columns that it is given."""

    name: str
    function: Function
    schema: pa.Schema
    reads_source: bool  # its rows are records, as KAFKA_COLUMNS


class Passage(Protocol):
    """A Spark step at work, in front of a sink that is open. One thread calls it at a time."""

    def stage(self, group: Group) -> Staged:
        """Have the sink make ready what the step makes of the rows.

        The rows that are named do not fit the step's columns. Raises SinkFailed when a row that
        came out of the step does not fit the sink; anything else is passing.
        """
        ...

    def write(self, batch: Batch) -> None:
        """Have the sink write what the step makes of the rows.

        Raises as `stage`, and RowsRejected for rows that do not fit the step's columns.
        """
        ...

    def close(self) -> None:
        """Let go of what was taken; the sink stays open."""
        ...


class ThroughSpark(TransactionalSink[Any]):
    """Stands in front of a sink: what comes to it passes a Spark step first.

    The sink's own commit makes durable what comes out, so it is as often there as the sink says.
    """

    needs_spark = True
    kinds: frozenset[Kind] = frozenset()  # those of the sink behind it

    def __init__(self, step: SparkStep, sink: Sink[Any]) -> None:
        """Only stores."""
        self.name = sink.name
        self.batch_rows = max(BATCH_ROWS, sink.batch_rows)  # a Spark job costs much by itself
        self.step = step
        self.sink = sink
        self._passage: Passage | None = None

    def open(self, context: SinkContext) -> None:
        """Open the sink, then try the function with no rows. Raises SinkFailed."""
        if context.spark is None:
            raise SinkFailed(f"Spark step '{self.step.name}' needs Spark; none was configured")
        self.sink.open(context)
        self._passage = context.spark.passage(self.step, self.sink, context)

    def write(self, batch: Batch) -> None:
        """Write what the step makes of the rows; see `Passage`."""
        self._opened().write(batch)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs in the sink."""
        return self._behind.fence(fences)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """What the sink says."""
        return self._behind.committed(lines)

    def stage(self, group: Group) -> Staged:
        """Stage what the step makes of the rows; see `Passage`."""
        return self._opened().stage(group)

    def commit(self, staged: Staged) -> None:
        """Commit in the sink."""
        self._behind.commit(staged)

    def discard(self, staged: Staged) -> None:
        """Discard it in the sink."""
        self._behind.discard(staged)

    def close(self) -> None:
        """Close the sink."""
        passage, self._passage = self._passage, None
        if passage is not None:
            passage.close()
        self.sink.close()

    def _opened(self) -> Passage:
        if self._passage is None:
            raise SinkFailed(f"Spark step '{self.step.name}' is not open")
        return self._passage

    @property
    def _behind(self) -> TransactionalSink[Any]:
        """The sink, where a topology was allowed to be exactly-once."""
        if not isinstance(self.sink, TransactionalSink):
            raise TypeError(self.sink.name)
        return self.sink


class SparkRows:
    """What comes out of a Spark step: only a sink can take it."""

    def __init__(self, stream: "Stream[Any]", step: SparkStep) -> None:
        self._stream = stream
        self._step = step

    def into(
        self,
        sink: Sink[Any],
        *,
        name: str | None = None,
        batch_rows: int | None = None,
        batch_bytes: int = BATCH_BYTES,
        batch_seconds: float = BATCH_SECONDS,
    ) -> None:
        """Write every row to a sink; the micro-batches are those of the rows that go in.

        They have 100,000 rows if it is not said, or as many as the sink likes, if that is more.
        Raises InvalidTopology.
        """
        if not isinstance(sink, Sink):
            raise InvalidTopology(f"into() got {sink!r}; an instance of Sink is allowed")
        self._stream.into(
            ThroughSpark(self._step, sink),
            name=name,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            batch_seconds=batch_seconds,
        )


def spark_step(
    function: Function, schema: type[Any] | pa.Schema | None, name: str | None
) -> SparkStep:
    """What `Stream.spark` was given, checked. Raises InvalidTopology."""
    if not callable(function):
        raise InvalidTopology(f"spark() got {function!r}; a function of a DataFrame is allowed")
    found = str(getattr(function, "__name__", type(function).__name__))
    label = name or ("spark" if found == "<lambda>" else found)
    columns = KAFKA_COLUMNS if schema is None else schema_of(schema)
    return SparkStep(label, function, columns, reads_source=schema is None)


def check_place(place: str, child: Step, *, is_source: bool) -> None:
    """Raise InvalidTopology when a Spark step gets other columns there than it was made for."""
    if not isinstance(child, SinkStep) or not isinstance(child.sink, ThroughSpark):
        return
    step = child.sink.step
    if step.reads_source and not is_source:
        message = f"Spark step '{step.name}' stands behind {place}; say its rows' schema="
        raise InvalidTopology(message)
    if is_source and not step.reads_source:
        names = ", ".join(KAFKA_COLUMNS.names)
        message = (
            f"Spark step '{step.name}' stands directly behind {place}, so it gets the columns "
            f"{names}; leave out schema=, or put a bolt between"
        )
        raise InvalidTopology(message)
