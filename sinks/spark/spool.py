"""Where rows wait, as uncompressed Parquet, for Spark to read them.

Arrow to Spark by a file costs half the CPU of any way through the gateway. Each process
has a folder of its own, so replicas that share a warehouse do not meet.
"""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sinks.files.data_file import as_arrow_said
from sinks.paths import local_path
from sinks.run_folder import RunFolder

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
        self._folder = RunFolder(root, f"headrace-spool-{safe}")

    def open(self) -> None:
        """Make the folder. Raises OSError when the place cannot be written."""
        self._folder.open()

    def place(self, name: str) -> Path:
        """Where a file of this name may be written; its folder is there. Raises OSError."""
        return self._folder.open() / name  # someone may have cleaned up

    def put(self, table: pa.Table, sequence: int) -> list[Path]:
        """Write a table; returns its files.

        Raises OSError, and ValueError for a value that cannot be written; then no file is left.
        """
        count = min(_MOST_FILES, max(1, table.num_rows // _ROWS_PER_FILE))
        length = -(-table.num_rows // count)
        files: list[Path] = []
        try:
            for number in range(count):
                files.append(self.place(f"{sequence}-{number}.parquet"))
                _write(table.slice(number * length, length), files[-1])
        except BaseException:
            self.remove(files)
            raise
        return files

    def remove(self, files: list[Path]) -> None:
        """Remove files `put` has written."""
        for path in files:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder."""
        self._folder.close()


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
