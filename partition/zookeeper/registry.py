"""The register of replicas in ZooKeeper: nodes that end with the offset store's session."""

from concurrent.futures import Future

from partition.replicas.heartbeat import Beats, Mine, Report, View
from partition.replicas.plan import SINGLY, Copartitions
from partition.zookeeper.zookeeper_store import ZooKeeperStore


class ZooKeeperRegistry:
    """A `Registry`, by the connection and in the session of a store, which whoever made it opens.

    So membership and what was claimed end together.
    """

    def __init__(
        self,
        store: ZooKeeperStore,
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
