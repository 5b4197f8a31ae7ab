"""Keeps the files of a manifest table few, and deletes those that nobody needs any more."""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import structlog

from sinks.manifest.entry import FOLDER, Change, Listed
from sinks.manifest.joining import alike, cut, join, small_files
from sinks.manifest.log import ManifestLog
from sinks.manifest.state import State
from topology.compaction import Compaction
from topology.errors import SinkBusy

log = structlog.get_logger()

# Names that DataFileWriter gives, and we; Spark's end otherwise, and others' are their own affair.
_OURS = re.compile(r"part-\d{5,}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.\w+)?\.parquet")


class Compactor:
    """Compacts one table by a log of its own, so beside any writer. One thread.

    A file is deleted in three steps, by different runs: an entry says that it is removed, which
    takes it out of the table if it was in it; `keep_seconds` later it is deleted; an entry says so.
    A writer never names a file that is removed or not there, and makes its entry of the newest
    version only. So a file that was staged long ago by a process that stood still is either in
    the table before a run calls it an orphan, or never.
    """

    def __init__(
        self,
        manifest: ManifestLog,
        keep_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives seconds since 1970."""
        self._log = manifest
        self._root = manifest.table
        self._keep_seconds = keep_seconds
        self._clock = clock

    def run(self, target_bytes: int) -> Compaction:
        """Join small files, delete what was removed long ago; see topology.compaction.

        One entry for each file that is made, so what is done stays done if it ends early.
        """
        replaced, written, num_bytes = 0, 0, 0
        for group in small_files(self._log.newest().files.values(), target_bytes):
            for same in alike(self._root, group):
                for files in cut(same, target_bytes):
                    joined = join(self._root, files)
                    if self._replaced(files, joined):
                        replaced += len(files)
                        written += 1
                        num_bytes += joined.bytes
        self._clean()
        return Compaction(replaced, written, num_bytes)

    def _replaced(self, files: Sequence[Listed], joined: Listed) -> bool:
        """Put one file into the place of others; False: someone else has joined some of them."""

        def decide(state: State) -> Change | None:
            if joined.path in state.files or any(file.path not in state.files for file in files):
                return None
            self._log.check_files(state, [joined.path])
            return Change(add=(joined,), remove=tuple(file.path for file in files))

        try:
            self._log.change(decide)
        except SinkBusy:
            self._delete(joined.path)
            raise
        newest = self._log.newest()
        if joined.path in newest.files or joined.path in newest.removed:  # joined again by now
            return True
        self._delete(joined.path)
        return False

    def _clean(self) -> None:
        before = self._clock() - self._keep_seconds
        unknown = list(self._old_files(before))
        since = self._log.newest().removed
        deleted = [path for path, removed_ms in since.items() if removed_ms <= before * 1000]
        for path in deleted:
            self._delete(path)
        orphans: list[str] = []

        def decide(state: State) -> Change | None:
            forgotten = tuple(path for path in deleted if path in state.removed)
            orphans[:] = [
                path for path in unknown if path not in state.files and path not in state.removed
            ]
            if not forgotten and not orphans:
                return None
            return Change(remove=tuple(orphans), forget=forgotten)

        self._log.change(decide)
        if deleted or orphans:
            log.info(
                "manifest_files_deleted",
                table=str(self._root),
                deleted=len(deleted),
                orphans=len(orphans),
            )

    def _old_files(self, before: float) -> Iterator[str]:
        """Files of our names that are older, in the folders that the table's partitions have."""
        levels = len(self._log.newest().partition_by)
        places = [""]
        for _ in range(levels):
            places = [inner for place in places for inner in self._folders(place)]
        for place in places:
            with os.scandir(self._root / place) as entries:
                for entry in entries:
                    if _OURS.fullmatch(entry.name) and _is_older(entry, before):
                        yield _below(place, entry.name)

    def _folders(self, place: str) -> list[str]:
        """The folders of partitions in one; none of another table, which may lie in there."""
        with os.scandir(self._root / place) as entries:
            return [
                _below(place, entry.name)
                for entry in entries
                if "=" in entry.name
                and entry.is_dir(follow_symlinks=False)
                and not (Path(entry.path) / FOLDER).exists()
            ]

    def _delete(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)


def _is_older(entry: "os.DirEntry[str]", before: float) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mtime <= before
    except FileNotFoundError:
        return False


def _below(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name
