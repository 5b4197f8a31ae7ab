"""Reads and changes single nodes for an operator, under a session of its own.

What is shared with replicas that run is changed by compare-and-set only: nobody's change is lost.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from partition.errors import StoreUnavailable
from partition.offsets.requests import (
    Children,
    CreateNode,
    NodeChanged,
    NodeExists,
    OutcomeUnknown,
    Pause,
    Read,
    Reply,
    Run,
    SessionEnded,
    SetNode,
    Steps,
    Write,
    ZNode,
    run_all,
)
from partition.zookeeper.zookeeper_client import ZooKeeperConnection

T = TypeVar("T")
MakeData: TypeAlias = Callable[[bytes | None], bytes]

_RETRY_SECONDS = 0.1
_TRIES = 100  # one is lost only to somebody else's change of the same node


class ZooKeeperEditor:
    """An operator's access. `hosts` is "host:port,host:port", perhaps with "/chroot".

    Each call waits at most `timeout_seconds`, then raises StoreUnavailable; it raises
    StoreError when it is refused for good. Any thread may call, one at a time. `kazoo_options`
    (TLS, `auth_data`, `default_acl`, ...) go to KazooClient; with TLS the server's name is
    always checked.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_seconds: float = 10.0,
        timeout_seconds: float = 15.0,
        kazoo_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._hosts = hosts
        self._session_timeout_seconds = session_timeout_seconds
        self._timeout_seconds = timeout_seconds
        self._kazoo_options = dict(kazoo_options or {})
        self._connection: ZooKeeperConnection | None = None

    def open(self) -> None:
        """Connect. Raises StoreUnavailable after `timeout_seconds`, StoreError if refused."""
        if self._connection is not None:
            return
        connection = ZooKeeperConnection(
            self._hosts,
            self._kazoo_options,
            session_timeout_seconds=self._session_timeout_seconds,
            timeout_seconds=self._timeout_seconds,
        )
        connection.open()
        self._connection = connection

    def children(self, path: str) -> list[str] | None:
        """Return the names below a node; None if there is no such node."""
        return cast("list[str] | None", self._run(path, _asked(Children(path or "/"))))

    def get(self, path: str) -> ZNode | None:
        """Return a node; None if there is no such node."""
        return cast("ZNode | None", self._run(path, _asked(Read(path or "/"))))

    def change(self, path: str, function: MakeData) -> bytes:
        """Set a node to what `function` makes of its data (None: no node), and return that.

        Raises what `function` raises, and nothing is changed then. See `changing`.
        """
        return self._run(path, changing(path, function))

    def close(self) -> None:
        """Disconnect, in about `timeout_seconds` at most. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            connection.disconnect(self._timeout_seconds)

    def _run(self, path: str, steps: Steps[T]) -> T:
        connection = self._connection
        if connection is None:
            raise StoreUnavailable(f"for {path}", "the editor is not open")
        run = Run(steps)
        send = partial(connection.begin, end=time.monotonic() + self._timeout_seconds)

        def session_ended() -> bool:
            connection.acknowledge()
            return False  # nothing of ours ends with a session

        run_all([run], send, session_ended)
        return run.future.result()


def changing(path: str, function: MakeData) -> Steps[bytes]:
    """Set a node to what `function` makes of its data, and return that.

    If somebody else is quicker, `function` is asked anew about the data that is there then. If a
    reply is lost the node is read again; so `function` may be given what it has made itself,
    with others' changes on top, and must be content with that. A node that is as `function`
    wants it is not written. Raises StoreUnavailable, and says so if the change may have been
    made or may be made yet.
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
        except (OutcomeUnknown, SessionEnded):
            is_unknown = True
            yield Pause(_RETRY_SECONDS)
        except StoreUnavailable as error:
            if not is_unknown:
                raise
            reason = f"{error.reason}; the change may have been made, or be made yet"
            raise StoreUnavailable(f"for {path}", reason) from error
        else:
            return data
    raise StoreUnavailable(f"for {path}", f"others were quicker, or replies lost, {_TRIES} times")


def _asked(request: Children | Read) -> Steps[Reply]:
    while True:
        try:
            return (yield request)
        except (OutcomeUnknown, SessionEnded):
            yield Pause(_RETRY_SECONDS)
