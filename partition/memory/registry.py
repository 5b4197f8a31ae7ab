"""The register of replicas in memory, for the test kit and for tests."""

from concurrent.futures import Future

from partition.memory.store import MemoryStore
from partition.replicas.heartbeat import Beats, Mine, Report, View
from partition.replicas.plan import SINGLY, Copartitions


class MemoryRegistry:
    """A `Registry` in the session of a store; stores on the same MemoryNodes share the register.

    As with ZooKeeper, membership and what was claimed end together.
    """

    def __init__(
        self,
        store: MemoryStore,
        *,
        root: str,
        pipeline: str,
        mine: Mine,
        copartitions: Copartitions = SINGLY,
    ) -> None:
        self._store = store
        self._beats = Beats(root, pipeline, mine, copartitions)

    @property
    def last_contact(self) -> float | None:
        """See `Registry.last_contact`."""
        return self._store.last_contact

    def beat(self, report: Report) -> Future[View]:
        """See `Registry.beat`."""
        return self._store.submit(self._beats.beat(report))

    def leave(self) -> Future[None]:
        """See `Registry.leave`."""
        return self._store.submit(self._beats.leave())
