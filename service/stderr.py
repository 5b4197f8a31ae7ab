"""Standard error that never stops the pipeline: nobody reading it, or a closed pipe, cost lines."""

import atexit
import contextlib
import os
import queue
import sys
import threading
import time

_CAPACITY = 10_000  # lines
_FLUSH_SECONDS = 1.0
_POLL_SECONDS = 0.005


class PatientStderr:
    """A stream on standard error. Any thread may write; no write blocks or raises.

    Lines for a pipe or a file wait in a bounded queue for a thread of its own; when it is
    full they are counted and dropped, and the count is written when somebody reads again.
    A terminal is written to at once, because a progress line may be shown on it.
    """

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._lines: queue.Queue[bytes] = queue.Queue(capacity)
        self._writer: threading.Thread | None = None
        self._lock = threading.Lock()
        self._dropped = 0

    def write(self, text: str) -> int:
        """Take a line, its end included."""
        descriptor = _descriptor()
        if descriptor is None:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(text)
            return len(text)
        self._start()
        try:
            self._lines.put_nowait(text.encode(errors="backslashreplace"))
        except queue.Full:
            with self._lock:
                self._dropped += 1
        return len(text)

    def flush(self) -> None:
        """Do nothing: writing never waits. `drain` does."""

    def drain(self, seconds: float = _FLUSH_SECONDS) -> None:
        """Wait, at most so long, until what was taken is written."""
        deadline = time.monotonic() + seconds
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _start(self) -> None:
        if self._writer is not None:
            return
        with self._lock:
            if self._writer is None:
                self._writer = threading.Thread(
                    target=self._write_lines, name="headrace-stderr", daemon=True
                )
                self._writer.start()
                atexit.register(self.drain)

    def _write_lines(self) -> None:
        while True:
            line = self._lines.get()
            # Not through sys.stderr: its lock, held by a blocked write, would abort the exit.
            with contextlib.suppress(OSError):
                _write_all(line)
                with self._lock:
                    dropped, self._dropped = self._dropped, 0
                if dropped:
                    told = f'{{"event": "log_lines_dropped", "count": {dropped}}}\n'
                    _write_all(told.encode())
            self._lines.task_done()


def _descriptor() -> int | None:
    """Standard error's file descriptor, or None when it is a terminal or no file."""
    try:
        return None if sys.stderr.isatty() else sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _write_all(line: bytes) -> None:
    descriptor = _descriptor()
    while line and descriptor is not None:
        line = line[os.write(descriptor, line) :]


stderr = PatientStderr()
