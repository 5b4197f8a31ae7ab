"""Replacing the rows of some keys in a Delta table: its files are written anew without them.

Copy on write, as Delta's own MERGE without deletion vectors: what a key had is taken out of the
files that hold it, and what else they hold is written to new ones.
"""

import json
import posixpath
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sinks.files.data_file import DataFile, DataFileWriter
from sinks.spark.delta.actions import ActiveFile
from sinks.spark.delta.keyed import KeyedRows, matches, plain_key_type, plain_keys
from sinks.spark.delta.reading import FileReader

_WAITING_BYTES = 256 * 1024 * 1024
_CUT_TEXT = 32  # characters: a longer text's bound need not be exact


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Files that are to go, and those that have the rows of them that stay."""

    removed: list[ActiveFile] = field(default_factory=list)
    files: list[DataFile] = field(default_factory=list)


class Merge:
    """Finds the rows of keys in a table's files. Keeps nothing; any thread may call."""

    def __init__(
        self,
        reader: FileReader,
        writer: DataFileWriter,
        rows: KeyedRows,
        waiting_bytes: int = _WAITING_BYTES,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._rows = rows
        self._waiting_bytes = waiting_bytes
        partition_by = writer.layout.partition_by
        self._in_folders = {
            str(place): name for place, name in enumerate(rows.key) if name in partition_by
        }
        self._in_files = [name for name in rows.key if name not in partition_by]

    def without(
        self,
        active: Iterable[ActiveFile],
        keys: pa.Table,
        number: int,
        taken: list[pa.Table] | None = None,
    ) -> Rewritten:
        """Write the files that hold any of the keys anew, less the rows of these keys.

        Rows that share a folder are put together, so that files do not become ever smaller.
        The rows that go are added to `taken`, less the columns of a partition. Raises OSError,
        and SinkFailed when a file cannot be read; then no file is left.
        """
        done = Rewritten()
        kept = _Kept(self._writer, number, done.files, self._waiting_bytes)
        wanted: dict[tuple[str | None, ...], _Wanted] = {}
        try:
            for file in active:
                folder = tuple(file.partition.get(name) for name in self._in_folders.values())
                if folder not in wanted:
                    wanted[folder] = _Wanted.of(self._within(folder, keys), self._in_files_key())
                found = self._found(file, wanted[folder])
                if found is not None:
                    done.removed.append(file)
                    rows = self._reader.read(file)
                    kept.add(file, rows.filter(pc.invert(found)))
                    if taken is not None:
                        taken.append(rows.filter(found))
            kept.write()
        except BaseException:
            self._writer.remove(done.files)
            raise
        return done

    def _found(self, file: ActiveFile, wanted: "_Wanted") -> "pa.Array[Any] | None":
        """Which rows of a file have one of the keys; None: none of them."""
        if not wanted.may_be_in(file):
            return None
        if not self._in_files:  # all of its rows have the same key
            num_rows = self._reader.read(file).num_rows
            return pa.array([True] * num_rows, pa.bool_()) if num_rows else None
        read = self._reader.read(file, self._in_files)
        ours = plain_keys(read, self._rows.schema, self._rows.key)
        found = matches(ours, wanted.keys.select(ours.column_names))
        return found if pc.any(found).as_py() else None

    def _within(self, folder: tuple[str | None, ...], keys: pa.Table) -> pa.Table:
        """The keys that may be in the files of a partition."""
        for (place, name), text in zip(self._in_folders.items(), folder, strict=True):
            kind = plain_key_type(self._rows.schema.field(name).type)
            if text is None and kind != pa.string():
                return keys.slice(0, 0)
            # A partition's empty text is spelled as null is.
            value = pa.scalar(text or "", pa.string()).cast(kind)
            keys = keys.filter(pc.equal(keys[place], value))
        return keys

    def _in_files_key(self) -> tuple[str, str] | None:
        """The name of the first key column that is in the files, and what keys call it."""
        if not self._in_files:
            return None
        name = self._in_files[0]
        return name, str(self._rows.key.index(name))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Keys that may be in the files of a partition."""

    keys: pa.Table
    column: str | None = None  # whose bounds in files say something
    values: list[Any] = field(default_factory=list)  # of that column, sorted

    @classmethod
    def of(cls, keys: pa.Table, first: tuple[str, str] | None) -> "_Wanted":
        if first is None:
            return cls(keys)
        name, place = first
        kind = keys.schema.field(place).type
        # The bounds of other types are rounded by some writers.
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            return cls(keys)
        return cls(keys, name, sorted(set(keys[place].to_pylist())))

    def may_be_in(self, file: ActiveFile) -> bool:
        if not self.keys.num_rows:
            return False
        if self.column is None or file.statistics is None:
            return True
        said = json.loads(file.statistics)
        low = said.get("minValues", {}).get(self.column)
        high = said.get("maxValues", {}).get(self.column)
        kind = type(self.values[0])
        if type(low) is not kind or type(high) is not kind:
            return True
        if kind is str and len(high) >= _CUT_TEXT:
            high = self.values[-1]
        place = bisect_left(self.values, low)
        return place < len(self.values) and bool(self.values[place] <= high)


_Place: TypeAlias = tuple[str, tuple[tuple[str, str | None], ...]]  # folder, partition


class _Kept:
    """Rows that stay, by their place, until they are written."""

    def __init__(
        self, writer: DataFileWriter, number: int, into: list[DataFile], most_bytes: int
    ) -> None:
        self._writer = writer
        self._number = number
        self._into = into
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._tables: dict[_Place, list[pa.Table]] = {}

    def add(self, file: ActiveFile, rows: pa.Table) -> None:
        place = (posixpath.dirname(file.place), tuple(file.partition.items()))
        self._tables.setdefault(place, []).append(rows)
        self._num_bytes += rows.nbytes
        if self._num_bytes >= self._most_bytes:
            self.write()

    def write(self) -> None:
        for (folder, partition), tables in self._tables.items():
            file = self._writer.join(tables, self._number, folder, dict(partition))
            if file is not None:
                self._into.append(file)
        self._tables.clear()
        self._num_bytes = 0
