"""Offsets in ZooKeeper, one node per partition, in storm-kafka's form (`partition.znode`).

What is written when, and what a lost reply means, is `partition.nodes`. Here are the
connection (kazoo) and the one thread that uses it. kazoo's own retries are not used for
requests: they would repeat a fenced write in a new session.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotReadOnlyCallError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from partition.chunk import Partition
from partition.errors import StoreError, StoreUnavailable
from partition.nodes import NodeChanged, NodeExists, NodeNames, OffsetNodes, OutcomeUnknown, SetNode
from partition.store import StoredOffset
from partition.znode import Broker

log = structlog.get_logger()
T = TypeVar("T")

_RETRY_SECONDS = 0.1
_RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0}
# The outcome of a request that ended so is unknown.
_LOST = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    SessionMovedError,
    OperationTimeoutError,
    NotReadOnlyCallError,
    KazooTimeoutError,
)
# What the other operations of a failed multi answer.
_NOT_THE_REASON = (RolledBackError, RuntimeInconsistency)


class _KazooConnection:
    """A `partition.nodes.Connection`: requests come from one thread, states from kazoo's.

    `timeout_seconds` bounds the wait for one reply.
    """

    def __init__(self, client: KazooClient, timeout_seconds: float) -> None:
        self._client = client
        self._timeout_seconds = timeout_seconds
        self._changed = threading.Condition()
        self.connected = False
        self.closed = False
        client.add_listener(self._on_state)

    def _on_state(self, state: str) -> None:
        # It runs on kazoo's thread and must not call ZooKeeper.
        with self._changed:
            self.connected = state == KazooState.CONNECTED
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any longer, and no request begin."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def wait(self, what: str, end: float) -> None:
        """Return when there is a connection. Raises StoreUnavailable at `end`, or if closed."""
        with self._changed:
            seconds = None if end == float("inf") else max(0.0, end - time.monotonic())
            self._changed.wait_for(lambda: self.connected or self.closed, seconds)
            if self.closed:
                raise StoreUnavailable(what, "the store is closed")
            if not self.connected:
                raise StoreUnavailable(what, "there is no connection")

    def pause(self, seconds: float) -> None:
        """Wait before another try, but not past `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed, seconds)

    def read(self, path: str, end: float) -> tuple[bytes, int] | None:
        """Return a node's data and version, or None; try again until `end`."""
        while True:
            try:
                # Without sync, a follower could answer with what was there before.
                self._request(path, lambda client: client.sync_async(path), end)
                data, stat = self._request(path, lambda client: client.get_async(path), end)
            except NoNodeError:
                return None
            except OutcomeUnknown as error:
                if time.monotonic() >= end:
                    raise StoreUnavailable(f"for {path}", str(error)) from error
                self.pause(_RETRY_SECONDS)
            else:
                return data, stat.version

    def create(self, path: str, data: bytes, end: float) -> None:
        """Create a node and its parents. Raises NodeExists, OutcomeUnknown."""
        try:
            self._request(path, lambda client: client.create_async(path, data, makepath=True), end)
        except NodeExistsError as error:
            raise NodeExists from error

    def set_all(self, writes: Sequence[SetNode]) -> list[int]:
        """Set all nodes or none. Raises NodeChanged, OutcomeUnknown."""

        def send(client: KazooClient) -> Any:
            transaction = client.transaction()
            for write in writes:
                transaction.set_data(write.path, write.data, write.version)
            return transaction.commit_async()

        what = (
            writes[0].path if len(writes) == 1 else f"{writes[0].path} and {len(writes) - 1} more"
        )
        results = self._request(what, send, float("inf"))
        # kazoo raises nothing: what went wrong stands among the results.
        errors = [result for result in results if isinstance(result, Exception)]
        reasons = [error for error in errors if not isinstance(error, _NOT_THE_REASON)] or errors
        if not reasons:
            return [stat.version for stat in results]
        if isinstance(reasons[0], (BadVersionError, NoNodeError)):
            raise NodeChanged
        if isinstance(reasons[0], _LOST):
            raise OutcomeUnknown(_name(reasons[0]))
        raise StoreError(f"ZooKeeper refuses to write {what}: {_name(reasons[0])}")

    def _request(self, what: str, send: Callable[[KazooClient], Any], end: float) -> Any:
        """Wait for the connection till `end`, send one request, wait for its answer."""
        self.wait(f"for {what}", end)
        seconds = min(self._timeout_seconds, end - time.monotonic())
        try:
            return send(self._client).get(timeout=max(0.01, seconds))
        except (NoNodeError, NodeExistsError):
            raise
        except _LOST as error:
            raise OutcomeUnknown(_name(error)) from error
        except KazooException as error:
            raise StoreError(f"ZooKeeper refuses {what}: {_name(error)}") from error


class ZooKeeperStore:
    """An `OffsetStore` in ZooKeeper. `hosts` is "host:port,host:port".

    One thread of its own makes every request; `open`, `load` and `create` wait for it at
    most `timeout_seconds`, `commit` does not wait. `kazoo_options` (TLS, `auth_data`,
    `default_acl`, ...) go to KazooClient; with TLS the server's name is always checked.
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
    ) -> None:
        self._hosts = hosts
        self._names = NodeNames(root, pipeline, topology_id, topology_name, broker or Broker())
        self._session_timeout_seconds = session_timeout_seconds
        self._timeout_seconds = timeout_seconds
        self._kazoo_options = dict(kazoo_options or {})
        self._client: KazooClient | None = None
        self._connection: _KazooConnection | None = None
        self._nodes: OffsetNodes | None = None
        self._worker: ThreadPoolExecutor | None = None

    @property
    def available(self) -> bool:
        """Whether there is a connection now, as far as kazoo knows."""
        return self._connection is not None and self._connection.connected

    def open(self) -> None:
        """Connect. Raises StoreUnavailable after `timeout_seconds`."""
        if self._client is not None:
            return
        options = self._kazoo_options
        if options.get("use_ssl"):
            options = {**options, "check_hostname": True}
        self._client = KazooClient(
            hosts=self._hosts,
            timeout=self._session_timeout_seconds,
            connection_retry=dict(_RECONNECT),
            logger=quiet_logger(),
            **options,
        )
        self._connection = _KazooConnection(self._client, self._timeout_seconds)
        self._nodes = OffsetNodes(self._connection, self._names)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="zookeeper")
        self._client.start_async()
        try:
            self._connection.wait(f"at {self._hosts}", time.monotonic() + self._timeout_seconds)
        except StoreUnavailable:
            self.close()
            raise

    def load(self, partition: Partition) -> StoredOffset | None:
        """Return the stored offset; None only when the node does not exist."""
        return self._ask(partition, lambda nodes, end: nodes.load(partition, end))

    def create(self, partition: Partition, offset: int) -> None:
        """Store a partition's first offset. Raises StoreConflict, StoreUnavailable."""
        self._ask(partition, lambda nodes, end: nodes.create(partition, offset, end))

    def commit(self, offsets: Mapping[Partition, int]) -> Future[None]:
        """Store offsets; see `OffsetStore.commit`."""
        nodes, worker = self._nodes, self._worker
        if nodes is None or worker is None:
            future: Future[None] = Future()
            future.set_exception(StoreUnavailable("a commit", "the store is not open"))
            return future
        return worker.submit(nodes.commit, dict(offsets))

    def close(self) -> None:
        """Disconnect, in about `timeout_seconds` at most; commits that wait fail."""
        client, self._client = self._client, None
        connection, self._connection = self._connection, None
        worker, self._worker = self._worker, None
        self._nodes = None
        if client is None or connection is None or worker is None:
            return
        end = time.monotonic() + self._timeout_seconds
        connection.close()
        idle = worker.submit(lambda: None)
        # While connected a request in flight gets its time; without, none can succeed.
        if connection.connected and not _done(idle, self._timeout_seconds / 2):
            log.warning("zookeeper_closed_without_reply", hosts=self._hosts)
        # kazoo's stop() can hang, so a helper does it; requests that wait then fail.
        stopping = threading.Thread(target=_stop, args=(client,), name="kazoo-stop", daemon=True)
        stopping.start()
        stopping.join(max(0.1, end - time.monotonic()))
        worker.shutdown(wait=not stopping.is_alive())

    def _ask(self, partition: Partition, work: Callable[[OffsetNodes, float], T]) -> T:
        """Run `work` on the worker and wait for it; it gets the time at which to give up."""
        nodes, worker = self._nodes, self._worker
        what = f"for {self._names.path(partition)}"
        if nodes is None or worker is None:
            raise StoreUnavailable(what, "the store is not open")
        end = time.monotonic() + self._timeout_seconds
        future = worker.submit(work, nodes, end)
        try:
            return future.result(self._timeout_seconds + 1.0)
        except TimeoutError:
            future.cancel()
            raise StoreUnavailable(
                what, f"no answer in {self._timeout_seconds:g} seconds"
            ) from None


def quiet_logger() -> logging.Logger:
    """Return the logger for kazoo's client: below WARNING kazoo prints credentials."""
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    quiet = logging.getLogger("kazoo.headrace")
    quiet.setLevel(logging.WARNING)
    quiet.addFilter(_is_loud_enough)  # adding it twice changes nothing
    return quiet


def _is_loud_enough(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _done(future: Future[None], seconds: float) -> bool:
    try:
        future.result(seconds)
    except TimeoutError:
        return False
    return True


def _stop(client: KazooClient) -> None:
    client.stop()
    client.close()
