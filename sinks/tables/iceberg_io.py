"""pyiceberg's file systems, as our tables need them. Imported by pyiceberg's users only."""

import io
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from pyarrow import fs
from pyiceberg.io import S3_RETRY_STRATEGY_IMPL
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata

from sinks.storage import Storage
from sinks.tables.files import is_local, sync

Properties = tuple[tuple[str, str], ...]

_METADATA = ".metadata.json"
_KEPT_BYTES = 8 * 1024 * 1024  # manifests until they are merged, which are a hundred
_kept: dict[str, bytes] = {}  # what was written here, by location, the oldest first
_lock = threading.Lock()


class Append(Transaction):
    """A transaction that makes one snapshot of a table as it is.

    pyiceberg's own copies all the metadata, old snapshots and all, each of the fourteen times that
    a snapshot asks for it.
    """

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata: nothing was changed before."""
        return self._table.metadata


class TableFileIO(PyArrowFileIO):
    """Puts a file of metadata with one request, and reads it again with none.

    On a local disk a file survives a power cut once it is closed, and a catalogue names it only
    then. Every name has a new id in it: nobody writes a file twice, nor looks whether it is there.
    """

    def new_input(self, location: str) -> PyArrowFile:
        """See FileIO."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _File(fs=self.fs_by_scheme(scheme, netloc), location=location, path=path)

    new_output = new_input

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> fs.FileSystem:
        return _filesystem(scheme, netloc or "", _known(self.properties))


class _File(PyArrowFile):
    def __len__(self) -> int:
        kept = _kept.get(self.location)
        return super().__len__() if kept is None else len(kept)

    def open(self, seekable: bool = True) -> Any:
        """See InputFile."""
        kept = _kept.get(self.location)
        return super().open(seekable) if kept is None else io.BytesIO(kept)

    def create(self, overwrite: bool = False) -> Any:
        """See OutputFile."""
        del overwrite
        return _Stream(self)

    def put(self, content: bytes) -> None:
        """Write its content. On a local disk it is synced, and so are folders made for it."""
        path, local = Path(self._path), is_local(self._filesystem)
        folders = [path.parent] if local else []
        while folders and not folders[-1].exists():
            folders.append(folders[-1].parent)
        with super().create(overwrite=True) as stream:
            stream.write(content)
        for each in [path, *folders] if local else ():
            sync(str(each))
        folder = self.location.rpartition("/")[0]
        with _lock:
            if self.location.endswith(_METADATA):  # only a table's newest is read again
                for known in [*_kept]:
                    if known.startswith(folder) and known.endswith(_METADATA):
                        del _kept[known]
            _kept[self.location] = content
            while sum(map(len, _kept.values())) > _KEPT_BYTES:
                del _kept[next(iter(_kept))]


class _Stream:
    """Collects what is written, and puts it when it is closed."""

    def __init__(self, file: _File) -> None:
        self._file, self._content = file, bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:  # half a file is none
            self.close()

    def write(self, content: bytes) -> int:
        self._content += content
        return len(content)

    def tell(self) -> int:
        return len(self._content)

    def close(self) -> None:
        self._file.put(bytes(self._content))


@dataclass(frozen=True, slots=True)
class CatalogStorage(Storage):
    """The store of a catalogue's table, with the credentials that the catalogue gave for it."""

    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def filesystem(self, uri: str) -> tuple[fs.FileSystem, str]:
        """See Storage."""
        scheme, netloc, path = PyArrowFileIO.parse_location(uri, {})
        if scheme == "file":
            return fs.LocalFileSystem(), path
        return _filesystem(scheme, netloc, _known(self.properties)), path.rstrip("/")


def _known(properties: Mapping[str, Any]) -> Properties:
    return tuple(sorted((name, str(value)) for name, value in properties.items()))


@lru_cache(maxsize=16)
def _filesystem(scheme: str, netloc: str, properties: Properties) -> fs.FileSystem:
    """Clients are kept, as Storage keeps them; pyiceberg makes new ones with each load."""
    found: fs.FileSystem = PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, netloc)
    if isinstance(found, fs.S3FileSystem) and S3_RETRY_STRATEGY_IMPL not in dict(properties):
        pickled: Any = found.__reduce__()
        make, (given,) = pickled
        found = make({**given, "allow_delayed_open": True})  # pyiceberg has no property for it
    return found
