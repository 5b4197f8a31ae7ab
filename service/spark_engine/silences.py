"""Partitions of which nothing was heard: for how long each is left out of groups. Pure."""

from collections.abc import Container

_FIRST_SECONDS = 10.0
# Each try in vain holds the others up, for as long as silence is waited for.
_LONGEST_SECONDS = 900.0
_MOST_PATIENCE = 8


class Silences:
    """Partitions, by place, that were silent and have not been read since.

    Seconds are of the owner's clock, and given. Pure: no thread, no clock, no I/O.
    """

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._again_at: dict[int, float] = {}

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._times)

    def fell(self, place: int, now: float) -> float:
        """Learn that nothing was heard of a partition; return how long it is left out.

        That grows with each time, until it is `heard`.
        """
        times = self._times[place] = self._times.get(place, 0) + 1
        pause = min(_FIRST_SECONDS * 2.0 ** min(times - 1, 16), _LONGEST_SECONDS)
        self._again_at[place] = now + pause
        return pause

    def is_out(self, place: int, now: float, *, is_answered: bool) -> bool:
        """Whether a partition is left out now.

        It is while its leader does not answer where the log ends (not `is_answered`), and comes
        with the first answer then, whatever was left of its pause.
        """
        if not is_answered:
            self._again_at.pop(place, None)
            return True
        return now < self._again_at.get(place, now)

    def patience(self, place: int) -> int:
        """How many times as long as at first nothing may be heard of a partition's next range.

        It may be no silence of its leader's: a client brings nothing of records whose producers
        have aborted them, while it reads a long stretch of these.
        """
        return min(1 << min(self._times.get(place, 0), 16), _MOST_PATIENCE)

    def keep(self, places: Container[int]) -> None:
        """Learn which partitions are read here: nothing will be heard of others."""
        for place in [each for each in self._times if each not in places]:
            self.heard(place)

    def heard(self, place: int) -> None:
        """Learn that a partition was read, or is not read here any more."""
        self._times.pop(place, None)
        self._again_at.pop(place, None)
