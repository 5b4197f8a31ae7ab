"""Offsets in ZooKeeper, one node per partition, in storm-kafka's form (`partition.offsets.znode`).

`OffsetStore` decides what is written and what a lost reply means; one thread carries its requests
out through `partition.zookeeper.zookeeper_client`. An operator's access to single nodes stands
below: what is shared with replicas that run is changed by compare-and-set only.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import structlog

from partition.errors import StoreUnavailable
from partition.interfaces import StoredOffset
from partition.offsets.holdings import Holdings, NodeNames
from partition.offsets.offset_store import OffsetStore
from partition.offsets.requests import (
    NEVER,
    RETRY_SECONDS,
    CreateNode,
    NodeChanged,
    NodeExists,
    Pause,
    Read,
    ReplyLost,
    Run,
    SessionEnded,
    SetNode,
    Steps,
    Write,
    ZNode,
    children,
    read,
    run_all,
    through_sessions,
)
from partition.records import Partition
from partition.zookeeper.zookeeper_client import ZooKeeperConnection

log = structlog.get_logger()
T = TypeVar("T")
MakeData: TypeAlias = Callable[[bytes | None], bytes]

_NO_NAMES = NodeNames("", "", "")
_CLAIMED_AT_ONCE = 32
_TRIES = 100  # one is lost only to somebody else's change of the same node


class ZooKeeperStore(OffsetStore):
    """Offsets in ZooKeeper, by `names`. `hosts` is "host:port,host:port", perhaps with "/chroot".

    One thread makes every request; what returns no future waits at most `timeout_seconds`.
    `kazoo_options` (see `ZooKeeperSecurity`) go to KazooClient.
    """

    def __init__(
        self,
        hosts: str,
        names: NodeNames = _NO_NAMES,
        *,
        session_timeout_seconds: float = 10.0,
        timeout_seconds: float = 15.0,
        kazoo_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(names)
        self._hosts = hosts
        self._timeout_seconds = timeout_seconds
        self._connection = partial(
            ZooKeeperConnection,
            hosts,
            kazoo_options or {},
            session_timeout_seconds=session_timeout_seconds,
            timeout_seconds=timeout_seconds,
        )
        self._worker: _Worker | None = None

    @property
    def available(self) -> bool:
        return self._worker is not None and self._worker.connection.connected

    @property
    def session(self) -> int:
        return 0 if self._worker is None else self._worker.connection.sessions_ended

    @property
    def last_contact(self) -> float | None:
        """When the newest answered request was sent (monotonic); the session lived then."""
        return None if self._worker is None else self._worker.connection.last_contact

    def open(self) -> None:
        """Raises StoreUnavailable after `timeout_seconds`, StoreError if refused."""
        if self._worker is None:
            connection = self._connection()
            connection.open()
            self._held = Holdings()
            self._worker = _Worker(connection, self.session_ended)

    def load(self, partition: Partition) -> StoredOffset | None:
        return self._result(self._names.path(partition), self._load(partition))

    # An operator's access to single nodes. Raises StoreUnavailable after `timeout_seconds`.

    def children(self, path: str) -> list[str] | None:
        return self._result(path, through_sessions(partial(children, path or "/")))

    def get(self, path: str) -> ZNode | None:
        return self._result(path, through_sessions(partial(read, path or "/")))

    def change(self, path: str, function: MakeData) -> bytes:
        """Set a node to what `function` makes of its data (None: no node), and return that.

        Raises what `function` raises, and nothing is changed then. See `changing`.
        """
        return self._result(path, changing(path, function))

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

    def _result(self, path: str, steps: Steps[T]) -> T:
        future = self._submit(steps, end=time.monotonic() + self._timeout_seconds)
        try:
            return future.result(self._timeout_seconds + 1.0)
        except TimeoutError:
            future.cancel()
            reason = f"no answer in {self._timeout_seconds:g} seconds"
            raise StoreUnavailable(f"for {path}", reason) from None

    def _submit(
        self,
        steps: Steps[T],
        *,
        claims: Partition | None = None,
        end: float = NEVER,
        is_urgent: bool = False,
    ) -> Future[T]:
        run = Run(steps, claims, end)
        if self._worker is None:
            steps.close()
            run.future.set_exception(StoreUnavailable("a request", "the store is not open"))
        else:
            self._worker.submit(run, is_urgent=is_urgent)
        return run.future


class _Worker:
    """The thread that makes the requests of an open store. Any thread submits."""

    def __init__(self, connection: ZooKeeperConnection, drop_ownership: Callable[[], None]) -> None:
        self.connection = connection
        self._drop_ownership = drop_ownership
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="zookeeper")
        # Only the thread takes from these.
        self._urgent: deque[Run[Any]] = deque()
        self._runs: deque[Run[Any]] = deque()

    def submit(self, run: Run[Any], *, is_urgent: bool) -> None:
        (self._urgent if is_urgent else self._runs).append(run)
        self._thread.submit(self._work)

    def close(self, seconds: float) -> bool:
        """Disconnect; return whether the request under way got its reply, if one could come."""
        end = time.monotonic() + seconds
        self.connection.close()
        # While connected a request in flight gets its time; without, none can succeed.
        idle = self._thread.submit(lambda: None)
        in_time = not self.connection.connected or bool(wait([idle], seconds / 2).done)
        stopped = self.connection.disconnect(max(0.1, end - time.monotonic()))
        self._thread.shutdown(wait=stopped)
        return in_time

    def _work(self) -> None:
        """Carry out what is urgent, else what waits longest; claims in a row together.

        So a heartbeat waits for one of these at most. A takeover claims many partitions at once,
        and each claim waits for three replies.
        """
        if self._urgent:
            run_all([self._urgent.popleft()], self.connection.begin, self._session_ended)
        elif self._runs:
            runs = [self._runs.popleft()]
            claimed = {runs[0].claims, None}
            while runs[0].claims is not None and self._runs and len(runs) < _CLAIMED_AT_ONCE:
                if self._runs[0].claims in claimed:
                    break
                claimed.add(self._runs[0].claims)
                runs.append(self._runs.popleft())
            run_all(runs, partial(self.connection.begin, end=runs[0].end), self._session_ended)

    def _session_ended(self) -> bool:
        ended = self.connection.acknowledge()
        if ended:
            self._drop_ownership()
        return ended


def changing(path: str, function: MakeData) -> Steps[bytes]:
    """Set a node to what `function` makes of its data, and return that.

    `function` is called again if somebody else is quicker or a reply is lost: it may be given its
    own result, with others' changes on top. A node that is as `function` wants it is not written.
    Raises StoreUnavailable, and says so if the change may have been made or may be made yet.
    """
    is_unknown = False
    for _ in range(_TRIES):
        try:
            found = cast("ZNode | None", (yield Read(path)))
            data = function(None if found is None else found.data)
            if found is not None and data == found.data:
                return data
            if found is None:
                yield Write((CreateNode(path, data),))
            else:
                yield Write((SetNode(path, data, found.version),))
        except (NodeChanged, NodeExists):
            continue
        except (ReplyLost, SessionEnded):
            is_unknown = True
            yield Pause(RETRY_SECONDS)
        except StoreUnavailable as error:
            if not is_unknown:
                raise
            reason = f"{error.reason}; the change may have been made, or be made yet"
            raise StoreUnavailable(f"for {path}", reason) from error
        else:
            return data
    raise StoreUnavailable(f"for {path}", f"others were quicker, or replies lost, {_TRIES} times")
