"""A client library's complaints, in our log and not too often."""

import re
import time

import structlog

log = structlog.get_logger()

_INTERVAL_SECONDS = 5.0
_THREAD = re.compile(r"^\[thrd:[^\]]*\]: ")  # librdkafka's own, before the text


class Complaints:
    """Writes warnings, at most one line in a few seconds per kind; counts the others."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        self._held: dict[str, int] = {}
        self.last = ""
        """The newest text, for whoever gives up; who has an answer empties it."""

    def log(self, _level: int, _form: str, facility: str, _client: str, text: str) -> None:
        """Take librdkafka's line as a `logging.Logger` does; secrets in it are masked."""
        self.warn("kafka_client_message", facility, text)

    def warn(self, event: str, kind: str, text: str) -> None:
        """Log the line, or count it."""
        if kind != "_ALL_BROKERS_DOWN":  # it says less than the one before
            self.last = _THREAD.sub("", text)
        now = time.monotonic()
        if now < self._next.get(kind, 0.0):
            self._held[kind] = self._held.get(kind, 0) + 1
            return
        self._next[kind] = now + _INTERVAL_SECONDS
        log.warning(event, kind=kind, text=text, held_back=self._held.pop(kind, 0))
