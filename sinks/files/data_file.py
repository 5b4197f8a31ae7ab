"""Parquet files with the rows of a micro-batch, in the place of their table."""

import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sinks.files.layout import Layout
from sinks.files.options import FileOptions
from sinks.files.statistics import Statistics, statistics_of


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

        A part of the table is one file, or several if it is large. Raises OSError; then no
        file is left.
        """
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
        name = f"part-{number:05d}-{uuid.uuid4()}{self._options.suffix}"
        place = self.root / folder
        place.mkdir(parents=True, exist_ok=True)
        path = place / name
        footers: list[pq.FileMetaData] = []
        try:
            pq.write_table(rows, path, metadata_collector=footers, **self._options.properties(rows))
            num_bytes = path.stat().st_size
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return DataFile(
            path=f"{folder}/{name}" if folder else name,
            num_rows=rows.num_rows,
            num_bytes=num_bytes,
            modified_ms=time.time_ns() // 1_000_000,
            partition=values,
            statistics=statistics_of(footers[0], rows.schema),
        )
