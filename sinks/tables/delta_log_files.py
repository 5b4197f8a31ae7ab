"""The entries of a Delta log as files: read, synced, and repaired after a power cut."""

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

import structlog
from pyarrow import fs

from sinks.storage import Storage
from sinks.tables.files import is_local, sync
from topology.errors import SinkFailed

log = structlog.get_logger()

OURS = "headrace"  # a key in the commitInfo of our commits
_TURN_SECONDS = 1.0  # longer than many writers' commits take
_POLLS = 100
_FILES_UNSYNCED = ("MERGE", "OPTIMIZE")  # delta-rs writes their files, and commits at once


class LogEntries:
    """The entries of one table's log. They are synced on a local disk only."""

    def __init__(self, name: str, storage: Storage, uri: str) -> None:
        self._name, self._storage, self._uri = name, storage, uri
        filesystem, self._root = storage.filesystem(uri)
        self._folder = Path(self._root, "_delta_log")
        self.is_local = is_local(filesystem)
        self._synced = -1  # up to this version

    def text(self, version: int) -> str:
        """Return a version's actions, a line each; an empty text if only a checkpoint has it."""
        filesystem, root = self._storage.filesystem(self._uri)
        try:
            path = f"{root}/_delta_log/{version:020d}.json"
            with filesystem.open_input_stream(path) as file:
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def adding(self, first: int, last: int, paths: Collection[str]) -> set[str]:
        """Return those files that versions from `first` to `last` have added."""
        names = {path.rpartition("/")[2]: path for path in paths}
        texts = [self.text(version) for version in range(first, last + 1)]
        return {path for name, path in names.items() if any(name in text for text in texts)}

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold off other writers of this host; go on regardless after a second.

        Without it sixteen writers on two cores do little but retry. A frozen writer holds the
        others up no longer: no guarantee rests on the lock.
        """
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # there is no table yet
            yield
            return
        try:
            ends = time.monotonic() + _TURN_SECONDS
            while not _try_lock(folder) and (left := ends - time.monotonic()) > 0:
                time.sleep(left / _POLLS)  # the longer it waits, the sooner it looks again
            yield
        finally:
            os.close(folder)

    def files(self) -> list[fs.FileInfo]:
        filesystem, root = self._storage.filesystem(self._uri)
        return filesystem.get_file_info(fs.FileSelector(f"{root}/_delta_log"))

    def sync_folders(self) -> None:
        if self.is_local:
            for folder in self._folder.parents:
                if os.access(folder, os.R_OK):
                    sync(str(folder))

    def sync_to(self, newest: int) -> None:
        """Sync entries up to a version, and the files that they add.

        A writer of ours may have ended between a commit and its sync: so the first time all
        entries are synced, back to the last checkpoint. Files of our appends were synced before.
        """
        if not self.is_local or newest <= self._synced:
            return
        last = self._folder / "_last_checkpoint"
        first = self._synced + 1 or _checkpointed(last)
        there = [last]
        for version in range(first, newest + 1):
            name = f"{version:020d}"
            there += [self._folder / f"{name}.json", self._folder / f"{name}.checkpoint.parquet"]
            text = self.text(version)
            if not _is_ours(_actions(text), ("WRITE",)):  # Arrow's files were synced before
                there += [Path(self._root, path) for path in _added(text)]
        there = [path for path in there if path.is_file()]
        for path in [*there, *{path.parent for path in there}]:
            sync(str(path))
        self._synced = newest

    def sync_checkpoint(self, version: int) -> None:
        self._synced = version - 1
        self.sync_to(version)

    def repair(self) -> None:
        """Move a last entry of ours away that a power cut has left torn, or without its files.

        No commit was acknowledged by it. Raises SinkFailed for another writer's entry, and for one
        whose files were synced before it.
        """
        if not self.is_local:
            return
        for path in sorted(self._folder.glob("[0-9]*.json"), reverse=True):
            version = int(path.stem)
            text = self.text(version)
            if actions := _actions(text):
                lacking = next((each for each in _added(text).items() if self._lacks(*each)), None)
                if lacking is None:
                    return
                if not _is_ours(actions, _FILES_UNSYNCED):
                    self._fail(path, f"adds the file {lacking[0]}, which is not there as written")
            else:
                is_empty = version and not text.strip("\0")
                before = _actions(self.text(version - 1)) if is_empty else []
                if not (_is_ours(before) or f'"{OURS}":' in text):
                    self._fail(path, "is empty or torn, and another writer's")
            path.rename(path.with_name(f".{path.name}.torn"))
            sync(str(self._folder))
            log.warning("delta_torn_entry_moved", table=self._name, entry=str(path))

    def _lacks(self, path: str, size: int) -> bool:
        file = Path(self._root, path)
        is_below = not path.startswith("/") and "://" not in path
        return is_below and (not file.is_file() or file.stat().st_size != size)

    def _fail(self, path: Path, what: str) -> NoReturn:
        raise SinkFailed(
            f"table '{self._name}': the log entry {path} {what}, as after a power cut; restore it, "
            "or move the entry away if what it committed can be written again"
        )


def _try_lock(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # its file system has no locks
        return True
    return True


def _actions(text: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in text.split("\n") if line]
    except ValueError:
        return []


def _is_ours(
    actions: Iterable[Mapping[str, Any]], operations: Collection[str] | None = None
) -> bool:
    infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
    return any(
        OURS in info and (operations is None or info.get("operation") in operations)
        for info in infos
    )


def _added(text: str) -> dict[str, int]:
    adds = [action["add"] for action in _actions(text) if "add" in action]
    return {unquote(add["path"]): add["size"] for add in adds}


def _checkpointed(last: Path) -> int:
    try:
        return int(json.loads(last.read_bytes())["version"])
    except (OSError, ValueError, KeyError):
        return 0
