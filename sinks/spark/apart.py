"""The rows of a DataFrame, made ready by executors where a table lies, or brought here."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from sinks.errors import TaskRaised
from sinks.spark.reasons import from_python
from sinks.spark.tasks import lighten
from topology.sink import Batch, Piece, Sink, Staged, Stager
from topology.spark_step import refused

_ROWS_AT_ONCE = 500_000  # in a worker's memory
_SCHEMA = pa.schema({"staged": pa.binary()})
_DDL = "staged binary"

Stages = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def stage_apart(frame: Any, stager: Stager, number: int, group: str) -> list[Staged]:
    """Have executors stage a DataFrame's rows, each task those of its own partition.

    No row passes through the driver. `number` is the group's; what is staged has no shares yet.
    Raises TaskRaised, naming the job as `group`, when a function of Python's raised on an
    executor, be it the stager or one of the DataFrame's own. What other tasks have staged is then
    left where it is.
    """
    try:
        rows = frame.mapInArrow(_stages(stager, number), _DDL).collect()
    except Exception as error:
        raise _told(error, group) from error
    return [pickle.loads(bytes(row[0])) for row in rows]  # noqa: S301 - of our own workers


def bring(frame: Any, group: str) -> list[pa.RecordBatch]:
    """A DataFrame's rows, in this process's memory. Raises as `stage_apart`."""
    try:
        table: pa.Table = frame.toArrow()
    except Exception as error:
        raise _told(error, group) from error
    return [batch for batch in table.to_batches() if batch.num_rows]


def stage_batches(
    stager: Stager, number: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Stage the rows of one task, some hundred thousand at a time. Runs on an executor."""
    pieces: list[Piece] = []
    num_rows = 0
    for batch in batches:
        pieces.append(batch)
        num_rows += batch.num_rows
        if num_rows >= _ROWS_AT_ONCE:
            yield _staged(stager, number, pieces, num_rows)
            pieces, num_rows = [], 0
    if num_rows:
        yield _staged(stager, number, pieces, num_rows)


def check_all_taken(sink: Sink[Any], staged: Staged, step: str) -> None:
    """Raise SinkFailed, and discard what was staged, if a row of a step does not fit the sink."""
    if not staged.rejected:
        return
    sink.discard(staged)
    raise refused(sink.name, step, staged.rejected.values())


def _stages(stager: Stager, number: int) -> Stages:
    # A function within one, so that it is sent with what it holds; what it calls is imported.
    def stages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from stage_batches(stager, number, batches)
        finally:
            lighten()

    return stages


def _staged(stager: Stager, number: int, pieces: Sequence[Piece], rows: int) -> pa.RecordBatch:
    staged = stager.stage(Batch(number, list(pieces), rows))
    return pa.RecordBatch.from_pylist([{"staged": pickle.dumps(staged)}], schema=_SCHEMA)


def _told(error: Exception, group: str) -> Exception:
    """The error in one line where a worker raised it; here the JVM can still be asked."""
    said = from_python(error)
    return error if said is None else TaskRaised(group, said)
