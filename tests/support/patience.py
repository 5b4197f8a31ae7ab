"""Time limits of tests, which grow with how busy or slow the machine is.

Limits are written for a machine with nothing else to do. A fixed piece of work, measured now and
then, gives the factor by which this machine is slower just now. `until` and `Limit` count time
divided by that factor; `seconds` is for calls that take a time-out as a number.
"""

import time
from collections.abc import Callable
from typing import Self

_WORK = 250_000
_REFERENCE_SECONDS = 0.025  # for the work, on the reference machine while it is idle
_MEASURED_EVERY_SECONDS = 10.0
_REMEMBERED_SECONDS = 60.0
_HEADROOM = 3.0  # load grows while a test waits; only what hangs is told of later
_POLL_SECONDS = 0.02


class _Scaled(float):
    """Seconds that have been scaled; scaling them again changes nothing."""

    plain: float

    @classmethod
    def of(cls, plain: float, scaled: float) -> Self:
        made = cls(scaled)
        made.plain = plain
        return made


class _Slowness:
    """The measured factors of the last minute; the largest counts."""

    def __init__(self) -> None:
        self._measured: list[tuple[float, float]] = []

    def factor(self) -> float:
        """How many times slower than the idle reference machine this one is, at least 1."""
        now = time.monotonic()
        if not self._measured or now - self._measured[-1][0] > _MEASURED_EVERY_SECONDS:
            recent = [each for each in self._measured if now - each[0] < _REMEMBERED_SECONDS]
            self._measured = [*recent, (now, _work_seconds() / _REFERENCE_SECONDS)]
        return max(1.0, *(factor for _, factor in self._measured))


def _work_seconds() -> float:
    began = time.perf_counter()
    total = 0
    for number in range(_WORK):
        total += number * number % 7
    return time.perf_counter() - began


factor = _Slowness().factor


def seconds(plain: float) -> float:
    """A time-out that guards against a hang, for a call that takes a number."""
    if isinstance(plain, _Scaled):
        return plain
    return _Scaled.of(plain, _HEADROOM * plain * factor())


def slack(plain: float) -> float:
    """The time that something may take at most, by what it promises."""
    return plain * factor()


class Limit:
    """A time-out of a loop."""

    def __init__(self, plain: float) -> None:
        self.plain = plain.plain if isinstance(plain, _Scaled) else plain
        self._left = _HEADROOM * self.plain
        self._seen = time.monotonic()

    @property
    def passed(self) -> bool:
        now = time.monotonic()
        self._left -= (now - self._seen) / factor()
        self._seen = now
        return self._left < 0


def _pause() -> None:
    time.sleep(_POLL_SECONDS)


def until(
    what: str,
    holds: Callable[[], object],
    seconds: float = 60.0,
    told: Callable[[], object] = str,  # what else to tell of the failure; nothing
    turn: Callable[[], object] = _pause,  # what is done between two looks
) -> None:
    """Wait until something holds; fail when it does not within the limit."""
    limit = Limit(seconds)
    while not holds():
        assert not limit.passed, f"not within {limit.plain:g} s: {what}\n{told()}".rstrip()
        turn()
