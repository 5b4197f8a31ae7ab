"""The oracle's part that counts what a crash would repeat: emitted, and not stored (15)."""

from bisect import bisect_left
from typing import TYPE_CHECKING

from partition.records import Partition
from tests.simulation.errors import Violation

if TYPE_CHECKING:
    from tests.simulation.life import Life
    from tests.simulation.world import World


class _Count:
    """The first emissions of one life of one partition that are not stored."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.was_full = False  # of records that were all resolved


class Unstored:
    """Knows only what the servers have carried out; the process itself may learn it later."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._counts: dict[tuple[str, Partition], _Count] = {}

    def emitted(self, life: "Life", partition: Partition, offset: int) -> None:
        """A record was emitted for the first time."""
        count = self._count(life, partition)
        count.offsets.append(offset)
        limit = self._world.settings.max_pending
        if len(count.offsets) > limit:
            found = f"{len(count.offsets)} records of {limit} are emitted and not stored"
            raise Violation(15, f"{life.name}, {partition}: {found}")
        if count.was_full:
            count.was_full = False
            self._world.seen("went_on_after_full_of_uncommitted")

    def resolved(self, life: "Life", partition: Partition) -> None:
        """Nothing that was emitted is unresolved."""
        count = self._count(life, partition)
        if len(count.offsets) < self._world.settings.max_pending or count.was_full:
            return
        if self._world.zookeeper_is_away(life):
            count.was_full = True
            self._world.seen("full_of_uncommitted")

    def stored(self, life: "Life", partition: Partition, offset: int) -> None:
        """A life's commit was carried out."""
        offsets = self._count(life, partition).offsets
        del offsets[: bisect_left(offsets, offset)]

    def moved(self, life: "Life", partition: Partition) -> None:
        """A life's stored offset jumped; whatever it had emitted was resolved before."""
        self._count(life, partition).offsets.clear()

    def lost(self, life: "Life", partition: Partition) -> None:
        """A partition is lost: it begins anew where its offset is stored."""
        self._counts.pop((life.name, partition), None)

    def forget(self, life: "Life") -> None:
        """A life is over."""
        for key in [key for key in self._counts if key[0] == life.name]:
            del self._counts[key]

    def _count(self, life: "Life", partition: Partition) -> _Count:
        return self._counts.setdefault((life.name, partition), _Count())
