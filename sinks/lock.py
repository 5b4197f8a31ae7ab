"""One commit at a time on a table that lies on a local file system.

There, the log of a table is written by renaming a file into place, and a rename replaces
what is there: Delta's log store holds apart the threads of one JVM only. Two processes would
overwrite each other's commits. A lock file beside the log holds them apart; it is the
kernel's lock, so it ends with its holder, however that ends.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from topology.errors import SinkBusy

_NAME = ".headrace.lock"  # readers and cleaners pass over names that begin with a dot
_FIRST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.05


@contextmanager
def table_lock(
    table: Path, timeout_seconds: float, sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold the lock of the table in this folder; threads are held apart as processes are.

    Raises SinkBusy, with the reason, when someone else holds it for so long, and OSError.
    """
    file = os.open(table / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not _acquired(file, timeout_seconds, sleep):
            reason = f"another process has held {table / _NAME} for {timeout_seconds} seconds"
            raise SinkBusy(_LONGEST_PAUSE_SECONDS, reason)
        yield
    finally:
        os.close(file)  # and with it the lock goes


def _acquired(file: int, timeout_seconds: float, sleep: Callable[[float], None]) -> bool:
    ends = time.monotonic() + timeout_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= ends:
                return False
            sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        else:
            return True
