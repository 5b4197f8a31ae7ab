"""Spark steps: a function of a DataFrame in front of a sink."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from topology.errors import InvalidTopology, RowsRejected, SinkFailed, expect
from topology.schema import ArrowSchema, schema_of
from topology.sink import BATCH_ROWS, Batch, Committed, Fence, Passage, Sink, SinkContext, Staged
from topology.steps import BATCH_BYTES, BATCH_SECONDS, SinkStep, Step

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
"""Columns of a Spark step directly behind a source: those of Spark's own Kafka source."""


@dataclass(frozen=True, slots=True)
class SparkStep:
    """A function of a DataFrame, and its input columns."""

    name: str
    function: Function
    schema: pa.Schema
    reads_source: bool  # its rows are records, as KAFKA_COLUMNS


def spark_step(
    function: Function, schema: type[Any] | ArrowSchema | None, name: str | None
) -> SparkStep:
    """Check the arguments of `Stream.spark`. Raises InvalidTopology."""
    expect(callable(function), "spark()", function, "a function of a DataFrame")
    found = str(getattr(function, "__name__", type(function).__name__))
    label = name or ("spark" if found == "<lambda>" else found)
    columns = KAFKA_COLUMNS if schema is None else schema_of(schema)
    return SparkStep(label, function, columns, reads_source=schema is None)


class ThroughSpark(Sink[Any]):
    """A sink with a Spark step in front of it: its guarantee is that of the sink's commit."""

    needs_spark = True

    def __init__(self, step: SparkStep, sink: Sink[Any]) -> None:
        self.name = sink.name
        self.batch_rows = max(BATCH_ROWS, sink.batch_rows)  # each Spark job is expensive
        self.kinds = sink.kinds
        self.step = step
        self.sink = sink
        self._passage: Passage | None = None

    def open(self, context: SinkContext) -> None:
        """Open the sink, then try the function with no rows. Raises SinkFailed."""
        if context.spark is None:
            place = '[spark.conf] "spark.master"'
            raise SinkFailed(f"Spark step '{self.step.name}' needs Spark: set {place}")
        self.sink.open(context)
        self._passage = context.spark.passage(self.step, self.sink, context)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        return self.sink.fence(fences)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        return self.sink.committed(lines)

    def stage(self, batch: Batch) -> Staged:
        if self._passage is None:
            raise SinkFailed(f"Spark step '{self.step.name}' is not open")
        return self._passage.stage(batch)

    def commit(self, staged: Staged) -> None:
        """Commit in the sink. Raises SinkFailed for rows that only the commit rejects."""
        try:
            self.sink.commit(staged)
        except RowsRejected as error:
            raise refused(self.name, self.step.name, error.reasons.values()) from error

    def discard(self, staged: Staged) -> None:
        self.sink.discard(staged)

    def close(self) -> None:
        passage, self._passage = self._passage, None
        if passage is not None:
            passage.close()
        self.sink.close()


def refused(sink: str, step: str, reasons: Iterable[str]) -> SinkFailed:
    """Return the error of output rows of a Spark step that do not fit the sink."""
    found = list(reasons)
    return SinkFailed(
        f"sink '{sink}' rejected {len(found)} output rows of Spark step '{step}', whose records "
        f"are unknown: {found[0]}"
    )


class SparkRows:
    """The output rows of a Spark step: only a sink may follow."""

    def __init__(self, step: SparkStep, into: Callable[..., None]) -> None:
        """`into` is the method of the stream in front of the step."""
        self._step = step
        self._into = into

    def into(
        self,
        sink: Sink[Any],
        *,
        name: str | None = None,
        batch_rows: int | None = None,
        batch_bytes: int = BATCH_BYTES,
        batch_seconds: float = BATCH_SECONDS,
    ) -> None:
        """Write every row to a sink. The limits of micro-batches are of input rows.

        The default is 100,000 rows, or the sink's own, if that is more. Raises InvalidTopology.
        """
        expect(isinstance(sink, Sink), "into()", sink, "an instance of Sink")
        self._into(
            ThroughSpark(self._step, sink),
            name=name,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            batch_seconds=batch_seconds,
        )


def check_place(place: str, child: Step, *, is_source: bool) -> None:
    """Raise InvalidTopology when a Spark step's schema does not fit its place."""
    if not isinstance(child, SinkStep) or not isinstance(child.sink, ThroughSpark):
        return
    step = child.sink.step
    if step.reads_source and not is_source:
        raise InvalidTopology(f"Spark step '{step.name}' after {place} needs schema=")
    if is_source and not step.reads_source:
        names = ", ".join(KAFKA_COLUMNS.names)
        raise InvalidTopology(
            f"Spark step '{step.name}': found schema= directly after {place}, whose columns are "
            f"{names}. Leave it out, or put a bolt between"
        )
