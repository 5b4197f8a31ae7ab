"""At least and at most once: a row is a tuple of its record's tree, acked when it is durable."""

from collections.abc import Callable, Iterable, Iterator

from acker.acker import Flags, Trees
from service.account import Tally
from service.outlet import Outlet, Written, good_rows
from service.owners import Owners
from service.reader import Reader
from service.trees import LETTERED, SUNK, TreeTracker
from topology.outcome import Failure
from topology.signals import Reject


class Acking:
    """Acks rows and resolves records; the other way is `Transacting`. The owner calls everything.

    A record is done when its tree has resolved: all its rows are durable then.
    """

    is_idle = True
    """Nothing is under way that the acker does not know of."""

    def __init__(
        self,
        outlets: Iterable[Outlet],
        trees: TreeTracker,
        reader: Reader,
        tally: Tally,
        bury: Callable[[int, int, Failure], object],
    ) -> None:
        """`bury` sends the dead letter of a tuple, by its tree and edge."""
        self.by_name = {outlet.step.name: outlet for outlet in outlets}
        """The sinks' ends, by their steps' names."""
        self._trees = trees
        self._reader = reader
        self.tally = tally
        self._bury = bury

    @property
    def outlets(self) -> list[Outlet]:
        """The sinks' ends."""
        return list(self.by_name.values())

    def turn(self, now: float, *, flush: bool, plans: bool = True) -> bool:  # noqa: ARG002 - as Transacting
        """Hand over the batches that are due, with `flush` all; True if there was one."""
        handed = False
        for outlet in self.by_name.values():
            handed |= outlet.submit_due(now, flush=flush or self._reader.is_stuck)
        return handed

    def take(self, written: Written) -> None:
        """Hear what a sink's threads report. Raises what ends the run."""
        ended = written.outlet.take(written.done)
        if ended is None:
            return
        pending, staged = ended
        self._trees.ack(*good_rows(pending, staged))
        for row, reason in staged.rejected.items():
            failure = Failure(written.outlet.name, Reject(reason))
            self._bury(int(pending.trees[row]), int(pending.edges[row]), failure)

    def processed(self, owners: Owners, flags: Flags) -> None:
        """Learn that the trees of records have resolved."""
        self.tally.acked(flags, SUNK, LETTERED)
        self._reader.ack(owners)

    def void(self, owner: int) -> None:
        """Do nothing: rows of a try that has failed may come again."""

    def drop(self, place: int) -> None:
        """Do nothing: rows of a partition that is lost may be durable as well."""

    def waiting_trees(self) -> Iterator[Trees]:
        """Give the trees of the rows that are on their way."""
        for outlet in self.by_name.values():
            yield from outlet.trees()

    def holds(self, place: int) -> bool:  # noqa: ARG002 - as Transacting
        """Whether anything here names a record of a partition: rows name their trees."""
        return False
