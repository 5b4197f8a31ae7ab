"""Complaints: what fails again and again is logged now and then, with a count."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import structlog

log = structlog.get_logger()

EVERY_SECONDS = 10.0
_RECENT = 50
_MAX_CHARACTERS = 500

_Cause: TypeAlias = tuple[str, str, str]  # event, place, class of the error


@dataclass(frozen=True, slots=True)
class Complaint:
    """A line as it was logged: `count` failures of a kind, and the text of one of them."""

    at: float  # by the clock of `Complaints`
    event: str
    step: str
    error_class: str
    error: str
    count: int


@dataclass(slots=True)
class _Told:
    at: float
    count: int = 0
    error: str = ""


class Complaints:
    """Logs a failure at once, and the next of its kind at most every 10 seconds.

    Failures with the same event, step and class of error are of one kind. A line has in `count`
    their number since the line before, and the text of one of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[_Cause, _Told] = {}
        self._recent: deque[Complaint] = deque(maxlen=_RECENT)

    def hear(self, event: str, step: str, error: BaseException) -> None:
        """Count a failure, and log it if it is time to."""
        cause = event, step, type(error).__name__
        now = self._clock()
        told = self._told.get(cause)
        if told is not None and now - told.at < EVERY_SECONDS:
            if not told.count:
                told.error = line_of(error)
            told.count += 1
            return
        count = 1 if told is None else told.count + 1
        self._told[cause] = _Told(now)
        self._log(cause, count, line_of(error), now)

    def tell(self, *, all_of_it: bool = False) -> None:
        """Log what has been held back for long enough, or `all_of_it`. To be called often."""
        now = self._clock()
        for cause, told in list(self._told.items()):
            if not all_of_it and now - told.at < EVERY_SECONDS:
                continue
            del self._told[cause]
            if told.count:
                self._told[cause] = _Told(now)
                self._log(cause, told.count, told.error, now)

    def recent(self) -> tuple[Complaint, ...]:
        """Return the newest lines, oldest first; log those that are due before."""
        self.tell()
        return tuple(self._recent)

    def _log(self, cause: _Cause, count: int, error: str, now: float) -> None:
        event, step, kind = cause
        self._recent.append(Complaint(now, event, step, kind, error, count))
        log.warning(event, step=step, error_class=kind, error=error, count=count)


def text_of(error: BaseException) -> str:
    """Return an error's text; its class where it has none, or none that can be read."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  # an error that cannot be told must stop nothing
        return type(error).__name__


def line_of(error: BaseException) -> str:
    """Return the first line of an error's text, cut short; its class where it has none."""
    lines = text_of(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:_MAX_CHARACTERS]
