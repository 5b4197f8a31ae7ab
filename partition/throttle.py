"""The throttle: at most so many records a second. A token bucket, pure: time is an argument."""

import math

_BURST_SECONDS = 0.1  # what was left unused is kept for so long
_GROUP_SECONDS = 0.01  # so much is handed out at once: chunks, not single records
_ROUNDING = 1e-6  # by so little sums of small parts miss a whole token


class Throttle:
    """How many records may be emitted now. Seconds are of one monotonic clock.

    In any t seconds it lets at most `records_per_second` * t records pass, and one more and
    those of 0.1 seconds, which it may have saved up.
    """

    def __init__(self, records_per_second: float) -> None:
        """Raises ValueError where that is not a number above 0."""
        if not (records_per_second > 0 and math.isfinite(records_per_second)):
            message = f"records_per_second is {records_per_second}; allowed is a number above 0"
            raise ValueError(message)
        self._rate = records_per_second
        self._most = 1.0 + records_per_second * _BURST_SECONDS
        self._group = max(1.0, records_per_second * _GROUP_SECONDS)
        self._tokens = self._most
        self._filled_at: float | None = None

    @property
    def most_per_second(self) -> float:
        """How many records pass in a second, and at least one."""
        return max(1.0, self._rate)

    def allows(self, now: float) -> int:
        """How many records may be emitted now; 0 until a group of them may."""
        if self._filled_at is None:
            self._filled_at = now
        if now > self._filled_at:
            self._tokens = min(self._most, self._tokens + (now - self._filled_at) * self._rate)
            self._filled_at = now
        tokens = self._tokens + _ROUNDING
        return int(tokens) if tokens >= self._group else 0

    def take(self, count: int) -> None:
        """Learn that so many were emitted."""
        self._tokens -= count

    def seconds_left(self) -> float:
        """How long, from the last `allows` on, until some may be emitted."""
        return max(0.0, (self._group - self._tokens) / self._rate)
