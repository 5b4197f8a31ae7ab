"""Data files: Parquet that Arrow writes beside a table, before any log names it."""

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from sinks.columns import Fitted, failing, fit
from sinks.names import check_below
from sinks.storage import Storage
from sinks.tables.partitioning import Layout
from sinks.tables.statistics import Statistics, statistics_of
from topology.errors import SinkFailed
from topology.sink import Batch, Piece, Share, Staged

Made = TypeVar("Made")

_AT_ONCE = 8  # files of a store: each is a request, or three
_TARGET_BYTES = 256 * 1024 * 1024  # a larger table in memory becomes several files
_ROW_GROUP_ROWS = 1_000_000
_SAMPLE_ROWS = 1000
# What writing raises of values; pyarrow's ArrowInvalid and Python's UnicodeErrors are among them.
_OF_VALUES = (ValueError, OverflowError)
_LONGEST = 200  # characters of an error in a reason


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that is written, and that no log names yet: no reader sees it."""

    path: str  # below the table's folder, "/" between levels
    num_rows: int
    num_bytes: int
    modified_ms: int
    partition: dict[str, str | None]  # values by partition column, as the layout spells them
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class DataFileWriter:
    """Writes tables as files below a folder. Keeps nothing: any thread or process may call."""

    storage: Storage
    uri: str  # of the table
    layout: Layout = field(default_factory=Layout)

    def write(self, table: pa.Table, number: int) -> list[DataFile]:
        """Write all rows, in files of new names; `number` is the first part of each.

        On a local disk they survive a power cut. No rows are no files. Raises OSError,
        ValueError for a value that cannot be written, and SinkFailed where a link leads out of
        the root; then no file is left.
        """
        filesystem, root = self.storage.filesystem(self.uri)
        files: list[DataFile] = []  # also those beside one that fails

        def write(rows: pa.Table, folder: str, values: dict[str, str | None]) -> None:
            files.append(_write(filesystem, root, rows, number, folder, values))

        try:
            if table.num_rows:
                parts = (
                    (piece, folder, values)
                    for folder, values, rows in self.layout.parts(table)
                    for piece in _pieces(rows)
                )
                _each(write, parts, at_once=1 if is_local(filesystem) else _AT_ONCE)
            if files and is_local(filesystem):
                sync_below(root, [file.path for file in files])
        except BaseException:
            self.remove(files)
            raise
        return files

    def remove(self, files: Iterable[DataFile]) -> None:
        """Remove files that no log names. Those that are gone already do no harm."""
        filesystem, root = self.storage.filesystem(self.uri)
        for file in files:
            _remove(filesystem, f"{root}/{file.path}")

    def check(self, files: Iterable[DataFile]) -> None:
        """See that this process finds what other processes wrote.

        Raises SinkFailed for a file that is not there, or not as large as it was written: a log
        that named it would lack its rows. Raises OSError where the store cannot be asked.
        """
        filesystem, root = self.storage.filesystem(self.uri)
        for file in files:
            found = filesystem.get_file_info(f"{root}/{file.path}")
            if found.type != fs.FileType.File:
                wrong = "is not there"
            elif found.size != file.num_bytes:
                wrong = f"has {found.size} bytes here, not {file.num_bytes}"
            else:
                continue
            raise SinkFailed(
                f"file {root}/{file.path}, which an executor wrote, {wrong}: executors and "
                "driver must share the folder of the table"
            )


@dataclass(frozen=True, slots=True)
class FileStager:
    """Writes the rows of groups to files that no log names. A Stager.

    The parts of what it stages are the files.
    """

    files: DataFileWriter
    schema: pa.Schema  # of the rows

    def stage(self, group: Batch) -> Staged:
        """Write the rows that fit; the others are named. Raises OSError; then no file is left."""
        files, fitted = self.put(group.pieces, group.sequence)
        return Staged(group.shares, fitted.table.num_rows, tuple(files), fitted.rejected)

    def put(self, pieces: Sequence[Piece], number: int) -> tuple[list[DataFile], Fitted]:
        """Write the rows that fit, and say which; `number` is part of the files' names."""
        fitted = fit(pieces, self.schema)
        fitted = fitted.without(self.files.layout.misfits(fitted.table, self.schema))
        return write_good_rows(
            fitted, lambda rows: self.files.write(rows, number), self.files.remove
        )

    def discard(self, staged: Staged) -> None:
        """Remove the files."""
        self.files.remove(staged.parts)


def joined(shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
    """Put together what was staged of one group's rows, in their order.

    The parts are all their parts; a rejected row's index is the one that it has in the group.
    """
    rejected: dict[int, str] = {}
    start = 0
    for each in staged:
        rejected |= {start + row: reason for row, reason in each.rejected.items()}
        start += each.num_rows + len(each.rejected)
    parts = tuple(part for each in staged for part in each.parts)
    return Staged(shares, start - len(rejected), parts, rejected)


def write_good_rows(
    fitted: Fitted, write: Callable[[pa.Table], Made], discard: Callable[[Made], object]
) -> tuple[Made, Fitted]:
    """Write the rows that fit, as one, without those that no file can hold; these are rejected.

    `write` makes files that nobody sees, or raises and leaves none; it may be called again with
    any of the rows. What it makes of some of them, while bad ones are sought, is discarded. Raises
    what `write` raises if no row is to blame: each can be written by itself. Costs some
    2 · log2(rows) calls for each bad row, and at most two for each row.
    """
    rows = fitted.table
    try:
        return write(rows), fitted
    except _OF_VALUES as error:
        if not _is_of_values(error):
            raise

        def try_out(start: int, stop: int) -> None:
            discard(write(rows.slice(start, stop - start)))

        bad = failing(try_out, rows.num_rows, _is_of_values)
        wrong = {row: f"no file can hold it: {_line(error)}" for row, error in bad}
        if not wrong:
            raise
    others = fitted.without(wrong)
    return write(others.table), others


def is_local(filesystem: fs.FileSystem) -> bool:
    """Whether files are on this machine's disks, which want to be synced."""
    return isinstance(filesystem, fs.LocalFileSystem)


def sync_below(root: str, paths: Iterable[str]) -> None:
    """Write files below a folder through to the disk, and the names of all folders down to them.

    Raises OSError.
    """
    folders: set[str] = set()
    for path in paths:
        sync(f"{root}/{path}")
        place = root
        for part in path.split("/"):
            folders.add(place)
            place = f"{place}/{part}"
    for folder in folders:
        sync(folder)


def sync(path: str) -> None:
    """Write a file's content, or the names in a folder, through to the disk. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def as_arrow_said() -> Iterator[None]:
    """Raise what writing a file raised first, not what closing it raised thereupon."""
    try:
        yield
    except RuntimeError as error:
        cause = error.__context__
        if isinstance(cause, pa.ArrowException | OSError):
            raise cause from None
        raise


def _write(
    filesystem: fs.FileSystem,
    root: str,
    rows: pa.Table,
    number: int,
    folder: str,
    values: dict[str, str | None],
) -> DataFile:
    place = f"{root}/{folder}" if folder else root
    if is_local(filesystem):
        if folder:
            check_below(Path(place), Path(root))
        Path(place).mkdir(parents=True, exist_ok=True)
    name = f"part-{number:05d}-{uuid.uuid4()}.snappy.parquet"
    footers: list[pq.FileMetaData] = []
    try:
        with as_arrow_said(), filesystem.open_output_stream(f"{place}/{name}") as file:
            pq.write_table(rows, file, metadata_collector=footers, **_properties(rows))
            num_bytes = file.tell()
    except BaseException:
        _remove(filesystem, f"{place}/{name}")
        raise
    return DataFile(
        path=f"{folder}/{name}" if folder else name,
        num_rows=rows.num_rows,
        num_bytes=num_bytes,
        modified_ms=time.time_ns() // 1_000_000,
        partition=values,
        statistics=statistics_of(footers[0], rows.schema),
    )


def _each(work: Callable[..., None], tasks: Iterable[tuple[Any, ...]], at_once: int) -> None:
    """Do all tasks, so many at a time, and take no more of them. Raises when none is under way."""
    with ThreadPoolExecutor(at_once) as pool:
        doing: set[Future[None]] = set()
        for task in tasks:
            doing.add(pool.submit(work, *task))
            if len(doing) == at_once:
                done, doing = wait(doing, return_when=FIRST_COMPLETED)
                for each in done:
                    each.result()
        for each in doing:
            each.result()


def _remove(filesystem: fs.FileSystem, path: str) -> None:
    with contextlib.suppress(OSError):
        filesystem.delete_file(path)


def _pieces(rows: pa.Table) -> list[pa.Table]:
    count = max(1, -(-rows.nbytes // _TARGET_BYTES))
    length = -(-rows.num_rows // count)
    return [rows.slice(start, length) for start in range(0, rows.num_rows, length)]


def _properties(table: pa.Table) -> dict[str, Any]:
    """What pyarrow's Parquet writer is given for this table."""
    return {
        "compression": "snappy",
        "row_group_size": _ROW_GROUP_ROWS,
        "use_dictionary": _repeating(table),
        "write_statistics": _bounded(table),
        "coerce_timestamps": "us",  # Spark knows no shorter time
        "allow_truncated_timestamps": True,
        "store_decimal_as_integer": True,  # as Spark stores short ones
        "store_schema": False,
    }


def _repeating(table: pa.Table) -> list[str]:
    """The columns of text whose first rows say that values come again.

    Dictionaries cost CPU on every row, and pay only there: all columns with one cost twice
    as much as none of them (0.47 against 0.20 µs a row of nine columns), these a tenth more.
    """
    sample = table.slice(0, _SAMPLE_ROWS)
    return [
        field.name
        for field in table.schema
        if _is_text(field.type) and 2 * pc.count_distinct(sample[field.name]).as_py() <= len(sample)
    ]


def _bounded(table: pa.Table) -> list[str]:
    """The columns whose bounds the footer may tell.

    Not those with a NaN: Parquet's writer leaves it out of the bounds, Spark puts it above
    every number, and would pass over its rows. Nor columns of columns, in which there may be one.
    """
    return [
        field.name
        for field in table.schema
        if not pa.types.is_nested(field.type)
        and not (_is_float(field.type) and _any_nan(table[field.name]))
    ]


def _is_float(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind.value_type if isinstance(kind, pa.DictionaryType) else kind)


def _any_nan(column: "pa.ChunkedArray[Any]") -> bool:
    if isinstance(column.type, pa.DictionaryType):
        column = column.cast(column.type.value_type)
    return bool(pc.any(pc.is_nan(column)).as_py())


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_of_values(error: Exception) -> bool:
    return isinstance(error, _OF_VALUES) and not isinstance(error, OSError)


def _line(error: Exception) -> str:
    said = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {said}"[:_LONGEST]
