"""Where rows wait, as uncompressed Parquet, for Spark to read them.

Arrow to Spark by a file costs half the CPU of any way through the gateway. Each process
has a folder of its own, so replicas that share a warehouse do not meet.
"""

import tempfile
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sinks.columns import fit
from sinks.names import local_path
from sinks.run_folder import RunFolder
from sinks.tables.files import as_arrow_said, write_good_rows
from sinks.tables.partitioning import empty_texts
from topology.errors import SinkFailed
from topology.sink import Batch, Staged

_ROWS_PER_FILE = 50_000  # below that a second task costs more than it saves
_MOST_FILES = 2


class Spool:
    """The spool of one sink in one process.

    It lies in `<warehouse>/.spool/`, where executors that share the warehouse can read it, as the
    same user, or in the local temporary folder when the warehouse is no local path (then only a
    `local` master can read it).
    """

    def __init__(self, warehouse: str, owner: str) -> None:
        path = local_path(warehouse)
        root = Path(tempfile.gettempdir()) if path is None else path / ".spool"
        safe = "".join(c if c.isalnum() or c in "-." else "_" for c in owner[:100])
        self._owner, self._root = owner, root
        self._folder = RunFolder(root, f"headrace-spool-{safe}")

    def open(self) -> None:
        """Make the folder. Raises SinkFailed when the place cannot be written."""
        try:
            self._folder.open()
        except OSError as error:
            raise SinkFailed(
                f"the spool of '{self._owner}' in {self._root}: {error}; a folder that can be "
                "written is needed"
            ) from error

    def put(self, table: pa.Table, name: str) -> list[Path]:
        """Write a table; returns its files. Raises as `put`."""
        return put(self._folder.open(), table, name)

    def stager(self, schema: pa.Schema, partition_by: Sequence[str]) -> "SpoolStager":
        """What writes rows of a schema here. Raises OSError."""
        return SpoolStager(self._folder.open(), schema, tuple(partition_by))

    def close(self) -> None:
        """Remove the folder."""
        self._folder.close()


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
        """Remove the files."""
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
            _write(table.slice(number * length, length), files[-1])
    except BaseException:
        remove(files)
        raise
    return files


def sequence_of(file: Path) -> int:
    """The number of the batch whose rows a SpoolStager has written there."""
    return int(file.name.partition("-")[0])


def remove(files: Iterable[Path]) -> None:
    """Remove files, if they are there."""
    for path in files:
        path.unlink(missing_ok=True)


def _write(rows: pa.Table, path: Path) -> None:
    with as_arrow_said():
        pq.write_table(
            rows,
            path,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
            coerce_timestamps="us",  # Spark knows no shorter time
            allow_truncated_timestamps=True,
            store_schema=False,
        )
