"""Monitoring: histograms of durations, and the rate-limited log of repeated failures."""

import sys
import sysconfig
import time
import traceback
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import ClassVar, TypeAlias

import numpy as np
import structlog

# From a call of a plain function to a batch that waits for a slow table, in seconds.
BOUNDS = (
    0.000_001, 0.000_01, 0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0,
)  # fmt: skip
_BOUNDS = np.array(BOUNDS)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Snapshot: `counts[i]` took at most `bounds[i]` seconds, the last ones longer."""

    bounds: ClassVar = BOUNDS
    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)


class Histogram:
    """Histogram with one writing thread."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count calls that took `seconds` together, each with their mean."""
        if count > 0:
            self._counts[bisect_left(BOUNDS, seconds / count)] += count
            self._seconds += seconds

    def add_each(self, seconds: list[float], others: int = 0) -> None:
        """Count durations, and `others` that were not measured and are distributed alike."""
        indices = np.searchsorted(_BOUNDS, np.array(seconds), side="left")
        counts = np.bincount(indices, minlength=len(self._counts))
        more = 1 + others / len(seconds)
        spread = np.diff(np.rint(np.cumsum(counts) * more), prepend=0).astype(int)
        self._counts = [old + new for old, new in zip(self._counts, spread.tolist(), strict=True)]
        self._seconds += sum(seconds) * more

    def distribution(self) -> Distribution:
        return Distribution(tuple(self._counts), self._seconds)


CallTimes: TypeAlias = defaultdict[str, Histogram]
"""Call times by step."""


def distributions_of(times: CallTimes) -> dict[str, Distribution]:
    return {step: each.distribution() for step, each in times.items()}


log = structlog.get_logger()

EVERY_SECONDS = 10.0
RECENT = 50
_MAX_CHARACTERS = 500
_TRACED_KINDS = 200  # of which the first failure is logged with its traceback
_LAST_FRAMES = 20
_HERE = Path(__file__).parents[1]
_OURS = tuple(
    f"{_HERE / name}/"
    for name in ("acker", "headrace", "partition", "service", "sinks", "topology", "transactions")
)
_STDLIB = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_PACKAGES = {"site-packages", "dist-packages"}  # the second is Debian's
_NOTEBOOK = "<ipython-"  # a cell; those of ipykernel have absolute names

_Cause: TypeAlias = tuple[str, str, str]  # event, place, class of the error


@dataclass(frozen=True, slots=True)
class RecentFailure:
    """A logged line: `count` failures of a kind, and the text of one of them."""

    at: float  # by the clock of `FailureLog`
    event: str
    step: str
    error_class: str
    error: str
    count: int
    error_at: str = ""  # file:line of the user's code


@dataclass(slots=True)
class _LoggedKind:
    at: float
    count: int = 0
    error: tuple[str, str] = "", ""  # its text, and its place


class FailureLog:
    """Logs a failure at once, and further ones of its kind at most every 10 seconds.

    A kind is an event, step and error class. `count` is the number since the last line.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[_Cause, _LoggedKind] = {}
        self._traced: set[_Cause] = set()
        self._recent: deque[RecentFailure] = deque(maxlen=RECENT)

    def record(self, event: str, step: str, error: BaseException) -> None:
        """Count a failure, and log it if it is due: the first of its kind with a traceback."""
        cause = event, step, type(error).__name__
        now = self._clock()
        told = self._told.get(cause)
        if told is not None and now - told.at < EVERY_SECONDS:
            if not told.count:
                told.error = line_of(error), error_at(error)
            told.count += 1
            return
        count = 1 if told is None else told.count + 1
        self._told[cause] = _LoggedKind(now)
        self._log(
            cause, count, (line_of(error), error_at(error)), now, self._traceback(cause, error)
        )

    def _traceback(self, cause: _Cause, error: BaseException) -> str:
        if cause in self._traced or len(self._traced) >= _TRACED_KINDS:
            return ""
        frames = user_frames(error)[-_LAST_FRAMES:]
        if frames:
            self._traced.add(cause)
        return "".join(traceback.StackSummary.extract(iter(frames)).format()).rstrip()

    def log_due(self, *, all_of_it: bool = False) -> None:
        """Log the lines that are due, or `all_of_it`. Called often."""
        now = self._clock()
        for cause, told in list(self._told.items()):
            if not all_of_it and now - told.at < EVERY_SECONDS:
                continue
            del self._told[cause]
            if told.count:
                self._told[cause] = _LoggedKind(now)
                self._log(cause, told.count, told.error, now)

    def recent(self) -> tuple[RecentFailure, ...]:
        """Log the lines that are due; return the last 50, oldest first."""
        self.log_due()
        return tuple(self._recent)

    def _log(
        self, cause: _Cause, count: int, error: tuple[str, str], now: float, exception: str = ""
    ) -> None:
        (event, step, kind), (text, at) = cause, error
        self._recent.append(RecentFailure(now, event, step, kind, text, count, at))
        more = {"error_at": at, "exception": exception}
        found = {name: value for name, value in more.items() if value}
        log.warning(event, step=step, error_class=kind, error=text, count=count, **found)


def user_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames of a traceback that are the user's code, with lines, outermost first.

    They are those of any library but Headrace where there is no other: a pipeline may be installed.
    """
    frames: dict[str, list[tuple[FrameType, int]]] = defaultdict(list)
    for frame, line in traceback.walk_tb(error.__traceback__):
        frames[_kind_of(frame.f_code.co_filename)].append((frame, line))
    return frames["user's"] or frames["library"]


def error_at(error: BaseException) -> str:
    """Return file:line of the innermost frame of the user's code, or "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        return f"{_short(error.filename)}:{error.lineno}"
    frames = user_frames(error)
    return f"{_short(frames[-1][0].f_code.co_filename)}:{frames[-1][1]}" if frames else ""


@cache
def _kind_of(filename: str) -> str:
    if filename.startswith(_OURS):
        return "ours"
    path = Path(filename)
    # The names of compiled (`pyarrow/error.pxi`) and generated code (`<string>`) are not absolute.
    is_written = path.is_absolute() or filename.startswith(_NOTEBOOK)
    is_library = filename.startswith(_STDLIB) or not _PACKAGES.isdisjoint(path.parts)
    return "user's" if is_written and not is_library else "library"


@cache
def _short(filename: str) -> str:
    """Return a file's path below the first folder of the import path that has it."""
    folders = [folder for folder in (str(Path.cwd()), *sys.path) if folder]
    return next(
        (filename[len(each) + 1 :] for each in folders if filename.startswith(f"{each}/")), filename
    )


def text_of(error: BaseException) -> str:
    """Return an error's text and notes; its class if it has no readable text.

    That of a KeyError is only the key, so its class stands before it.
    """
    try:
        name, text = type(error).__name__, str(error)
        if type(error).__str__ is KeyError.__str__ and text:
            text = f"{name}: {text}"
        return "; ".join([text or name, *getattr(error, "__notes__", ())])
    except Exception:  # noqa: BLE001  # an error whose text raises must stop nothing
        return type(error).__name__


def line_of(error: BaseException) -> str:
    """Return the first line of an error's text, shortened."""
    lines = text_of(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:_MAX_CHARACTERS]
