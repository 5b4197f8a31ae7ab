"""What driver and executors share as files: reference tables, and rows on their way back."""

import contextlib
import uuid
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from sinks.run_folder import RunFolder
from topology.errors import SinkFailed
from topology.loaded import Loaded
from topology.reference import Reference

_KEPT_FILES = 2  # of each reference: tries that were made before the newest one read the other


class SharedFolder:
    """A folder of this run, below the pipeline's in the warehouse.

    The owner thread calls everything.
    """

    def __init__(self, path: Path | None, references: Iterable[Reference]) -> None:
        """`path` is the pipeline's folder; None where the warehouse is none."""
        self._folder = None if path is None else RunFolder(path, "run")
        self._references = list(references)
        self._tables: dict[str, tuple[Loaded, Path]] = {}  # by reference: what was written
        self._files: dict[str, list[Path]] = {}  # by reference: those that are left, in order

    @property
    def place(self) -> str | None:
        """The folder, for rows; None: there is none."""
        return None if self._folder is None else str(self._folder.path)

    def open(self) -> None:
        """Make the folder, and remove those of killed processes. Raises SinkFailed."""
        if self._folder is None:
            if self._references:
                raise SinkFailed(
                    f"reference '{self._references[0].name}' comes to executors by a file in the "
                    "warehouse; on the spark engine that must be a folder that they share"
                )
            return
        try:
            self._folder.open()
        except OSError as error:
            raise SinkFailed(f"{self._folder.path} cannot be made: {error}") from error

    def tables(self) -> dict[str, str]:
        """Files with the rows of the reference tables as they are loaded now, by name.

        Those that have changed are written under a new name: tasks under way read the old ones.
        Of each only the newest two stay; a task that comes later for another fails, and its group
        is tried again with the newest. Raises OSError.
        """
        return {each.name: str(self._file_of(each)) for each in self._references}

    def _file_of(self, reference: Reference) -> Path:
        loaded = reference.loaded
        if self._folder is None or loaded is None:  # `open`, and References, have seen to that
            raise AssertionError
        known = self._tables.get(reference.name)
        if known is not None and known[0] is loaded and known[1].exists():
            return known[1]
        path = self._folder.open() / f"{uuid.uuid4().hex}.arrow"  # someone may have cleaned up
        table = _table_of(reference, loaded)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        self._tables[reference.name] = loaded, path
        self._replaced(self._files.setdefault(reference.name, []), path)
        return path

    def _replaced(self, files: list[Path], newest: Path) -> None:
        files.append(newest)
        while len(files) > _KEPT_FILES:
            with contextlib.suppress(OSError):  # then `close` removes it
                files.pop(0).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder and what is in it. Idempotent."""
        if self._folder is not None:
            self._folder.close()


def _table_of(reference: Reference, loaded: Loaded) -> pa.Table:
    """The columns of a load: reading them again gives the same."""
    columns = dict(zip(reference.key, loaded.keys, strict=True))
    for name, column in zip(loaded.values.schema.names, loaded.values.columns, strict=True):
        columns.setdefault(name, column)
    return pa.table(columns)
