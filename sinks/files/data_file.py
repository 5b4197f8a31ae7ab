"""Parquet files with the rows of a micro-batch, in the place of their table."""

import contextlib
import itertools
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sinks.files.layout import Layout
from sinks.files.options import FileOptions
from sinks.files.statistics import Statistics, statistics_of
from sinks.paths import check_below


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that is written, and that no log names yet: no reader sees it."""

    path: str  # below the table's folder, "/" between levels
    num_rows: int
    num_bytes: int
    modified_ms: int
    partition: dict[str, str | None]  # values by partition column
    statistics: Statistics


class DataFileWriter:
    """Writes tables as files below one local folder. Keeps nothing; any thread may call."""

    def __init__(self, root: Path, layout: Layout, options: FileOptions | None = None) -> None:
        self.root = root
        self.layout = layout
        self._options = options or FileOptions()

    def write(self, table: pa.Table, number: int) -> list[DataFile]:
        """Write all rows, in files of new names; `number` is the first part of each.

        A part of the table is one file, or several if it is large. No rows are no files. Raises
        OSError, ValueError for a value that cannot be written, and SinkFailed where a link leads
        out of the root; then no file is left.
        """
        if not table.num_rows:
            return []
        files: list[DataFile] = []
        try:
            for folder, values, rows in self.layout.parts(table):
                for piece in self._pieces(rows):
                    file = self._write(piece, number, folder, values)
                    files.append(file)  # one by one, so that an error leaves none behind
        except BaseException:
            self.remove(files)
            raise
        return files

    def join(
        self,
        tables: Iterable[pa.Table],
        number: int,
        folder: str,
        partition: dict[str, str | None],
    ) -> DataFile | None:
        """Write tables of one schema, one after the other, to one file in a folder of the table.

        The tables are without the partition's columns, and asked for one by one: about
        `row_group_bytes` of them are in memory. None: they have no rows. Raises as `write`, and
        what `tables` raises; then no file is left.
        """
        groups = _row_groups(tables, self._options)
        first = next(groups, None)
        if first is None:
            return None
        second = next(groups, None)
        rest = groups if second is None else itertools.chain([second], groups)
        properties = self._options.properties(first, whole=second is None)
        group_rows = properties.pop("row_group_size")
        path = self._new_path(number, folder)
        footers: list[pq.FileMetaData] = []
        try:
            with (
                as_arrow_said(),
                pq.ParquetWriter(
                    path, first.schema, metadata_collector=footers, **properties
                ) as file,
            ):
                for group in itertools.chain([first], rest):
                    file.write_table(group, group_rows)
            return self._data_file(path, footers[0], first.schema, folder, partition)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def remove(self, files: Sequence[DataFile]) -> None:
        """Remove files that no log names. Those that are gone already do no harm."""
        for file in files:
            with contextlib.suppress(OSError):
                (self.root / file.path).unlink(missing_ok=True)

    def _pieces(self, rows: pa.Table) -> list[pa.Table]:
        count = max(1, -(-rows.nbytes // self._options.target_bytes))
        length = -(-rows.num_rows // count)
        return [rows.slice(start, length) for start in range(0, rows.num_rows, length)]

    def _write(
        self, rows: pa.Table, number: int, folder: str, values: dict[str, str | None]
    ) -> DataFile:
        path = self._new_path(number, folder)
        footers: list[pq.FileMetaData] = []
        try:
            with as_arrow_said():
                pq.write_table(
                    rows, path, metadata_collector=footers, **self._options.properties(rows)
                )
            return self._data_file(path, footers[0], rows.schema, folder, values)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def _new_path(self, number: int, folder: str) -> Path:
        place = self.root / folder
        if folder:
            check_below(place, self.root)
        place.mkdir(parents=True, exist_ok=True)
        return place / f"part-{number:05d}-{uuid.uuid4()}{self._options.suffix}"

    def _data_file(
        self,
        path: Path,
        footer: pq.FileMetaData,
        schema: pa.Schema,
        folder: str,
        values: dict[str, str | None],
    ) -> DataFile:
        return DataFile(
            path=f"{folder}/{path.name}" if folder else path.name,
            num_rows=footer.num_rows,
            num_bytes=path.stat().st_size,
            modified_ms=time.time_ns() // 1_000_000,
            partition=values,
            statistics=statistics_of(footer, schema),
        )


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


def _row_groups(tables: Iterable[pa.Table], options: FileOptions) -> Iterator[pa.Table]:
    """The rows of small tables together, so that they are not a row group each."""
    held: list[pa.Table] = []
    num_rows = num_bytes = 0
    for table in tables:
        num_rows += table.num_rows
        num_bytes += table.nbytes
        if held and (num_rows > options.row_group_rows or num_bytes > options.row_group_bytes):
            yield pa.concat_tables(held)
            held = []
            num_rows, num_bytes = table.num_rows, table.nbytes
        if table.num_rows:
            held.append(table)
    if held:
        yield pa.concat_tables(held)
