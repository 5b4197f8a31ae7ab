"""Rows between Arrow and Spark: spooled files, schemas, records as columns, reference tables."""

import tempfile
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sinks.columns import Fitted, fit
from sinks.errors import one_line
from sinks.names import backticked, local_path, table_path
from sinks.run_folder import RunFolder
from sinks.tables.files import as_arrow_said, write_good_rows
from sinks.tables.partitioning import empty_texts
from topology.errors import InvalidSchema, ReferenceLoadFailed, SinkFailed
from topology.record import HeadersUnreadable, Record, headers_of
from topology.reference import Reference
from topology.sink import Batch, Piece, SparkJobs, Staged
from topology.spark_step import KAFKA_COLUMNS
from topology.vectorised import columns_of

_ROWS_PER_FILE = 50_000  # below that a second task costs more than it saves
_MOST_FILES = 2
_ABSENT = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA", "DELTA_TABLE_NOT_FOUND")
_PLAIN = ("key", "value", "partition", "offset", "timestamp_ms")
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999
_HEADERS = KAFKA_COLUMNS.field("headers").type
# A CSV file's first line names its columns. Types are not guessed: a guess makes 501 of "00501".
_OPTIONS = {"csv": {"header": "true"}}

# Spooled rows: a file costs half the CPU of any way from Arrow to Spark through the gateway


def open_spool(warehouse: str, owner: str) -> RunFolder:
    """Make a spool of uncompressed Parquet, of one sink in one process.

    It lies in `<warehouse>/.spool/`, where executors that share the warehouse can read it, as the
    same user, or in the local temporary folder when the warehouse is no local path (then only a
    `local` master can read it). Raises SinkFailed when the place cannot be written.
    """
    path = local_path(warehouse)
    root = Path(tempfile.gettempdir()) if path is None else path / ".spool"
    safe = "".join(c if c.isalnum() or c in "-." else "_" for c in owner[:100])
    folder = RunFolder(root, f"headrace-spool-{safe}")
    try:
        folder.open()
    except OSError as error:
        raise SinkFailed(
            f"the spool of '{owner}' in {root}: {error}; a folder that can be written is needed"
        ) from error
    return folder


@dataclass(frozen=True, slots=True)
class SpoolStager:
    """Writes batches to files of a spool, in any process that shares its folder. A Stager.

    The parts of what it stages are the files.
    """

    folder: Path
    schema: pa.Schema  # of the rows
    partition_by: tuple[str, ...]

    def stage(self, batch: Batch) -> Staged:
        """Write the rows that fit. Raises OSError; then no file is left."""
        name = f"{batch.sequence}-{uuid.uuid4().hex}"
        fitted = fit(batch.pieces, self.schema)
        fitted = fitted.without(empty_texts(fitted.table, self.schema, self.partition_by))
        files, fitted = write_good_rows(
            fitted,
            lambda rows: tuple(put(self.folder, rows, name)) if rows.num_rows else (),
            remove,
        )
        return Staged(batch.shares, fitted.table.num_rows, files, fitted.rejected)

    def discard(self, staged: Staged) -> None:
        remove(staged.parts)


def put(folder: Path, table: pa.Table, name: str) -> list[Path]:
    """Write a table to files in a folder, as many as Spark is to have tasks.

    Raises OSError, and ValueError for a value that cannot be written; then no file is left.
    """
    folder.mkdir(parents=True, exist_ok=True)  # someone may have cleaned up
    count = min(_MOST_FILES, max(1, table.num_rows // _ROWS_PER_FILE))
    length = -(-table.num_rows // count)
    files: list[Path] = []
    try:
        for number in range(count):
            files.append(folder / f"{name}-{number}.parquet")
            with as_arrow_said():
                pq.write_table(
                    table.slice(number * length, length),
                    files[-1],
                    compression="none",
                    use_dictionary=False,
                    write_statistics=False,
                    coerce_timestamps="us",  # Spark knows no shorter time
                    allow_truncated_timestamps=True,
                    store_schema=False,
                )
    except BaseException:
        remove(files)
        raise
    return files


def sequence_of(file: Path) -> int:
    """Return the number of the batch whose rows a SpoolStager has written there."""
    return int(file.name.partition("-")[0])


def remove(files: Iterable[Path]) -> None:
    for path in files:
        path.unlink(missing_ok=True)


# Schemas


def spark_schema(schema: pa.Schema) -> Any:
    """Return the Spark schema of a pyarrow schema. Raises InvalidSchema, naming the column."""
    from pyspark.errors import PySparkTypeError  # noqa: PLC0415 - see sinks/__init__
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    fields = []
    for field in schema:
        try:
            kind = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        except PySparkTypeError as error:
            raise InvalidSchema(
                f"column '{field.name}': found {field.type}; Spark has no such type"
            ) from error
        fields.append(StructField(field.name, kind, nullable=True))
    return StructType(fields)


def arrow_schema(found: Any) -> pa.Schema:
    """Return the Arrow schema of a Spark schema, with null for types that Arrow has not.

    Within a column anything may be null: so Spark writes it, whatever a table's rows are.
    """
    from pyspark.errors import PySparkTypeError  # noqa: PLC0415
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415

    def kind(spark_type: Any) -> pa.DataType:
        try:
            return to_arrow_type(spark_type)
        except PySparkTypeError:
            return pa.null()

    inner = [each.dataType for each in found.toNullable().fields]
    return pa.schema(
        [
            pa.field(each.name, kind(its), each.nullable)
            for each, its in zip(found.fields, inner, strict=True)
        ]
    )


def existing_schema(session: Any, kind: str, path: str) -> pa.Schema | None:
    """Return the schema of the table at a path, or None when there is none yet.

    Spark appends any Parquet to any folder of Parquet, and only readers notice: so schemas are
    compared once, when the sink is opened.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    try:
        return arrow_schema(session.read.format(kind).load(path).schema)
    except AnalysisException as error:
        if error.getCondition() in _ABSENT:
            return None
        raise


# Records in the columns of Spark's own Kafka source


def fit_records(pieces: Sequence[Piece]) -> Fitted:
    """Return records as KAFKA_COLUMNS. Pieces of no records are judged by their columns.

    All fit but those whose headers cannot be read. A time is null if it is none of the years 1
    to 9999: of a producer that counts nanoseconds, for example.
    """
    wrong: dict[int, str] = {}
    columns: list[Piece] = []
    first = 0
    for piece in pieces:
        columns.append(_columns(piece, first, wrong))
        first += len(piece)
    fitted = fit(columns, KAFKA_COLUMNS)
    if not wrong:
        return fitted
    kept = np.delete(np.arange(first), list(fitted.rejected))
    places = np.searchsorted(kept, list(wrong)).tolist()
    return fitted.without(dict(zip(places, wrong.values(), strict=True)))


def _columns(piece: Piece, first: int, wrong: dict[int, str]) -> Piece:
    """Return a piece's records as columns; put unreadable ones into `wrong`, by their row."""
    if isinstance(piece, pa.RecordBatch) or not all(isinstance(row, Record) for row in piece):
        return piece
    messages = [record.message for record in piece]
    plain = columns_of(messages, _PLAIN)
    milliseconds = plain["timestamp_ms"]
    known: Any = pc.and_(
        pc.greater_equal(milliseconds, pa.scalar(_FIRST_MS)),
        pc.less_equal(milliseconds, pa.scalar(_LAST_MS)),
    )
    times = pc.if_else(known, milliseconds, None).cast(pa.timestamp("ms", "UTC"))
    headers: list[list[dict[str, Any]] | None] = []
    for row, message in enumerate(messages, first):
        found: list[dict[str, Any]] = []
        try:
            found = [{"key": key, "value": value} for key, value in headers_of(message) or ()]
        except HeadersUnreadable as error:
            wrong[row] = error.reason
        headers.append(found or None)  # without any they are null, as Spark has it
    columns: dict[str, pa.Array[Any]] = {
        "topic": pa.array([message.topic() for message in messages], pa.string()),
        "partition": plain["partition"],
        "offset": plain["offset"],
        "timestamp": times.cast(pa.timestamp("us", "UTC")),
        "key": plain["key"],
        "value": plain["value"],
        "headers": pa.array(headers, _HEADERS),
    }
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in KAFKA_COLUMNS.names], schema=KAFKA_COLUMNS
    )


# Reference tables


def read_by_spark(reference: Reference, spark: SparkJobs, warehouse: str) -> pa.Table:
    """Read a reference's rows, at most one more than it may have. Any thread may call.

    Raises ReferenceLoadFailed, naming the place and Spark's error.
    """

    def job(session: Any) -> pa.Table:
        if reference.format == "table":
            frame = session.table(reference.place)
        else:
            options = _OPTIONS.get(reference.format, {}) | reference.properties
            reader = session.read.format(reference.format).options(**options)
            frame = reader.load(table_path(warehouse, reference.place))
        wanted = reference.wanted_of(frame.columns)
        names = map(backticked, wanted)  # a dot would be a field
        table: pa.Table = frame.select(*names).limit(reference.max_rows + 1).toArrow()
        return table

    try:
        return spark.run(job, group=f"reference-{reference.name}")
    except ReferenceLoadFailed:
        raise
    except Exception as error:
        reason = f"{reference.format} '{reference.place}': {one_line(error)}"
        raise ReferenceLoadFailed(reference.name, reason) from error
