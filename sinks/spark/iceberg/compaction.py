"""Few large files in place of many small ones, and few snapshots, without Spark.

Spark's own `rewrite_data_files` and `expire_snapshots` commit without our lock, so on a local
file system they could overwrite a commit of a running pipeline, or lose their own.
"""

import posixpath
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from sinks.files.data_file import DataFile, DataFileWriter
from sinks.files.layout import Layout
from sinks.files.small import cut, is_small
from sinks.paths import local_path
from sinks.spark.iceberg.facts import Facts
from sinks.spark.iceberg.log import Gone, IcebergLog, TableFile
from sinks.spark.local_table import LocalTable
from topology.compaction import Compaction
from topology.errors import SinkBusy, SinkFailed

_OURS = "parquet-cpp-arrow"  # others' files may have types that Arrow would not write back alike
_LINEAGE_VERSION = 3  # from here on rows have numbers, which a rewriting must keep
_MOST_ROUNDS = 3
_BUSY_SECONDS = 5.0
_EXPIRED_AT_ONCE = 500


class _Seen(NamedTuple):
    """A table, as a round of compaction found it."""

    facts: Facts
    snapshot: int
    files: list[TableFile]


class _Joined(NamedTuple):
    """Files, and the one that has all their rows."""

    sources: Sequence[TableFile]
    file: DataFile


def small_files(files: Iterable[TableFile], spec_id: int, target_bytes: int) -> list[TableFile]:
    """Which files may be joined, if others are like them. Pure."""
    return [
        file
        for file in files
        if is_small(file, target_bytes) and not file.has_deletes and file.spec_id == spec_id
    ]


class Compactor:
    """Compacts one table, beside whoever else writes it."""

    def __init__(
        self, table: LocalTable[IcebergLog], name: str, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives seconds since 1970."""
        self._table = table
        self._name = name
        self._clock = clock

    def compact(self, target_bytes: int) -> Compaction:
        """See the protocol. Files are written without the lock; only the commit takes it."""
        self._expire()
        for _ in range(_MOST_ROUNDS):
            seen = self._table.run(self._look, "compact")
            if seen is None:
                return Compaction(0, 0, 0)
            writer = DataFileWriter(self._folder(seen.facts), Layout())
            joined = self._join(seen, writer, target_bytes)
            if not joined:
                return Compaction(0, 0, 0)
            if self._landed(seen, writer, joined):
                sources = sum(len(each.sources) for each in joined)
                num_bytes = sum(each.file.num_bytes for each in joined)
                return Compaction(sources, len(joined), num_bytes)
        raise SinkBusy(_BUSY_SECONDS, f"others keep changing the files of '{self._name}'")

    def _expire(self) -> None:
        """Let go of old snapshots, in portions, so that a pipeline does not wait long."""
        now_ms = int(1000 * self._clock())

        def expire(log: IcebergLog) -> int:
            return log.expire(now_ms, _EXPIRED_AT_ONCE) if log.read() else 0

        before = None
        while (left := self._table.settle(expire, "expire")) and left != before:
            before = left

    def _look(self, log: IcebergLog) -> _Seen | None:
        facts, snapshot = log.read(), None
        if facts is not None:
            snapshot = log.snapshot()
        return None if facts is None or snapshot is None else _Seen(facts, snapshot, log.files())

    def _folder(self, facts: Facts) -> Path:
        folder = local_path(facts.data)
        reason = None
        if folder is None:
            reason = f"its files go to {facts.data}"
        elif facts.format_version >= _LINEAGE_VERSION:
            reason = f"it has format version {facts.format_version}, whose rows are numbered"
        if folder is None or reason is not None:
            raise SinkFailed(
                f"table '{self._name}' cannot be compacted: {reason}; Spark's procedure "
                "rewrite_data_files can do it, while nothing else writes the table"
            )
        return folder

    def _join(self, seen: _Seen, writer: DataFileWriter, target_bytes: int) -> list[_Joined]:
        """Write the joined files; nobody sees them yet. Raises OSError; then none is left."""
        done: list[_Joined] = []
        try:
            small = small_files(seen.files, seen.facts.spec_id, target_bytes)
            for places in _alike(small, writer.root):
                for files in cut(places, target_bytes):
                    paths = [_below(file, writer.root) for file in files]
                    tables = (_read(writer.root, path) for path in paths)
                    partition = dict(zip(seen.facts.partition_by, files[0].partition, strict=True))
                    file = writer.join(tables, 0, posixpath.dirname(str(paths[0])), {**partition})
                    if file is not None:
                        done.append(_Joined(files, file))
        except BaseException:
            writer.remove([each.file for each in done])
            raise
        return done

    def _landed(self, seen: _Seen, writer: DataFileWriter, joined: Sequence[_Joined]) -> bool:
        """Put the joined files in the place of the others; False: some of these are gone."""
        removed = [file for each in joined for file in each.sources]
        added = [each.file for each in joined]

        def swap(log: IcebergLog) -> bool:
            now = log.read()
            same = now is not None and (now.table_id, now.spec, now.data) == (
                seen.facts.table_id,
                seen.facts.spec,
                seen.facts.data,
            )
            if same:
                log.replace(removed, added, seen.snapshot)
            return same

        try:
            landed = self._table.settle(swap, "compact")
        except Gone:
            landed = False
        except SinkBusy:
            self._remove_unnamed(writer, added)
            raise
        # After any other error it may have landed.
        if not landed:
            self._remove_unnamed(writer, added)
        return landed

    def _remove_unnamed(self, writer: DataFileWriter, added: Sequence[DataFile]) -> None:
        """Remove the files that are no part of the table: a conflict may hide that some are."""

        def read(log: IcebergLog) -> set[str | None]:
            return {_below(file, writer.root) for file in log.files()} if log.read() else set()

        named = self._table.run(read, "compact")
        writer.remove([file for file in added if file.path not in named])


def _alike(files: Iterable[TableFile], root: Path) -> list[list[TableFile]]:
    """Files below the root that we wrote, by folder, partition and columns."""
    found: defaultdict[Hashable, list[TableFile]] = defaultdict(list)
    for file in files:
        path = _below(file, root)
        if path is None:
            continue
        with pq.ParquetFile(root / path) as parquet:
            if _OURS in (parquet.metadata.created_by or ""):
                columns = str(parquet.schema).partition("\n")[2]  # with their ids
                found[posixpath.dirname(path), file.partition, columns].append(file)
    return list(found.values())


def _below(file: TableFile, root: Path) -> str | None:
    """The path of a file below the root; None: it lies elsewhere."""
    path = local_path(file.path)
    if path is None or not path.is_relative_to(root):
        return None
    return path.relative_to(root).as_posix()


def _read(root: Path, path: str | None) -> pa.Table:
    with pq.ParquetFile(root / str(path)) as parquet:
        return parquet.read()
