"""One deadline shared by the steps of a shutdown: each takes what is left."""

import time
from collections.abc import Callable


class Deadline:
    """A moment on the monotonic clock."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._ends - self._clock())

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.left == 0.0
