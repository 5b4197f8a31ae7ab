"""Data files: Parquet that Arrow writes beside a table, before any log names it."""

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from sinks.columns import Fitted, failing, fit
from sinks.errors import described
from sinks.names import check_below
from sinks.storage import Storage
from sinks.tables.partitioning import Layout, can_partition
from topology.errors import SinkFailed
from topology.sink import Batch, Share, Staged

Made = TypeVar("Made")

_AT_ONCE = 8  # files of a store: each is a request, or three
_TARGET_BYTES = 256 * 1024 * 1024  # a larger table in memory becomes several files
_ROW_GROUP_ROWS = 1_000_000
_SAMPLE_ROWS = 1000
# What writing raises of values; pyarrow's ArrowInvalid and Python's UnicodeErrors are among them.
_OF_VALUES = (ValueError, OverflowError)
_JSON = msgspec.json.Encoder(decimal_format="number")
_LONGEST_TEXT = 32  # characters of a bound; readers need no more to skip
_HIGHEST = "\U0010ffff"
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The bounds of a file's columns; a column without a name here has none.

    A bound may be wider than the values, never narrower. Columns within columns have none.
    """

    num_rows: int
    minima: dict[str, Any] = field(default_factory=dict)
    maxima: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)

    def as_delta_json(self) -> str:
        """Format the statistics as Delta's protocol has them ("Per-file Statistics")."""
        uppers = {name: _as_json(value, upper=True) for name, value in self.maxima.items()}
        found = {
            "numRecords": self.num_rows,
            "minValues": {
                name: _as_json(value, upper=False) for name, value in self.minima.items()
            },
            "maxValues": {name: upper for name, upper in uppers.items() if upper is not None},
            "nullCount": self.nulls,
        }
        return _JSON.encode(found).decode()


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
class FileStager:
    """Writes rows to files that no log names. A Stager, whose parts are the files.

    Keeps nothing: any thread or process may call.
    """

    storage: Storage
    uri: str  # of the table
    layout: Layout = field(default_factory=Layout)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))  # of the rows

    def stage(self, batch: Batch) -> Staged:
        """Write the rows that fit, and name the others. Raises OSError; then no file is left."""
        fitted = fit(batch.pieces, self.schema)
        fitted = fitted.without(self.layout.misfits(fitted.table, self.schema))
        files, fitted = write_good_rows(
            fitted, lambda rows: self.write(rows, batch.sequence), self.remove
        )
        return Staged(batch.shares, fitted.table.num_rows, tuple(files), fitted.rejected)

    def discard(self, staged: Staged) -> None:
        self.remove(staged.parts)

    def write(self, table: pa.Table, number: int) -> list[DataFile]:
        """Write all rows, in files of new names; `number` is the first part of each.

        On a local disk they survive a power cut. No rows are no files. Raises OSError,
        ValueError for a value that cannot be written, and SinkFailed where a link leads out of
        the root; then no file is left.
        """
        filesystem, root = self.storage.filesystem(self.uri)
        files: list[DataFile] = []  # also those beside one that fails

        def write(part: tuple[str, dict[str, str | None], pa.Table]) -> None:
            files.append(_write(filesystem, root, number, *part))

        parts = (
            (folder, values, piece)
            for folder, values, rows in (self.layout.parts(table) if table.num_rows else ())
            for piece in _pieces(rows)
        )
        try:
            if is_local(filesystem):
                for part in parts:
                    write(part)
                sync_below(root, [file.path for file in files])
            else:
                with ThreadPoolExecutor(_AT_ONCE) as pool:
                    while some := list(islice(parts, _AT_ONCE)):  # each is a copy
                        list(pool.map(write, some))
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
        """Check that this process finds what other processes wrote.

        Raises SinkFailed for a file that is missing, or of another size: a log that named it would
        lack its rows. Raises OSError where the store cannot be asked.
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


def joined(shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
    """Join what was staged of one group's rows, in their order.

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
    """Write the rows that fit, as one, and reject those that no file can hold.

    `write` makes files that nobody sees, or raises and leaves none; it may be called again with
    any of the rows. The files of some rows, made while bad ones are sought, are discarded. Raises
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
        wrong = {row: f"no file can hold it: {described(error)}" for row, error in bad}
        if not wrong:
            raise
    others = fitted.without(wrong)
    return write(others.table), others


def is_local(filesystem: fs.FileSystem) -> bool:
    """Whether files are on this machine's disks, where they must be synced."""
    return isinstance(filesystem, fs.LocalFileSystem)


def sync_below(root: str, paths: Iterable[str]) -> None:
    """Sync files below a folder, and all folders down to them. Raises OSError."""
    folders: set[str] = set()
    for path in paths:
        sync(f"{root}/{path}")
        folder = root
        for part in path.split("/"):
            folders.add(folder)
            folder = f"{folder}/{part}"
    for folder in folders:
        sync(folder)


def sync(path: str) -> None:
    """Write a file's content, or a folder's names, through to the disk. Raises OSError."""
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
    number: int,
    folder: str,
    values: dict[str, str | None],
    rows: pa.Table,
) -> DataFile:
    parent = f"{root}/{folder}" if folder else root
    if is_local(filesystem):
        if folder:
            check_below(Path(parent), Path(root))
        Path(parent).mkdir(parents=True, exist_ok=True)
    name = f"part-{number:05d}-{uuid.uuid4()}.snappy.parquet"
    footers: list[pq.FileMetaData] = []
    try:
        with as_arrow_said(), filesystem.open_output_stream(f"{parent}/{name}") as file:
            pq.write_table(rows, file, metadata_collector=footers, **_properties(rows))
            num_bytes = file.tell()
    except BaseException:
        _remove(filesystem, f"{parent}/{name}")
        raise
    return DataFile(
        path=f"{folder}/{name}" if folder else name,
        num_rows=rows.num_rows,
        num_bytes=num_bytes,
        modified_ms=time.time_ns() // 1_000_000,
        partition=values,
        statistics=_statistics(footers[0], rows.schema),
    )


def _remove(filesystem: fs.FileSystem, path: str) -> None:
    with contextlib.suppress(OSError):
        filesystem.delete_file(path)


def _pieces(rows: pa.Table) -> list[pa.Table]:
    count = max(1, -(-rows.nbytes // _TARGET_BYTES))
    length = -(-rows.num_rows // count)
    return [rows.slice(start, length) for start in range(0, rows.num_rows, length)]


def _properties(table: pa.Table) -> dict[str, Any]:
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
    """Return the columns of text whose first rows repeat values.

    Dictionaries cost CPU on every row, and pay only there: all columns with one cost twice
    as much as none of them (0.47 against 0.20 µs a row of nine columns), these a tenth more.
    """
    sample = table.slice(0, _SAMPLE_ROWS)
    return [
        field.name
        for field in table.schema
        if (pa.types.is_string(field.type) or pa.types.is_large_string(field.type))
        and 2 * pc.count_distinct(sample[field.name]).as_py() <= len(sample)
    ]


def _bounded(table: pa.Table) -> list[str]:
    """Return the columns that get bounds in the footer.

    Not those with a NaN: Parquet's writer leaves it out of the bounds, Spark puts it above
    every number, and would skip its rows. Nor columns of columns, which may have a NaN.
    """
    return [
        field.name
        for field in table.schema
        if not pa.types.is_nested(field.type) and not _has_nan(table[field.name])
    ]


def _has_nan(column: "pa.ChunkedArray[Any]") -> bool:
    if isinstance(column.type, pa.DictionaryType) and pa.types.is_floating(column.type.value_type):
        column = column.cast(column.type.value_type)
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def _is_of_values(error: Exception) -> bool:
    return isinstance(error, _OF_VALUES) and not isinstance(error, OSError)


def _statistics(footer: pq.FileMetaData, schema: pa.Schema) -> Statistics:
    found = Statistics(footer.num_rows)
    leaf = 0
    for column in schema:
        if not pa.types.is_nested(column.type):
            groups = range(footer.num_row_groups)
            _add_bounds(column, [footer.row_group(group).column(leaf) for group in groups], found)
        leaf += _leaves(column.type)
    return found


def _add_bounds(column: "pa.Field[Any]", chunks: Sequence[Any], into: Statistics) -> None:
    """Add the bounds of a column, made of those of its chunks. Booleans have none."""
    said = [chunk.statistics for chunk in chunks]
    if any(each is None or not each.has_null_count for each in said):
        return
    into.nulls[column.name] = sum(each.null_count for each in said)
    if not can_partition(column.type) or pa.types.is_boolean(column.type):
        return
    bounds = [
        _bounds(each)
        for each, chunk in zip(said, chunks, strict=True)
        if each.null_count < chunk.num_values
    ]
    if bounds and None not in bounds:
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        into.minima[column.name] = low[:_LONGEST_TEXT] if isinstance(low, str) else low
        if not isinstance(high, str) or len(high) <= _LONGEST_TEXT:
            into.maxima[column.name] = high
        # Above all that begins so, unless what was cut off begins with the highest itself.
        elif high[_LONGEST_TEXT] != _HIGHEST:
            into.maxima[column.name] = high[:_LONGEST_TEXT] + _HIGHEST


def _bounds(said: Any) -> Any:
    """Return the bounds of a chunk; None if it has none that JSON can hold."""
    low: Any
    high: Any
    try:
        low, high = (said.min, said.max) if said.has_min_max else (None, None)
    except (ValueError, OverflowError):  # a time that Python's datetime has not
        return None
    is_infinite = isinstance(low, float) and not (isfinite(low) and isfinite(high))
    return None if low is None or high is None or is_infinite else (low, high)


def _leaves(kind: Any) -> int:
    if isinstance(kind, pa.StructType):
        return sum(_leaves(kind.field(index).type) for index in range(kind.num_fields))
    if isinstance(kind, pa.MapType):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    value: Any = getattr(kind, "value_type", None)
    return _leaves(value) if value is not None and pa.types.is_nested(kind) else 1


def _as_json(bound: Any, *, upper: bool) -> Any:
    """Return a bound as Delta's readers expect it, times to the millisecond; None: it has none."""
    if not isinstance(bound, datetime):
        return bound.isoformat() if isinstance(bound, date) else bound
    plain = bound.replace(microsecond=bound.microsecond // 1000 * 1000, tzinfo=None)
    if upper and bound.microsecond % 1000:
        try:
            plain += _MILLISECOND
        except OverflowError:
            return None
    return plain.isoformat(timespec="milliseconds") + ("" if bound.tzinfo is None else "Z")
