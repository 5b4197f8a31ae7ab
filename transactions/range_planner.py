"""Which offsets the next group of ranges takes of each partition. Pure."""

from collections.abc import Mapping

from transactions.policy import RangePolicy


class RangePlanner:
    """Shares a group's records out among partitions. Seconds are of the owner's clock.

    A partition is named by its place. What waits of it are the offsets from where its next range
    would begin to the end of its log.
    """

    def __init__(self, policy: RangePolicy) -> None:
        self._policy = policy
        self._since: float | None = None  # when something was first seen to wait
        self._turn = 0  # the place that is first to get one record more than others

    def look(self, now: float, places: Mapping[int, tuple[int, int]]) -> bool:
        """Learn what waits, while nothing may be planned; True if a plan would be made now.

        So what waits behind groups in flight does not wait anew once they are done.
        """
        waiting = sum(_waiting_of(places).values())
        if not waiting:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return waiting >= self._policy.records or now - self._since >= self._policy.seconds

    def plan(
        self, now: float, places: Mapping[int, tuple[int, int]], *, flush: bool = False
    ) -> dict[int, int] | None:
        """The end of the next range of each partition that gets one; None: it is not time yet.

        `places` has, by place, where the next range begins and where the log ends. It is time
        when as many wait as fill a group, when some have waited long, or at once with `flush`.
        Partitions get equal parts of it, and what one does not need goes to the others.
        """
        is_time = self.look(now, places)
        waiting = _waiting_of(places)
        if not waiting or not (is_time or flush):
            return None
        shares = self._shares(waiting)
        # What is left over has waited, too, but a tiny group right behind a full one is dear.
        self._since = None if shares == waiting else now
        return {place: places[place][0] + count for place, count in sorted(shares.items())}

    def _shares(self, waiting: Mapping[int, int]) -> dict[int, int]:
        """At most so many of each as wait of it, in all no more than fill a group."""
        shares: dict[int, int] = {}
        left = self._policy.records
        by_need = sorted(waiting, key=lambda place: (waiting[place], place))
        for done, place in enumerate(by_need):
            part, more = divmod(left, len(by_need) - done)
            if waiting[place] > part:  # and so do all that come now
                others = sorted(by_need[done:], key=lambda each: (each < self._turn, each))
                shares |= {each: part + (turn < more) for turn, each in enumerate(others)}
                if more:
                    self._turn = others[more - 1] + 1
                break
            shares[place] = waiting[place]
            left -= waiting[place]
        return {place: count for place, count in shares.items() if count}


def _waiting_of(places: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    return {place: end - first for place, (first, end) in places.items() if end > first}
