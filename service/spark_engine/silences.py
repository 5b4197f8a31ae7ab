"""Partitions of which nothing was heard: for how long each is left out of groups. Pure."""

_FIRST_SECONDS = 10.0
_LONGEST_SECONDS = (
    300.0  # each try in vain holds the others up, for as long as silence is waited for
)


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

    def heard(self, place: int) -> None:
        """Learn that a partition was read, or is not read here any more."""
        self._times.pop(place, None)
        self._again_at.pop(place, None)
