"""The wheel of ticks by which trees expire (Storm's RotatingMap, with more buckets)."""

import math

from acker.errors import TimeoutTooLong

_TICKS = 254  # a byte tells 255 ticks ahead from each other; one of them is the one that runs
_TICKS_PER_TIMEOUT = 8
_ROUNDING = 1e-9


class Wheel:
    """Counts ticks, and says how many of them a time-out is.

    A tick is an eighth of the time-out, or as much longer as 254 of them need to reach
    `longest_seconds`; a whole number of ticks make the time-out. One advance ends one tick,
    at the earliest a whole tick after the advance before. A time-out of n ticks is up
    after n + 1 advances: the running tick does not count, as nobody knows how much of it
    was left.
    """

    def __init__(self, timeout_seconds: float, longest_seconds: float | None) -> None:
        self._longest = max(timeout_seconds, longest_seconds or 0.0)
        per_timeout = math.floor(_TICKS * timeout_seconds / self._longest + _ROUNDING)
        self.tick_seconds = (
            timeout_seconds / min(per_timeout, _TICKS_PER_TIMEOUT)
            if per_timeout
            else self._longest / _TICKS
        )
        self.current = 0
        self.timeout_advances = self.advances(timeout_seconds)
        self._ends_at: float | None = None

    def advances(self, seconds: float) -> int:
        """After how many advances so many seconds have passed for sure. Raises TimeoutTooLong."""
        if seconds > self._longest:
            raise TimeoutTooLong(seconds, self._longest)
        return min(max(math.ceil(seconds / self.tick_seconds - _ROUNDING), 0), _TICKS) + 1

    def advance(self, now: float) -> bool:
        """End the tick that runs, if it has lasted; the first call starts the first tick."""
        if self._ends_at is None:
            self._ends_at = now + self.tick_seconds
        if now < self._ends_at:
            return False
        self._ends_at = now + self.tick_seconds
        self.current += 1
        return True
