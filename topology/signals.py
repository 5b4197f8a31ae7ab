"""What a bolt says besides returning a value. Signals are no errors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, final

DEFAULT_STREAM = "default"


@final
class Skip:
    """The type of SKIP, which is the only one."""

    def __new__(cls) -> "Skip":
        """Give SKIP, whoever calls it."""
        return SKIP if "SKIP" in globals() else super().__new__(cls)

    def __repr__(self) -> str:
        return "SKIP"

    def __reduce__(self) -> str:
        return "SKIP"


SKIP: Final = Skip()
"""Return this to drop a record on purpose: it is counted as filtered and completed."""


@final
@dataclass(frozen=True, slots=True)
class To:
    """Return this, or yield it, to send a value into a named stream of the bolt.

    The stream must be declared where the bolt is put in its place: `then(bolt,
    streams=("late",))`. `task` is for a stream whose next bolt is grouped `direct()`.
    """

    stream: str
    value: Any
    task: int | None = None


class Reject(Exception):
    """Raise this for a record that no retry can help: it goes to the dead letters."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RejectRows(Reject):
    """Raise this in a vectorised bolt that knows which rows of its batch are bad.

    `reasons` says why, by the row's place. Those go to the dead letters; the bolt is called
    again with the others.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        first = next(iter(reasons.values()), "no row was named")
        super().__init__(first if len(reasons) == 1 else f"{len(reasons)} rows; first: {first}")
        self.reasons = dict(reasons)


class Retry(Exception):
    """Raise this to have the record tried again, after `after_seconds` if given.

    It counts against the retry limit like any failure. Raises ValueError unless `after_seconds`
    is a finite number from 0 on.
    """

    def __init__(self, reason: str, *, after_seconds: float | None = None) -> None:
        super().__init__(reason)
        if after_seconds is not None and not _is_pause(after_seconds):
            message = (
                f"after_seconds is {after_seconds!r}; a number of seconds from 0 on is allowed"
            )
            raise ValueError(message)
        self.reason = reason
        self.after_seconds = after_seconds


SIGNALS = frozenset({Reject, RejectRows, Retry, type})
"""Types of what is no value: the first three are raised, and a class says nothing."""


def _is_pause(seconds: Any) -> bool:
    return isinstance(seconds, Real) and 0 <= float(seconds) < math.inf
