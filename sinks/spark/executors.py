"""Work on Spark's executors: a step's function in front of a sink, and tasks in Python."""

import gc
import pickle
import sys
import zipimport
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from sinks.columns import fit
from sinks.errors import LONGEST_LINE, TaskRaised, one_line, text_of
from sinks.names import local_uri
from sinks.spark.frames import fit_records, open_spool, put, remove, spark_schema
from topology.errors import SinkFailed
from topology.sink import Batch, Piece, Sink, SinkContext, SparkJobs, Staged, Stager, innermost
from topology.spark_step import SparkStep, refused

Result = TypeVar("Result")

_ROWS_AT_ONCE = 500_000  # in a worker's memory
_SCHEMA = pa.schema({"staged": pa.binary()})
_DDL = "staged binary"


class SparkPassage:
    """Has Spark run a step's function over each batch in front of a sink. A Passage.

    One job reads the rows from the spool, and has executors stage what the function returns if the
    sink has a stager; else it is brought here. The caller opens, fences and commits.
    """

    def __init__(
        self, driver: SparkJobs, step: SparkStep, sink: Sink[Any], context: SinkContext
    ) -> None:
        """Make the spool, and call the function with no rows.

        Raises SinkFailed: the place cannot be written, the function fails, or it gives other
        columns than the sink has.
        """
        self._driver, self._step, self._sink = driver, step, sink
        self._job = f"{sink.name}-{step.name}"
        owner = f"{context.pipeline}.{context.sink}.step"
        self._spool = open_spool(context.storage.warehouse, owner)
        self._spark_schema = spark_schema(step.schema)

        def job(session: Any) -> list[str]:
            frame = session.createDataFrame([], self._spark_schema)
            return [str(name) for name in called(step, frame).columns]

        try:
            found = driver.run(job, group=f"{self._job}-open")
        except SinkFailed:
            raise
        except Exception as error:
            raise SinkFailed(f"Spark step '{step.name}': {one_line(error)}") from error
        wanted = getattr(innermost(sink), "schema", None)
        if isinstance(wanted, pa.Schema) and (wrong := _differences(found, wanted)):
            raise SinkFailed(f"Spark step '{step.name}' before sink '{sink.name}': {wrong}")

    def stage(self, batch: Batch) -> Staged:
        sink, number, step = self._sink, batch.sequence, self._step
        fitted = fit_records(batch.pieces) if step.reads_source else fit(batch.pieces, step.schema)
        stager, rows = sink.stager(), fitted.table
        if stager is not None and rows.num_rows:
            apart = self._run(
                rows, number, lambda frame: stage_on_executors(frame, stager, number, self._job)
            )
            staged = sink.joined(batch.shares, apart)
        else:
            pieces: list[Piece] = []
            if rows.num_rows:
                pieces = self._run(rows, number, lambda frame: _brought(frame, self._job))
            num_rows = sum(map(len, pieces))
            # To the sink they are all of the first share: whose they are nobody can tell.
            shares = tuple(
                replace(share, num_rows=0 if index else num_rows)
                for index, share in enumerate(batch.shares)
            )
            staged = sink.stage(Batch(number, pieces, num_rows, shares))
        if staged.rejected:
            sink.discard(staged)
            raise refused(sink.name, step.name, staged.rejected.values())
        return replace(staged, shares=batch.shares, rejected=fitted.rejected)

    def close(self) -> None:
        self._spool.close()

    def _run(self, rows: pa.Table, number: int, take: Callable[[Any], Result]) -> Result:
        files = put(self._spool.open(), rows, str(number))
        try:
            uris = [local_uri(path) for path in files]

            def job(session: Any) -> Result:
                frame = session.read.schema(self._spark_schema).parquet(*uris)
                return take(called(self._step, frame))

            return self._driver.run(job, group=self._job)
        finally:
            remove(files)


def called(step: SparkStep, frame: Any) -> Any:
    made = step.function(frame)
    if not hasattr(made, "mapInArrow"):
        raise SinkFailed(
            f"Spark step '{step.name}' returned {type(made).__name__}, expected a DataFrame"
        )
    return made


def _differences(found: Sequence[str], wanted: pa.Schema) -> str | None:
    twice = [name for name in found if found.count(name) > 1]
    if twice:
        return f"column '{twice[0]}' is there twice"
    unknown = [name for name in found if name not in wanted.names]
    if unknown:
        return f"column '{unknown[0]}' is not in the sink, expected {', '.join(wanted.names)}"
    missing = [field.name for field in wanted if not field.nullable and field.name not in found]
    if missing:
        return f"column '{missing[0]}' is missing, and must not be null"
    return None


def stage_on_executors(frame: Any, stager: Stager, number: int, group: str) -> list[Staged]:
    """Have executors stage a DataFrame's rows, each task those of its own partition.

    `number` is the batch's; what is staged has no shares yet. Raises TaskRaised when a function of
    Python's, the stager or one of the DataFrame's, raised on an executor. What other tasks have
    staged is then left where it is.
    """

    # A function within one, so that it is sent with what it holds; what it calls is imported.
    def stages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from stage_batches(stager, number, batches)
        finally:
            lighten()

    with python_errors(group):
        rows = frame.mapInArrow(stages, _DDL).collect()
    return [pickle.loads(bytes(row[0])) for row in rows]  # noqa: S301 - of our own workers


def _brought(frame: Any, group: str) -> list[Piece]:
    """Return a DataFrame's rows, in this process's memory. Raises as `stage_on_executors`."""
    with python_errors(group):
        table: pa.Table = frame.toArrow()
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


def _staged(stager: Stager, number: int, pieces: Sequence[Piece], rows: int) -> pa.RecordBatch:
    staged = stager.stage(Batch(number, list(pieces), rows))
    return pa.RecordBatch.from_pylist([{"staged": pickle.dumps(staged)}], schema=_SCHEMA)


# Tasks


def run_tasks(
    driver: SparkJobs,
    tasks: Sequence[bytes],
    function: Callable[[bytes], bytes],
    *,
    group: str,
    deadline_seconds: float | None = None,
) -> list[bytes]:
    """Call a function with each of some tasks, on executors; the results in the tasks' order.

    From any thread. A task whose executor is lost is tried again, and may then run twice at once.
    Workers import the function's module. What the bytes say is nowhere logged. Raises TaskRaised
    when the function has raised as often as Spark tries a task, and as `SparkJobs.run`; some of the
    tasks may then have run, or still do for a moment.
    """
    if not tasks:
        return []

    def job(session: Any) -> list[bytes]:
        # As many parts as tasks: one is one task of Spark's. No DataFrame, whose plan costs more.
        given = session.sparkContext.parallelize(tasks, len(tasks))
        with python_errors(group):
            results: list[bytes] = given.map(partial(_called, function)).collect()
        return results

    return driver.run(job, group=group, deadline_seconds=deadline_seconds)


def lighten() -> None:
    """Have this process, one of Spark's Python workers, begin its next task without delay.

    At the end of each task. Otherwise each costs 0.1 to 0.2 s of CPU beside its work:

    Before a task Spark has Python look for modules again, which reads the archives on the path once
    for each package in them. After a task it has Python look through all objects for garbage; most
    belong to modules and stay for good.
    """
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            sys.path_importer_cache.pop(place, None)
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def _called(function: Callable[[bytes], bytes], task: bytes) -> bytes:
    try:
        return function(task)
    finally:
        lighten()


@contextmanager
def python_errors(group: str) -> Iterator[None]:
    """Raise TaskRaised for what Python raised on an executor.

    To be used within the job: a Java exception's text is asked of the JVM.
    """
    try:
        yield
    except Exception as error:
        said = from_python(error)
        if said is None:
            raise
        raise TaskRaised(group, said) from error


def from_python(error: BaseException) -> str | None:
    """Return the class and text of what Python raised on an executor; None if it did not."""
    _, traceback, after = text_of(error).rpartition("Traceback (most recent call last):")
    if not traceback:
        return None
    # Frames are indented, and so is what Java says after it.
    lines = (line for line in after.splitlines() if line and not line[0].isspace())
    return next(lines, "an error without a text")[:LONGEST_LINE]
