"""Offsets in ZooKeeper, one node per partition, in storm-kafka's form (`partition.offsets.znode`).

`partition.offsets.offset_nodes` decides what is written and what a lost reply means; one thread
carries its requests out through `partition.zookeeper.zookeeper_client`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import structlog

from partition.errors import OwnershipLost, StoreError, StoreUnavailable
from partition.interfaces import Claim, Progress, StoredOffset
from partition.offsets.offset_nodes import OffsetNodes
from partition.offsets.ownership import NodeNames
from partition.offsets.requests import Steps
from partition.offsets.znode import Broker
from partition.records import Partition, Position, Transactions
from partition.zookeeper.carrying import carry_out, carry_out_together
from partition.zookeeper.zookeeper_client import NEVER, ZooKeeperConnection

log = structlog.get_logger()
T = TypeVar("T")

_Claims: TypeAlias = dict[Partition, tuple[Future[Claim], Callable[[OffsetNodes], Steps[Claim]]]]

_CLAIMED_AT_ONCE = 32


class ZooKeeperStore:
    """An `OffsetStore` in ZooKeeper. `hosts` is "host:port,host:port", perhaps with "/chroot".

    One thread of its own makes every request; `open` and `load` wait for it at most
    `timeout_seconds`, everything else is a future. `kazoo_options` (TLS, `auth_data`,
    `default_acl`, ...) go to KazooClient; with TLS the server's name is always checked.

    `at` is told, by name, of the points of a claim and of a write, on the store's thread, for
    tests that end the process there.
    """

    def __init__(
        self,
        hosts: str,
        *,
        pipeline: str,
        topology_id: str,
        topology_name: str = "",
        root: str = "/headrace",
        broker: Broker | None = None,
        session_timeout_seconds: float = 10.0,
        timeout_seconds: float = 15.0,
        kazoo_options: Mapping[str, Any] | None = None,
        at: Callable[[str], object] | None = None,
    ) -> None:
        self._hosts = hosts
        self._names = NodeNames(root, pipeline, topology_id, topology_name, broker or Broker())
        self._session_timeout_seconds = session_timeout_seconds
        self._timeout_seconds = timeout_seconds
        self._kazoo_options = dict(kazoo_options or {})
        self._at = at or _nowhere
        self._connection: ZooKeeperConnection | None = None
        self._nodes: OffsetNodes | None = None
        self._worker: ThreadPoolExecutor | None = None
        # What goes before all else that waits for the worker; any thread adds, it takes.
        self._first: deque[Callable[[], None]] = deque()
        # The claims that were asked for last and wait, if nothing else was asked for since.
        self._claims: _Claims | None = None
        self._claims_lock = threading.Lock()

    @property
    def available(self) -> bool:
        """Whether there is a connection now, as far as kazoo knows."""
        return self._connection is not None and self._connection.connected

    @property
    def session(self) -> int:
        """How many sessions have ended since `open`."""
        return 0 if self._connection is None else self._connection.sessions_ended

    @property
    def last_contact(self) -> float | None:
        """When the newest request was sent that was answered; None: none was since `open`.

        In seconds of the monotonic clock. The session lived then, for its whole time-out.
        """
        return None if self._connection is None else self._connection.last_contact

    def open(self) -> None:
        """Connect. Raises StoreUnavailable after `timeout_seconds`, StoreError if refused."""
        if self._connection is not None:
            return
        self._connection = ZooKeeperConnection(
            self._hosts,
            self._kazoo_options,
            session_timeout_seconds=self._session_timeout_seconds,
            timeout_seconds=self._timeout_seconds,
            at=self._at,
        )
        self._nodes = OffsetNodes(self._names)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="zookeeper")
        try:
            self._connection.open()
        except BaseException:
            self.close()
            raise

    def load(self, partition: Partition) -> StoredOffset | None:
        """Return the stored offset; None only when the node does not exist."""
        what = f"for {self._names.path(partition)}"
        end = time.monotonic() + self._timeout_seconds
        future = self._submit(what, lambda nodes: nodes.load(partition), end)
        try:
            return future.result(self._timeout_seconds + 1.0)
        except TimeoutError:
            future.cancel()
            raise StoreUnavailable(
                what, f"no answer in {self._timeout_seconds:g} seconds"
            ) from None

    def claim(
        self,
        partition: Partition,
        *,
        adopt: bool = False,
        again: bool = False,
        anew: bool = True,
    ) -> Future[Claim]:
        """Take a partition over; see `OffsetStore.claim`."""
        asked_in = self.session

        def claim(nodes: OffsetNodes) -> Steps[Claim]:
            if not anew and self.session != asked_in:
                raise OwnershipLost(partition)
            return (yield from nodes.claim(partition, adopt=adopt, again=again, anew=anew))

        return self._claim(partition, claim)

    def begin(
        self,
        partition: Partition,
        position: Position,
        partitions: int | None = None,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        """Store a first position; see `OffsetStore.begin`."""
        return self._submit(
            "a first offset",
            lambda nodes: nodes.begin(partition, position, partitions, transactions),
        )

    def move(
        self,
        partition: Partition,
        position: Position,
        reason: str,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        """Store a position wherever it lies; see `OffsetStore.move`."""
        return self._submit(
            "a move",
            lambda nodes: nodes.move(partition, position, reason, transactions),
        )

    def commit(
        self, progress: Mapping[Partition, Progress]
    ) -> Future[Mapping[Partition, StoreError]]:
        """Store what partitions have come to; see `OffsetStore.commit`."""
        asked = dict(progress)

        def commit(nodes: OffsetNodes) -> Steps[Mapping[Partition, StoreError]]:
            return (yield from nodes.commit(asked))

        return self._submit("a commit", commit)

    def submit(self, steps: Steps[T]) -> Future[T]:
        """Carry out requests in the offsets' own session, before whatever else waits here.

        They wait for a server that is away, till the store is closed: StoreUnavailable. When the
        session ends, SessionEnded is thrown into the generator.
        """
        future: Future[T] = Future()
        connection, nodes, worker = self._connection, self._nodes, self._worker
        if connection is None or nodes is None or worker is None:
            steps.close()
            future.set_exception(StoreUnavailable("a beat", "the store is not open"))
            return future

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(carry_out(connection, nodes, lambda _: steps, NEVER, tell=False))
            except BaseException as error:  # noqa: BLE001 - the future's owner hears of it
                future.set_exception(error)

        self._first.append(run)
        worker.submit(self._run_first)
        return future

    def close(self) -> None:
        """Disconnect, in about `timeout_seconds` at most; what waits fails."""
        connection, self._connection = self._connection, None
        worker, self._worker = self._worker, None
        self._nodes = None
        if connection is None or worker is None:
            return
        end = time.monotonic() + self._timeout_seconds
        connection.close()
        # While connected a request in flight gets its time; without, none can succeed.
        idle = worker.submit(_nothing)
        if connection.connected and not _done(idle, self._timeout_seconds / 2):
            log.warning("zookeeper_closed_without_reply", hosts=self._hosts)
        stopped = connection.disconnect(max(0.1, end - time.monotonic()))
        worker.shutdown(wait=stopped)

    def _claim(
        self, partition: Partition, work: Callable[[OffsetNodes], Steps[Claim]]
    ) -> Future[Claim]:
        """Do it together with the claims that were asked for just before, if they still wait.

        What a replica takes over it claims at once, and alone each would wait for three replies.
        """
        future: Future[Claim] = Future()
        connection, nodes, worker = self._connection, self._nodes, self._worker
        if connection is None or nodes is None or worker is None:
            future.set_exception(StoreUnavailable("a claim", "the store is not open"))
            return future
        with self._claims_lock:
            claims = self._claims
            if claims and partition not in claims and len(claims) < _CLAIMED_AT_ONCE:
                claims[partition] = (future, work)
                return future
            self._claims = claims = {partition: (future, work)}

        def run() -> None:
            self._run_first()
            with self._claims_lock:  # from here on it takes no more
                if self._claims is claims:
                    self._claims = None
            carry_out_together(connection, nodes, list(claims.values()))

        worker.submit(run)
        return future

    def _submit(
        self, what: str, work: Callable[[OffsetNodes], Steps[T]], end: float = NEVER
    ) -> Future[T]:
        """Do `work` on the worker, before claims that are submitted later."""
        with self._claims_lock:
            self._claims = None
        connection, nodes, worker = self._connection, self._nodes, self._worker
        if connection is None or nodes is None or worker is None:
            future: Future[T] = Future()
            future.set_exception(StoreUnavailable(what, "the store is not open"))
            return future

        def run() -> T:
            self._run_first()
            return carry_out(connection, nodes, work, end)

        return worker.submit(run)

    def _run_first(self) -> None:
        """Before each piece of work: a beat waits for one claim, not for a thousand."""
        while self._first:
            self._first.popleft()()


def _nothing() -> None:
    """What an idle worker does."""


def _nowhere(place: str) -> None:
    """No point of the way is of interest."""
    del place


def _done(future: Future[None], seconds: float) -> bool:
    try:
        future.result(seconds)
    except TimeoutError:
        return False
    return True
