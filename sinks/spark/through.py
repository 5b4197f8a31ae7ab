"""A Spark step at work: rows to Spark, through a function of the user's, and on to the sink."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from sinks.columns import Fitted, fit
from sinks.names import local_uri
from sinks.spark.apart import bring, check_all_taken, stage_apart
from sinks.spark.existing import spark_schema
from sinks.spark.reasons import one_line
from sinks.spark.records import fit_records
from sinks.spark.spool import Spool, remove
from topology.errors import SinkFailed
from topology.sink import Batch, Piece, Sink, SinkContext, SparkDriver, Staged, innermost
from topology.spark_step import SparkStep

Result = TypeVar("Result")


class SparkPassage:
    """Has Spark run a step's function over each batch in front of a sink. A Passage.

    1. The rows that fit the step's columns go to the spool, as Parquet.
    2. One Spark job reads them, runs the function, and has executors stage what comes out, where
       the sink lets others stage (`Sink`); else it is brought here for the sink to stage.
    3. The spool's files are removed.

    The sink's `open`, `fence` and `commit` are the caller's affair.
    """

    def __init__(
        self, driver: SparkDriver, step: SparkStep, sink: Sink[Any], context: SinkContext
    ) -> None:
        self._driver = driver
        self._step = step
        self._sink = sink
        self._job = f"{sink.name}-{step.name}"
        self._spool = Spool(context.storage.warehouse, f"{context.pipeline}.{context.sink}.step")
        self._spark_schema: Any = None

    def open(self) -> None:
        """Make the spool, and call the function with no rows.

        Raises SinkFailed: the place cannot be written, the function fails, or it gives other
        columns than the sink has.
        """
        self._spool.open()
        self._spark_schema = spark_schema(self._step.schema)

        def job(session: Any) -> list[str]:
            frame = session.createDataFrame([], self._spark_schema)
            return [str(name) for name in called(self._step, frame).columns]

        try:
            found = self._driver.run(job, group=f"{self._job}-open")
        except SinkFailed:
            raise
        except Exception as error:
            raise SinkFailed(f"Spark step '{self._step.name}': {one_line(error)}") from error
        wanted = getattr(innermost(self._sink), "schema", None)
        if isinstance(wanted, pa.Schema) and (wrong := _differences(found, wanted)):
            raise SinkFailed(
                f"Spark step '{self._step.name}' before sink '{self._sink.name}': {wrong}"
            )

    def stage(self, batch: Batch) -> Staged:
        """Have the sink make ready what the step makes of the rows; see `Passage`."""
        sink = self._sink
        fitted = self._fit(batch.pieces)
        stager = sink.stager()
        if stager is not None and fitted.table.num_rows:
            apart = self._run(
                fitted.table,
                batch.sequence,
                lambda frame: stage_apart(frame, stager, batch.sequence, self._job),
            )
            staged = sink.joined(batch.shares, apart)
        else:
            pieces = self._brought(fitted.table, batch.sequence)
            num_rows = sum(map(len, pieces))
            # To the sink they are all of the first share: whose they are nobody can tell.
            shares = tuple(
                replace(share, num_rows=0 if place else num_rows)
                for place, share in enumerate(batch.shares)
            )
            staged = sink.stage(Batch(batch.sequence, pieces, num_rows, shares))
        check_all_taken(sink, staged, self._step.name)
        return replace(staged, shares=batch.shares, rejected=fitted.rejected)

    def close(self) -> None:
        """Remove the spool."""
        self._spool.close()

    def _fit(self, pieces: Sequence[Piece]) -> Fitted:
        return fit_records(pieces) if self._step.reads_source else fit(pieces, self._step.schema)

    def _brought(self, rows: pa.Table, number: int) -> list[Piece]:
        """What the step makes of rows, in memory."""
        if not rows.num_rows:
            return []
        return self._run(rows, number, lambda frame: [*bring(frame, self._job)])

    def _run(self, rows: pa.Table, number: int, take: Callable[[Any], Result]) -> Result:
        """Have Spark read rows and run the function; `take` what comes out, in the same job."""
        files = self._spool.put(rows, str(number))
        try:
            uris = [local_uri(path) for path in files]

            def job(session: Any) -> Result:
                frame = session.read.schema(self._spark_schema).parquet(*uris)
                return take(called(self._step, frame))

            return self._driver.run(job, group=self._job)
        finally:
            remove(files)


def called(step: SparkStep, frame: Any) -> Any:
    """The DataFrame that a step's function makes of another. Raises SinkFailed if it is none."""
    made = step.function(frame)
    if not hasattr(made, "mapInArrow"):
        raise SinkFailed(
            f"Spark step '{step.name}' returned {type(made).__name__}; a DataFrame is allowed"
        )
    return made


def _differences(found: Sequence[str], wanted: pa.Schema) -> str | None:
    """Why rows with the columns `found` can never fit, or None."""
    twice = [name for name in found if found.count(name) > 1]
    if twice:
        return f"column '{twice[0]}' is there twice"
    unknown = [name for name in found if name not in wanted.names]
    if unknown:
        return f"column '{unknown[0]}' is not in the sink; allowed are {', '.join(wanted.names)}"
    missing = [field.name for field in wanted if not field.nullable and field.name not in found]
    if missing:
        return f"column '{missing[0]}' is missing, and must not be null"
    return None
