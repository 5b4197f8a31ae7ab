"""The log of a manifest table: one file per version, in a folder of its own.

An entry gets its name by a hard link, which fails if the name is taken. So of all who would make
version 8 exactly one does; the others read it and decide anew. No lock is held, and a reader
needs none: what has a name is whole.
"""

import contextlib
import itertools
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from sinks.manifest.durable import sync_file, sync_folder
from sinks.manifest.entry import (
    FOLDER,
    FORMAT,
    Change,
    Column,
    Entry,
    InvalidEntry,
    Whole,
    decode,
    encode,
)
from sinks.manifest.state import State
from topology.errors import SinkBusy, SinkFailed

log = structlog.get_logger()

WHOLE_EVERY = 50  # entries
_KEEP_ENTRIES_SECONDS = 3600.0
_MOST_LOST = 20  # links in a row: others commit faster than we can
_MOST_READS = 20  # in a row from the start
_BUSY_SECONDS = 0.5
_NAME = re.compile(r"(\d{20})\.json")


class _Mark(NamedTuple):
    """By what an entry's file is told from another one of the same name."""

    number: int
    size: int
    modified_ns: int


class ManifestLog:
    """The log of the table in one local folder; used by one thread.

    It remembers the table as it read it last. Entries that no reader needs are dropped, the
    lowest first, so two things are known while the entry that was read last is still there: one
    that has just been found missing behind it has never been there, and one that has just been
    linked behind it is the next. If it is not there any more, all is read anew.
    """

    def __init__(self, table: Path, by: str = "", clock: Callable[[], float] = time.time) -> None:
        """`by` is written into our entries, for people; `clock` gives seconds since 1970."""
        self.table = table
        self._folder = table / FOLDER
        self._by = by
        self._clock = clock
        self._state: State | None = None
        self._mark: _Mark | None = None
        self._listed = 0  # an entry of this version was there when reading began

    def refresh(self) -> State | None:
        """Read what is new; None: there is no table. The state is ours and goes on changing.

        Raises SinkFailed, naming the file, when an entry is not what was written, and OSError.
        """
        for _ in range(_MOST_READS):
            if self._state is None and not self._start():
                return None
            if self._state is not None and self._catch_up(self._state):
                if self._state.version < self._listed:
                    raise self._corrupt(self._state.version + 1, "it is not there; later ones are")
                return self._state
            self._state = None
        raise SinkBusy(_BUSY_SECONDS, f"the log in {self._folder} changes while it is read")

    def newest(self) -> State:
        """What `refresh` gives. Raises SinkFailed when there is no table."""
        state = self.refresh()
        if state is None:
            raise SinkFailed(f"the table in {self.table} has no log any more: {self._folder}")
        return state

    def create(self, columns: Sequence[Column], partition_by: Sequence[str]) -> None:
        """Make a table that has no files, unless someone else is making one. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        sync_folder(self.table.parent)
        sync_folder(self.table)
        whole = Whole(uuid.uuid4().hex, tuple(columns), tuple(partition_by))
        self._link(self._entry(0, Change(), whole))
        self.sync()

    def change(self, decide: Callable[[State], Change | None]) -> None:
        """Bring the newest state to what is decided of it, durably; None: nothing is to be done.

        It is asked again each time someone else was faster. Raises SinkBusy when that goes on,
        SinkFailed, and what `decide` raises: nothing was done then. After an OSError it is not
        known; asked again, `decide` sees whether it was.
        """
        for lost in itertools.count():
            state = self.newest()
            change = decide(state)
            if change is None:
                self.sync()
                return
            if lost == _MOST_LOST:
                raise SinkBusy(_BUSY_SECONDS, f"others keep changing the table in {self.table}")
            if self._append(state, change):
                return

    def check_files(self, state: State, paths: Sequence[str]) -> None:
        """Raise SinkFailed when an entry must not name one of these files any more."""
        for path in paths:
            if path in state.removed or not (self.table / path).exists():
                raise SinkFailed(
                    f"file {self.table / path} was cleaned away before an entry could name it: it "
                    "was written longer ago than the table keeps such files; start again"
                )

    def sync(self) -> None:
        """Write the names of entries through: one that was read may be of a process that died."""
        sync_folder(self._folder)

    def _append(self, state: State, change: Change) -> bool:
        """Put a change behind the newest entry. False: decide anew."""
        version = state.version + 1
        entry = self._entry(version, change)
        if version % WHOLE_EVERY == 0:
            entry = self._entry(version, change, state.after(entry).whole())
        mark = self._link(entry)
        if mark is None:
            return False
        if not self._is_there(state.version):
            # Ours may stand where others had been dropped: nobody reads it there. Or it is in
            # force, and old by now. Once all is read anew, the table says which.
            self._state = None
            return False
        self.sync()
        known = set(state.columns)
        state.apply(entry)
        self._mark = mark
        if new := [column.name for column in state.columns if column not in known]:
            log.info("manifest_columns_added", table=str(self.table), columns=new)
        if version % WHOLE_EVERY == 0:
            self._drop(below=version - WHOLE_EVERY)
        return True

    def _entry(self, version: int, change: Change, whole: Whole | None = None) -> Entry:
        return Entry(
            format=FORMAT,
            version=version,
            made_ms=int(self._clock() * 1000),
            made_by=self._by,
            add=change.add,
            remove=change.remove,
            forget=change.forget,
            lines=change.lines,
            columns=change.columns,
            whole=whole,
        )

    def _link(self, entry: Entry) -> _Mark | None:
        """Give the entry its name; None: the name is taken."""
        path = self._path(entry.version)
        draft = self._folder / f".{path.name}-{uuid.uuid4().hex}"
        try:
            draft.write_bytes(encode(entry))
            sync_file(draft)
            mark = _mark(draft.stat())
            try:
                os.link(draft, path)
            except FileExistsError:
                if not draft.samefile(path):  # a network's file system may ask twice
                    return None
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
        return mark

    def _start(self) -> bool:
        """Read the newest entry that tells the whole; whether there is one."""
        for _ in range(_MOST_READS):
            versions = self._versions()
            if not versions:
                return False
            newest = _newest_whole(versions)
            if newest is not None and (found := self._read(newest)) is not None:
                entry, self._mark = found
                if entry.whole is None:
                    raise self._corrupt(entry.version, "it does not tell the whole table")
                again = self._versions()
                if _newest_whole(again) != newest:
                    continue  # it may have been dropped, and made anew by one that slept
                self._listed = max(again)
                self._state = State.of(entry.whole, entry.version)
                return True
        missing = f"no entry up to {max(versions)} tells the whole table"
        raise SinkFailed(f"manifest {self._folder}: {missing}; entries were lost")

    def _catch_up(self, state: State) -> bool:
        """Read the entries behind this state; False: it is not known which they are."""
        while True:
            found = self._read(state.version + 1)
            if not self._is_there(state.version):
                return False
            if found is None:
                return True
            entry, self._mark = found
            state.apply(entry)

    def _read(self, version: int) -> tuple[Entry, _Mark] | None:
        try:
            with self._path(version).open("rb") as file:
                mark = _mark(os.fstat(file.fileno()))
                raw = file.read()
        except FileNotFoundError:
            return None
        try:
            return decode(raw, version), mark
        except InvalidEntry as error:
            raise self._corrupt(version, str(error)) from error

    def _corrupt(self, version: int, reason: str) -> SinkFailed:
        path = self._path(version)
        return SinkFailed(f"manifest {path}: {reason}; entries are never changed once they exist")

    def _is_there(self, version: int) -> bool:
        """Whether the entry that was read or written last, of this version, still is."""
        try:
            return _mark(self._path(version).stat()) == self._mark
        except FileNotFoundError:
            return False

    def _versions(self) -> list[int]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))

    def _path(self, version: int) -> Path:
        return self._folder / f"{version:020d}.json"

    def _drop(self, below: int) -> None:
        """Drop old entries below a version, and old drafts that killed processes left."""
        before = self._clock() - _KEEP_ENTRIES_SECONDS
        try:
            for version in self._versions():
                if version >= below or not _dropped(self._path(version), before):
                    break  # never one above another that stays
            for draft in self._folder.glob(".*.json-*"):
                _dropped(draft, before)
        except OSError as error:  # the next one that tells the whole tries again
            log.warning("manifest_log_not_dropped", table=str(self.table), error=str(error))


def _newest_whole(versions: Sequence[int]) -> int | None:
    """The highest version whose entry tells the whole table."""
    return max((each for each in versions if each % WHOLE_EVERY == 0), default=None)


def _dropped(path: Path, before: float) -> bool:
    """Remove a file that is older, or gone already; whether it was."""
    try:
        if path.stat().st_mtime > before:
            return False
        path.unlink()
    except FileNotFoundError:
        pass
    return True


def _mark(found: os.stat_result) -> _Mark:
    return _Mark(found.st_ino, found.st_size, found.st_mtime_ns)
