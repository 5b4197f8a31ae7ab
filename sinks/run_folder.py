"""A folder for the files of one run, which a later run removes if this one is killed."""

import contextlib
import fcntl
import os
import shutil
import socket
import time
import uuid
from pathlib import Path

_LOCK, _FILES = "lock", "files"
_OTHERS_SECONDS = 24 * 3600.0


class RunFolder:
    """A folder that only this process's user can read or write.

    While the process lives it holds a lock on a file in it, and so does a child that inherits
    `lock`. Folders that nobody holds are removed by the next `open` with the same root and name:
    those of its own host at once, those of other hosts, which may not see each other's locks,
    after a day without a new file.
    """

    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        self._name = name
        self._own = f"{name}-{socket.gethostname()}"
        self._folder = root / f"{self._own}-{uuid.uuid4().hex}"
        self.path = self._folder / _FILES
        self.lock: int | None = None
        """A file descriptor, once the folder is there."""

    def open(self) -> Path:
        """Make the folder, unless it is there. Returns its path. Raises OSError."""
        if self.path.is_dir():
            return self.path
        self._root.mkdir(parents=True, exist_ok=True)
        for folder in self._root.glob(f"{self._name}-*"):
            with contextlib.suppress(OSError):
                self._remove_if_left(folder)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._close_lock()
        self.lock = os.open(self._folder / "new", os.O_RDWR | os.O_CREAT)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        (self._folder / "new").rename(self._folder / _LOCK)  # nobody sees it without the lock
        self.path.mkdir(mode=0o700)
        return self.path

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._close_lock()

    def _close_lock(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def _remove_if_left(self, folder: Path) -> None:
        files = folder / _FILES
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_own = folder.name.rpartition("-")[0] == self._own
            if is_own or time.time() - files.stat().st_mtime > _OTHERS_SECONDS:
                shutil.rmtree(files, ignore_errors=True)
                shutil.rmtree(folder)  # the lock last, so that what is left can be found again
        finally:
            os.close(lock)
