"""Offsets in ZooKeeper, one node per partition, in storm-kafka's form (`partition.offsets.znode`).

`partition.offsets.offset_nodes` decides what is written and what a lost reply means; one thread
carries its requests out through `partition.zookeeper.zookeeper_client`.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple, TypeVar

import structlog

from partition.errors import OwnershipLost, StoreError, StoreUnavailable
from partition.interfaces import Claim, Progress, StoredOffset
from partition.offsets.offset_nodes import OffsetNodes
from partition.offsets.ownership import NodeNames
from partition.offsets.requests import Reply, Request, Run, Steps, Write, run_all
from partition.records import Partition, Position, Transactions
from partition.zookeeper.zookeeper_client import NEVER, ZooKeeperConnection

log = structlog.get_logger()
T = TypeVar("T")

_CLAIMED_AT_ONCE = 32


class ZooKeeperStore:
    """An `OffsetStore` in ZooKeeper. `hosts` is "host:port,host:port", perhaps with "/chroot".

    One thread makes every request; `open` and `load` wait for it at most `timeout_seconds`,
    everything else is a future. `kazoo_options` (TLS, `auth_data`, `default_acl`, ...) go to
    KazooClient; with TLS the server's name is always checked.

    `at` is called with "zk_before_write" and "zk_after_write" on the store's thread, for tests
    that end the process there.
    """

    def __init__(
        self,
        hosts: str,
        *,
        pipeline: str,
        topology_id: str,
        topology_name: str = "",
        root: str = "/headrace",
        session_timeout_seconds: float = 10.0,
        timeout_seconds: float = 15.0,
        kazoo_options: Mapping[str, Any] | None = None,
        at: Callable[[str], object] | None = None,
    ) -> None:
        self._hosts = hosts
        self._names = NodeNames(root, pipeline, topology_id, topology_name)
        self._session_timeout_seconds = session_timeout_seconds
        self._timeout_seconds = timeout_seconds
        self._kazoo_options = dict(kazoo_options or {})
        self._at = at
        self._nodes = OffsetNodes(self._names)
        self._worker: _Worker | None = None

    @property
    def available(self) -> bool:
        """Whether there is a connection now, as far as kazoo knows."""
        return self._worker is not None and self._worker.connection.connected

    @property
    def session(self) -> int:
        """The number of sessions that have ended since `open`."""
        return 0 if self._worker is None else self._worker.connection.sessions_ended

    @property
    def last_contact(self) -> float | None:
        """When the newest request was sent that was answered; None: none was since `open`.

        In seconds of the monotonic clock. The session lived then, for its whole time-out.
        """
        return None if self._worker is None else self._worker.connection.last_contact

    def open(self) -> None:
        """Connect. Raises StoreUnavailable after `timeout_seconds`, StoreError if refused."""
        if self._worker is not None:
            return
        connection = ZooKeeperConnection(
            self._hosts,
            self._kazoo_options,
            session_timeout_seconds=self._session_timeout_seconds,
            timeout_seconds=self._timeout_seconds,
        )
        connection.open()
        self._nodes = OffsetNodes(self._names)
        self._worker = _Worker(connection, self._nodes, self._at)

    def load(self, partition: Partition) -> StoredOffset | None:
        what = f"for {self._names.path(partition)}"
        end = time.monotonic() + self._timeout_seconds
        future = self._submit(self._nodes.load(partition), end=end)
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
        asked_in, nodes = self.session, self._nodes

        def claim() -> Steps[Claim]:
            if not anew and self.session != asked_in:
                raise OwnershipLost(partition)
            return (yield from nodes.claim(partition, adopt=adopt, again=again, anew=anew))

        return self._submit(claim(), claims=partition)

    def begin(
        self,
        partition: Partition,
        position: Position,
        partitions: int | None = None,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        return self._submit(self._nodes.begin(partition, position, partitions, transactions))

    def move(
        self,
        partition: Partition,
        position: Position,
        reason: str,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        return self._submit(self._nodes.move(partition, position, reason, transactions))

    def commit(
        self, progress: Mapping[Partition, Progress]
    ) -> Future[Mapping[Partition, StoreError]]:
        return self._submit(self._nodes.commit(dict(progress)))

    def submit(self, steps: Steps[T]) -> Future[T]:
        """Carry out requests in the offsets' own session, before whatever else waits here.

        They wait for a server that is away, till the store is closed: StoreUnavailable. When the
        session ends, SessionEnded is raised in the generator.
        """
        return self._submit(steps, is_urgent=True)

    def close(self) -> None:
        """Disconnect, in about `timeout_seconds` at most; what waits fails."""
        worker, self._worker = self._worker, None
        if worker is not None and not worker.close(self._timeout_seconds):
            log.warning("zookeeper_closed_without_reply", hosts=self._hosts)

    def _submit(
        self,
        steps: Steps[T],
        *,
        claims: Partition | None = None,
        end: float = NEVER,
        is_urgent: bool = False,
    ) -> Future[T]:
        run = Run(steps)
        if self._worker is None:
            steps.close()
            run.future.set_exception(StoreUnavailable("a request", "the store is not open"))
        else:
            self._worker.submit(_Job(run, claims, end), is_urgent=is_urgent)
        return run.future


class _Job(NamedTuple):
    run: Run[Any]
    claims: Partition | None
    end: float  # when to give up


class _Worker:
    """The thread that makes the requests of an open store. Any thread submits."""

    def __init__(
        self,
        connection: ZooKeeperConnection,
        nodes: OffsetNodes,
        at: Callable[[str], object] | None,
    ) -> None:
        self.connection = connection
        self._nodes = nodes
        self._at = at
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="zookeeper")
        # Only the thread takes from these.
        self._urgent: deque[_Job] = deque()
        self._jobs: deque[_Job] = deque()

    def submit(self, job: _Job, *, is_urgent: bool) -> None:
        (self._urgent if is_urgent else self._jobs).append(job)
        self._thread.submit(self._work)

    def close(self, seconds: float) -> bool:
        """Disconnect; return whether what was under way has ended by a reply, if one could come."""
        end = time.monotonic() + seconds
        self.connection.close()
        # While connected a request in flight gets its time; without, none can succeed.
        idle = self._thread.submit(lambda: None)
        in_time = not self.connection.connected or bool(wait([idle], seconds / 2).done)
        stopped = self.connection.disconnect(max(0.1, end - time.monotonic()))
        self._thread.shutdown(wait=stopped)
        return in_time

    def _work(self) -> None:
        """Do the next urgent job, else the oldest one: a beat waits for no more than one of these.

        Claims in a row are made together. What a replica takes over it claims at once, and each
        waits for three replies.
        """
        if self._urgent:
            run_all([self._urgent.popleft().run], self.connection.begin, self._session_ended)
            return
        if not self._jobs:
            return
        jobs = [self._jobs.popleft()]
        claimed = {jobs[0].claims}
        if jobs[0].claims is not None:
            while self._jobs and len(jobs) < _CLAIMED_AT_ONCE:
                partition = self._jobs[0].claims
                if partition is None or partition in claimed:
                    break
                jobs.append(self._jobs.popleft())
                claimed.add(partition)
        send = partial(self._send, end=jobs[0].end)
        run_all([job.run for job in jobs], send, self._session_ended)

    def _send(self, request: Request, end: float) -> Callable[[], Reply]:
        at = self._at
        if at is None or not isinstance(request, Write):
            return self.connection.begin(request, end)
        at("zk_before_write")
        reply = self.connection.begin(request, end)

        def replied() -> Reply:
            versions = reply()
            at("zk_after_write")
            return versions

        return replied

    def _session_ended(self) -> bool:
        ended = self.connection.acknowledge()
        if ended:
            self._nodes.session_ended()
        return ended
