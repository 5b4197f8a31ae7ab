"""One connection to ZooKeeper by kazoo: it sends requests, and notices when a session ends.

kazoo's own retries are not used for requests: they would repeat a fenced write in a new session.
Three habits of kazoo matter here:

- A transaction's commit raises nothing: its errors are among its results.
- LOST is reported before kazoo fails the requests in its queue, so a request that was put there
  under our lock is never sent in a later session.
- It reports CONNECTED before it has signed in, and does not try again once that is refused. So
  `open` asks a question, and a refusal fails whatever waits or comes later.
"""

import contextlib
import copy
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from operator import methodcaller
from pathlib import Path
from typing import Any, Literal

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
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
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL

from partition.errors import StoreError, StoreHostsUnknown, StoreUnavailable
from partition.offsets.requests import (
    NEVER,
    Children,
    CreateNode,
    DeleteNode,
    NodeChanged,
    NodeExists,
    Operation,
    Pause,
    Read,
    Reply,
    ReplyLost,
    Request,
    SessionEnded,
    SetNode,
    Write,
    ZNode,
    missing_parents,
    size_of,
)

log = structlog.get_logger()

Auth = Literal["none", "digest", "sasl"]
Acl = Literal["open", "creator"]

_LARGEST_REQUEST = 0xFFFFF  # of a whole request: the default of ZooKeeper's jute.maxbuffer
_LOOK_UP_SECONDS = 1.0  # of all hosts' names; an answer takes milliseconds
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


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """Credentials, access rights and TLS of a client.

    `auth` is "none", "digest" (the server knows no users; a node's list holds a hash of name and
    password) or "sasl" (DIGEST-MD5: the server knows them). `acl` says who may read and write the
    nodes made: "open" everybody, "creator" this client. With `tls` the server's certificate must be
    of an authority in `ca` or in the system's own, and be made out to the name or address that
    was connected to; `certificate` and `key` are this client's own.
    """

    auth: Auth = "none"
    username: str = ""
    password: str = field(default="", repr=False)
    acl: Acl = "open"
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def kazoo_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.auth == "digest":
            options["auth_data"] = [("digest", f"{self.username}:{self.password}")]
        elif self.auth == "sasl":
            options["sasl_options"] = {
                "mechanism": "DIGEST-MD5",
                "username": self.username,
                "password": self.password,
            }
        if self.acl == "creator":
            options["default_acl"] = list(CREATOR_ALL_ACL)
        if self.tls:
            options |= {"use_ssl": True, "verify_certs": True, "check_hostname": True}
            files = {"ca": self.ca, "certfile": self.certificate, "keyfile": self.key}
            options |= {name: str(path) for name, path in files.items() if path is not None}
        return options


class ZooKeeperConnection:
    """One KazooClient. Requests come from one thread, states from kazoo's.

    `timeout_seconds` bounds `open`; the longer of it and a session bounds the wait for one reply.
    Once a session has ended, every request raises SessionEnded until `acknowledge` is called.
    `last_contact`: when the newest answered request was sent (monotonic); the session lived then.
    """

    def __init__(
        self,
        hosts: str,
        options: Mapping[str, Any],
        *,
        session_timeout_seconds: float,
        timeout_seconds: float,
    ) -> None:
        self._hosts = hosts
        self._timeout_seconds = timeout_seconds
        # A request counts as kazoo's ping: one that is repeated before kazoo misses the answer
        # of a ping, two thirds of a session, keeps a hung connection open for ever.
        self._reply_seconds = max(timeout_seconds, session_timeout_seconds)
        self._changed = threading.Condition()
        self._ended = False
        self.sessions_ended = 0
        self._refused = False
        self.connected = False
        self.closed = False
        self.last_contact: float | None = None
        self._log = KazooLog()
        self.client = KazooClient(
            hosts=hosts,
            timeout=session_timeout_seconds,
            connection_retry=dict(_RECONNECT),
            logger=self._log,
            **copy.deepcopy(dict(options)),  # kazoo writes into them
        )

    def open(self) -> None:
        """Connect and sign in, or close. Raises StoreError (refused), StoreUnavailable (late)."""
        self.client.add_listener(self._on_state)
        self.client.start_async()
        end = time.monotonic() + self._timeout_seconds
        is_signed_in = False
        try:
            while not is_signed_in:
                self.acknowledge()
                with contextlib.suppress(SessionEnded, ReplyLost):
                    self._send(f"at {self._hosts}", methodcaller("exists_async", "/"), end)()
                    is_signed_in = True
        except BaseException as error:
            self.close()
            self.disconnect(self._timeout_seconds)
            if isinstance(error, StoreUnavailable):
                unknown = _all_unknown([host for host, _port in self.client.hosts])
                if unknown:
                    raise StoreHostsUnknown(f"'{self._hosts}'", unknown) from error
            raise

    def close(self) -> None:
        """Fail the requests that wait, and all later ones."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def disconnect(self, seconds: float) -> bool:
        """Stop kazoo, which fails requests that wait; return whether it ended in time."""
        # kazoo's stop() can hang, so a helper does it.
        stopping = threading.Thread(target=self._stop, name="kazoo-stop", daemon=True)
        stopping.start()
        stopping.join(seconds)
        return not stopping.is_alive()

    def acknowledge(self) -> bool:
        """Allow requests in the next session; return whether one has ended since the last call."""
        with self._changed:
            ended, self._ended = self._ended, False
        return ended

    def begin(self, request: Request, end: float = NEVER) -> Callable[[], Reply]:
        """Send a request; return a function that waits for its reply, until `end` (monotonic).

        Requests are carried out in the order in which they were sent. This and the wait raise the
        errors of `partition.offsets.requests`, StoreError when a request is refused for good, and
        StoreUnavailable when closed, or at `end`.
        """
        if isinstance(request, Pause):
            return partial(self._pause, request.seconds)
        if isinstance(request, Write):
            return self._writing(request.operations, end)
        return self._reading(request, end)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._ended, seconds)

    def _make(self, path: str, end: float) -> None:
        """Make a node and its parents where they are missing, the chroot included."""
        try:
            self._send(f"for {path}", methodcaller("ensure_path_async", path), end)()
        except NoNodeError as error:
            chroot = self._hosts.partition("/")[2]
            raise StoreError(
                f"{path} cannot be made: the chroot /{chroot} of {self._hosts} lies below a node "
                "that does not exist; make that one first"
            ) from error

    def _reading(self, request: Read | Children, end: float) -> Callable[[], Reply]:
        session: list[Any] = []

        def send(client: KazooClient) -> Any:
            session[:] = client.client_id or ()
            # Without sync, a follower could answer with what was there before. Requests of
            # one session are carried out in order, so there is no need to wait in between.
            client.sync_async(request.path)
            if isinstance(request, Children):
                return client.get_children_async(request.path)
            return client.get_async(request.path)

        reply = self._send(f"for {request.path}", send, end)

        def wait() -> Reply:
            try:
                found = reply()
            except NoNodeError:
                return None
            if isinstance(request, Children):
                names: list[str] = found
                return names
            data, stat = found
            return ZNode(data, stat.version, stat.czxid, stat.ephemeralOwner in session[:1])

        return wait

    def _writing(self, operations: Sequence[Operation], end: float) -> Callable[[], list[int]]:
        path = operations[0].path
        what = path if len(operations) == 1 else f"{path} and {len(operations) - 1} more"
        size = sum(map(size_of, operations))
        if size > _LARGEST_REQUEST:  # ZooKeeper would end the connection, and say nothing
            raise StoreError(
                f"a write of {size} bytes, most for {max(operations, key=size_of).path}, is not "
                f"sent: ZooKeeper's limit is {_LARGEST_REQUEST} (jute.maxbuffer)"
            )
        for parent in missing_parents(operations):
            self._make(parent, end)

        def send(client: KazooClient) -> Any:
            transaction = client.transaction()
            for operation in operations:
                _add(transaction, operation)
            return transaction.commit_async()

        results = self._send(what, send, end)
        return lambda: _versions(operations, results(), what, end)

    def _send(self, what: str, send: Callable[[KazooClient], Any], end: float) -> Callable[[], Any]:
        with self._changed:
            self._wait(what, end)
            sent = time.monotonic()
            asked = send(self.client)
        return partial(self._receive, what, asked, sent, end)

    def _receive(self, what: str, asked: Any, sent: float, end: float) -> Any:
        try:
            answer = asked.get(timeout=max(0.01, min(self._reply_seconds, end - sent)))
        except (NoNodeError, NodeExistsError):
            self.last_contact = sent  # that is an answer, too
            raise
        except _LOST as error:
            raise _unknown(what, error, end) from error
        except AuthFailedError as error:
            raise self._refusal() from error
        except KazooException as error:
            raise StoreError(f"ZooKeeper refuses a request {what}: {_name_of(error)}") from error
        self.last_contact = sent
        return answer

    def _wait(self, what: str, end: float) -> None:
        seconds = None if end == NEVER else max(0.0, end - time.monotonic())
        self._changed.wait_for(
            lambda: self.connected or self.closed or self._ended or self._refused, seconds
        )
        if self.closed:
            raise StoreUnavailable(what, "the store is closed")
        if self._refused:
            raise self._refusal()
        if self._ended:
            raise SessionEnded
        if not self.connected:
            said = f" ({self._log.last})" if self._log.last else ""
            raise StoreUnavailable(what, f"there is no connection{said}")

    def _refusal(self) -> StoreError:
        return StoreError(f"ZooKeeper at {self._hosts} refuses the credentials of [zookeeper]")

    def _on_state(self, state: str) -> None:
        # It runs on kazoo's thread and must not call ZooKeeper.
        with self._changed:
            self.connected = state == KazooState.CONNECTED
            # kazoo ends then, and for good.
            self._refused = self.client.client_state == KeeperState.AUTH_FAILED
            lost = state == KazooState.LOST and not self.closed
            self._ended = self._ended or lost
            self.sessions_ended += lost
            self._changed.notify_all()
        if lost:
            log.warning("zookeeper_session_ended", hosts=self._hosts)

    def _stop(self) -> None:
        # One that could not even start, for want of descriptors, has nothing to be woken by.
        with contextlib.suppress(AttributeError):
            self.client.stop()
        self.client.close()


class KazooLog(logging.LoggerAdapter[logging.Logger]):
    """A logger of one KazooClient: `last` says why it has no connection."""

    def __init__(self) -> None:
        logging.getLogger("kazoo").setLevel(logging.WARNING)
        super().__init__(logging.getLogger("kazoo.headrace"), {})
        self.last = ""  # "" until there is a warning

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level < logging.WARNING:  # there kazoo prints credentials
            return
        text = str(msg) % args if args else str(msg)
        if not text.startswith("Transition"):  # a state, not a reason
            self.last = text.strip(": ")
        super().log(level, msg, *args, **kwargs)


def _add(transaction: Any, operation: Operation) -> None:
    if isinstance(operation, CreateNode):
        path, data, ends_with_session = operation
        transaction.create(path, data, ephemeral=ends_with_session)
    elif isinstance(operation, SetNode):
        transaction.set_data(operation.path, operation.data, operation.version)
    elif isinstance(operation, DeleteNode):
        transaction.delete(operation.path, operation.version)
    else:
        transaction.check(operation.path, -1)


def _versions(
    operations: Sequence[Operation], results: Sequence[Any], what: str, end: float
) -> list[int]:
    errors = [result for result in results if isinstance(result, Exception)]
    if not errors:
        return [
            result.version if isinstance(operation, SetNode) else 0
            for operation, result in zip(operations, results, strict=True)
        ]
    reason = next((each for each in errors if not isinstance(each, _NOT_THE_REASON)), errors[0])
    if isinstance(reason, BadVersionError | NoNodeError):
        raise NodeChanged
    if isinstance(reason, NodeExistsError):
        raise NodeExists
    if isinstance(reason, _LOST):
        raise _unknown(what, reason, end)
    raise StoreError(f"ZooKeeper refuses to write {what}: {_name_of(reason)}")


def _all_unknown(hosts: Sequence[str]) -> str:
    """Return why no host has an address; empty unless the look-ups tell so in time."""
    reasons: list[str] = []

    def look_up() -> None:
        reasons.extend(takewhile(bool, map(_unresolved, hosts)))

    looking = threading.Thread(target=look_up, name="zookeeper-hosts", daemon=True)
    looking.start()
    looking.join(_LOOK_UP_SECONDS)
    return reasons[0] if len(reasons) == len(hosts) else ""


def _unresolved(host: str) -> str:
    """Return why a host has no address; empty if it has one, or if no server can tell now."""
    try:
        socket.getaddrinfo(host.strip("[]"), None)
    except OSError as error:
        if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            return f"'{host}': {error.strerror}"
    return ""


def _unknown(what: str, error: Exception, end: float) -> ReplyLost | StoreUnavailable:
    """Return the error of a request whose reply did not come; after `end` it is the last."""
    said = _name_of(error)
    return StoreUnavailable(what, said) if time.monotonic() >= end else ReplyLost(said)


def _name_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
