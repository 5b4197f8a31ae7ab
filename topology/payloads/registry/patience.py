"""How long the owner thread may wait for something that should be there at once."""


class Patience:
    """A budget of seconds: `burst_seconds` at first, earned again at `share` of the time.

    So all waiting together takes at most that share of any long time. Pure: `now` is in
    seconds, of any clock that does not go back.
    """

    def __init__(self, burst_seconds: float, share: float) -> None:
        self._burst = burst_seconds
        self._share = share
        self._left = burst_seconds
        self._at: float | None = None

    def left(self, now: float) -> float:
        """How long may be waited now, in seconds; never below zero."""
        if self._at is not None:
            earned = max(0.0, now - self._at) * self._share
            self._left = min(self._burst, self._left + earned)
        self._at = now
        return max(0.0, self._left)

    def spend(self, seconds: float) -> None:
        """Take note of a wait."""
        self._left -= seconds
