"""What driver and executors share as files: reference tables, and rows on their way back."""

import contextlib
import re
import shutil
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from topology.errors import SinkFailed
from topology.loaded import Loaded
from topology.reference import Reference

_LEFT_SECONDS = 24 * 3600.0  # what is older was left behind by a process that was killed
_OURS = re.compile(r"[0-9a-f]{32}")  # what a folder of a process is called
_KEPT_FILES = 2  # of each reference: tries that were made before the newest one read the other


class SharedFolder:
    """A folder of this process's own, below the pipeline's in the warehouse.

    The owner thread calls everything.
    """

    def __init__(self, path: Path | None, references: Iterable[Reference]) -> None:
        """`path` is the pipeline's folder; None where the warehouse is none."""
        self._path = path
        self._own = None if path is None else path / uuid.uuid4().hex
        self._references = list(references)
        self._tables: dict[str, tuple[Loaded, Path]] = {}  # by reference: what was written
        self._files: dict[str, list[Path]] = {}  # by reference: those that are left, in order

    @property
    def place(self) -> str | None:
        """The folder, for rows; None: there is none."""
        return None if self._own is None else str(self._own)

    def open(self) -> None:
        """Make the folder, and remove those that were left long ago. Raises SinkFailed."""
        if self._path is None or self._own is None:
            if self._references:
                raise SinkFailed(
                    f"reference '{self._references[0].name}' comes to executors by a file in the "
                    "warehouse; on the spark engine that must be a folder that they share"
                )
            return
        try:
            self._own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkFailed(f"{self._own} cannot be made: {error}") from error
        before = time.time() - _LEFT_SECONDS
        for left in self._path.iterdir():
            if not _OURS.fullmatch(left.name):
                continue  # whatever it is doing here, it is not ours
            with contextlib.suppress(OSError):  # another process removes it, too
                if left.stat().st_mtime < before:
                    shutil.rmtree(left)

    def tables(self) -> dict[str, str]:
        """Files with the rows of the reference tables as they are loaded now, by name.

        Those that have changed are written under a new name: tasks under way read the old ones.
        Of each only the newest two stay; a task that comes later for another fails, and its group
        is tried again with the newest. Raises OSError.
        """
        return {each.name: str(self._file_of(each)) for each in self._references}

    def _file_of(self, reference: Reference) -> Path:
        loaded = reference.loaded
        if self._own is None or loaded is None:  # `open`, and References, have seen to that
            raise AssertionError
        known = self._tables.get(reference.name)
        if known is not None and known[0] is loaded and known[1].exists():
            return known[1]
        self._own.mkdir(parents=True, exist_ok=True)  # one that long did nothing may be removed
        path = self._own / f"{uuid.uuid4().hex}.arrow"
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
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)


def _table_of(reference: Reference, loaded: Loaded) -> pa.Table:
    """The columns of a load: reading them again gives the same."""
    columns = dict(zip(reference.key, loaded.keys, strict=True))
    for name, column in zip(loaded.values.schema.names, loaded.values.columns, strict=True):
        columns.setdefault(name, column)
    return pa.table(columns)
