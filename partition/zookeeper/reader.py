"""Reads nodes that are not ours, and writes none: a `Tree` of `partition.storm_offsets`."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError

from partition.errors import StoreError, StoreUnavailable
from partition.zookeeper.zookeeper_client import KazooLog

_MOMENT_SECONDS = 2.0
_LOST = (
    ConnectionLoss,
    ConnectionClosedError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)


class ZooKeeperReader:
    """Reads under a session of its own. `hosts` is "host:port,host:port[/chroot]".

    Each call waits at most `timeout_seconds` for each of two requests, and asks once only: an
    operator who reads can ask again. Any thread may call, one at a time. `kazoo_options` go to
    KazooClient; with TLS the server's name is always checked.
    """

    def __init__(
        self,
        hosts: str,
        *,
        timeout_seconds: float = 10.0,
        kazoo_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._hosts = hosts
        self._timeout_seconds = timeout_seconds
        self._kazoo_options = dict(kazoo_options or {})
        self._client: KazooClient | None = None

    def open(self) -> None:
        """Connect. Raises StoreUnavailable after `timeout_seconds`."""
        if self._client is not None:
            return
        options = self._kazoo_options
        if options.get("use_ssl"):
            options = {**options, "check_hostname": True}
        told = KazooLog()
        self._client = KazooClient(
            hosts=self._hosts, timeout=self._timeout_seconds, logger=told, **options
        )
        if not self._client.start_async().wait(self._timeout_seconds):
            self.close()
            reason = f"there is no connection ({told.last})" if told.last else "no connection"
            raise StoreUnavailable(f"at {self._hosts}", reason)

    def children(self, path: str) -> Sequence[str] | None:
        """The names below a node; None if there is no such node. See `Tree.children`."""
        names: Sequence[str] | None = self._read("get_children_async", path)
        return names

    def get(self, path: str) -> tuple[bytes, int] | None:
        """A node's data and version; None if there is no such node."""
        found = self._read("get_async", path)
        if found is None:
            return None
        data, stat = found
        return data, stat.version

    def close(self) -> None:
        """Disconnect, within moments. Idempotent."""
        client, self._client = self._client, None
        if client is None:
            return
        # kazoo's stop() can hang, so a helper does it.
        stopping = threading.Thread(target=_stop, args=(client,), name="kazoo-stop", daemon=True)
        stopping.start()
        stopping.join(_MOMENT_SECONDS)

    def _read(self, request: str, path: str) -> Any:
        client = self._client
        if client is None:
            raise StoreUnavailable(f"for {path}", "the reader is not open")
        try:
            # Without sync, a follower could answer with what was there before.
            client.sync_async(path or "/").get(timeout=self._timeout_seconds)
            return getattr(client, request)(path or "/").get(timeout=self._timeout_seconds)
        except NoNodeError:
            return None
        except KazooTimeoutError as error:
            reason = f"no answer in {self._timeout_seconds:g} seconds"
            raise StoreUnavailable(f"for {path}", reason) from error
        except _LOST as error:
            raise StoreUnavailable(f"for {path}", _name(error)) from error
        except KazooException as error:  # no right to read it, say
            raise StoreError(f"ZooKeeper refuses to read {path}: {_name(error)}") from error


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _stop(client: KazooClient) -> None:
    client.stop()
    client.close()
