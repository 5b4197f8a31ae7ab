"""pyiceberg's file systems, as our tables need them. Imported by pyiceberg's users only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from sinks.storage import Storage
from sinks.tables.files import is_local, sync

Properties = tuple[tuple[str, str], ...]


class SyncedFileIO(PyArrowFileIO):
    """Writes metadata so that it survives a power cut: on a local disk a closed file is synced.

    A catalogue names a file only after it was closed.
    """

    def new_output(self, location: str) -> PyArrowFile:
        """See FileIO."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        filesystem = self.fs_by_scheme(scheme, netloc)
        kind = _SyncedFile if is_local(filesystem) else PyArrowFile
        return kind(fs=filesystem, location=location, path=path)


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        """See OutputFile. Folders that are made for the file are synced with it."""
        path = Path(self._path)
        folders = [path.parent]
        while not folders[-1].exists():
            folders.append(folders[-1].parent)
        return _SyncedStream(super().create(overwrite), [path, *folders])


class _SyncedStream:
    """A stream of Arrow's that syncs its file and folders when it is closed."""

    def __init__(self, stream: Any, paths: Sequence[Path]) -> None:
        self._stream = stream
        self._paths = paths

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, content: bytes) -> int:
        written: int = self._stream.write(content)
        return written

    def tell(self) -> int:
        position: int = self._stream.tell()
        return position

    def close(self) -> None:
        if not self._stream.closed:
            self._stream.close()
            for path in self._paths:
                sync(str(path))


@dataclass(frozen=True, slots=True)
class CatalogStorage(Storage):
    """The store of a catalogue's table, with the credentials that the catalogue gave for it."""

    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def filesystem(self, uri: str) -> tuple[fs.FileSystem, str]:
        """See Storage."""
        scheme, netloc, path = PyArrowFileIO.parse_location(uri, {})
        if scheme == "file":
            return fs.LocalFileSystem(), path
        known = tuple(sorted((name, str(value)) for name, value in self.properties.items()))
        return _filesystem(scheme, netloc, known), path.rstrip("/")


@lru_cache(maxsize=16)
def _filesystem(scheme: str, netloc: str, properties: Properties) -> fs.FileSystem:
    found: fs.FileSystem = PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, netloc)
    return found
