"""Logs: structlog events with stable snake_case names, as JSON or for a console.

They go to standard error, the standard library's warnings among them; facts go to
standard output. What names or holds a secret is hidden (`topology.masking`).
"""

import atexit
import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, MutableMapping
from typing import Any

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from topology.masking import escaped, mask, redacted

# Without the values of local variables: they hold records, and secrets.
_json_traceback = structlog.processors.ExceptionRenderer(
    ExceptionDictTransformer(show_locals=False)
)


def configure(level: str, form: str, secrets: Iterable[str] = ()) -> None:
    """Send every event at or above `level` to standard error, as `json` or `console`.

    `secrets` are hidden wherever they occur in a line.
    """
    mask.learn(secrets)
    number = logging.getLevelNamesMapping()[level.upper()]
    is_json = form == "json"
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _json_traceback if is_json else structlog.processors.format_exc_info,
        redact,
        *([] if is_json else [_escape]),  # JSON is escaped by itself
    ]
    render: Any = (
        structlog.processors.JSONRenderer()
        if is_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr is not None and sys.stderr.isatty())
    )
    written = [render, lambda _logger, _method, line: mask(line)]
    structlog.configure(
        processors=[*shared, *written],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stderr),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_name_library, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *written],
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it reports what run() raises anyway


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hide the values of fields, at any depth, whose names tell of a secret."""
    for key, value in event.items():
        event[key] = redacted(value, key)
    return event


def _escape(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Let no text of a record or an error be a command to the terminal, or another line."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = escaped(value, keeping="\n" if key == "exception" else "")
    return event


def _name_library(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Give a library's free text the form of an event: a stable name, the text as a field."""
    record: logging.LogRecord = event["_record"]
    event["library"], event["text"] = record.name, event["event"]
    event["event"] = "library_message"
    return event


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
