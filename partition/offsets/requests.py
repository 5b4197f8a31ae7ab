"""Requests for nodes, their replies, and the driver of generators that yield them. No I/O.

A generator (`partition.offsets.offset_store`, `partition.replicas.heartbeat`) yields requests; a
driver sends each, and gives the generator the reply or raises its error there. So the same code
runs against ZooKeeper, against memory, and in a simulator whose network loses and delays.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from partition.records import Partition

ANY_VERSION = -1
NEVER = float("inf")
RETRY_SECONDS = 0.1
_MORE_BYTES = 64  # of an operation in a request, for what is neither its path nor its data


class SetNode(NamedTuple):
    """One operation of a write: set a node if it still has this version, or `ANY_VERSION`."""

    path: str
    data: bytes
    version: int


class CreateNode(NamedTuple):
    """One operation of a write: make a node that must not exist yet; its version is 0."""

    path: str
    data: bytes
    ends_with_session: bool = False


class CheckNode(NamedTuple):
    """One operation of a write: the node must exist. Its "version" in the reply is 0."""

    path: str


class DeleteNode(NamedTuple):
    """One operation of a write: delete a node of this version. In the reply it is 0."""

    path: str
    version: int


Operation: TypeAlias = SetNode | CreateNode | CheckNode | DeleteNode


class ZNode(NamedTuple):
    data: bytes
    version: int = 0
    created: int = 0  # grows from one node made to the next, whatever their paths
    is_ours: bool = False  # it ends with the session in which this was asked


class Read(NamedTuple):
    """Reply: the ZNode as the leader knows it, or None if there is none."""

    path: str


class Children(NamedTuple):
    """Reply: the names below a node as the leader knows them, or None if there is no node."""

    path: str


class Write(NamedTuple):
    """All operations or none, in this order. Reply: the nodes' new versions.

    The shell makes the missing parents of created nodes first (`missing_parents`).
    """

    operations: tuple[Operation, ...]


class Pause(NamedTuple):
    """Wait before another try, but not past the end of the store. Reply: None."""

    seconds: float


Request: TypeAlias = Read | Children | Write | Pause
Reply: TypeAlias = ZNode | list[str] | list[int] | None
T = TypeVar("T")
Steps: TypeAlias = Generator[Request, Reply, T]


def size_of(operation: Operation) -> int:
    """Return how many bytes an operation takes in a request, or a few more."""
    data = b"" if isinstance(operation, CheckNode | DeleteNode) else operation.data
    return len(operation.path.encode()) + len(data) + _MORE_BYTES


class NodeExists(Exception):
    """A node to be created is there; nothing was written."""


class NodeChanged(Exception):
    """A node of a write is gone or has another version; nothing was written."""


class ReplyLost(Exception):
    """A request was sent and no reply came: it may have been done, or be done yet."""


class SessionEnded(Exception):
    """The session is over.

    What was sent in it is not carried out any more once the next session is established.
    """


def asked(request: "Read | Children") -> Steps[Any]:
    """Ask again while replies are lost."""
    while True:
        try:
            return (yield request)
        except ReplyLost:
            yield Pause(RETRY_SECONDS)


def read(path: str) -> Steps[ZNode | None]:
    found: ZNode | None = yield from asked(Read(path))
    return found


def children(path: str) -> Steps[list[str] | None]:
    found: list[str] | None = yield from asked(Children(path))
    return found


def through_sessions(make: Callable[[], Steps[T]]) -> Steps[T]:
    """Begin anew whenever the session ends."""
    while True:
        with suppress(SessionEnded):
            return (yield from make())


def missing_parents(operations: Iterable[Operation]) -> list[str]:
    """Return the parents to make before a write, but for those that the write names itself."""
    operations = tuple(operations)
    named = {operation.path for operation in operations}
    parents = [
        operation.path.rpartition("/")[0]
        for operation in operations
        if isinstance(operation, CreateNode)
    ]
    return [parent for parent in dict.fromkeys(parents) if parent and parent not in named]


class Run(Generic[T]):
    """A generator under way. `request` is its next one; None before `start` and at the end.

    `claims` is a partition that it claims; at `end` (monotonic) nobody waits for it any more.
    """

    def __init__(
        self, steps: Steps[T], claims: Partition | None = None, end: float = NEVER
    ) -> None:
        self.claims = claims
        self.end = end
        self.future: Future[T] = Future()
        self.request: Request | None = None
        self._steps = steps

    def start(self) -> None:
        """Ask for the first request, unless the future was cancelled."""
        if self.future.set_running_or_notify_cancel():
            self.take(None)

    def take(self, reply: Reply | BaseException) -> None:
        self.request = None
        try:
            if isinstance(reply, BaseException):
                self.request = self._steps.throw(reply)
            else:
                self.request = self._steps.send(reply)
        except StopIteration as stop:
            self.future.set_result(stop.value)
        except BaseException as error:  # noqa: BLE001 - the future's owner gets it
            self.future.set_exception(error)


def run_all(
    runs: Sequence[Run[Any]],
    send: Callable[[Request], Callable[[], Reply]],
    session_ended: Callable[[], bool],
) -> None:
    """Run generators to their ends, none of which asks for what another one writes.

    `send` returns a function that waits for the reply; both may raise. The next requests of all
    are sent before the first reply is waited for, so a round takes as long as one request. If
    `session_ended` after a round, every generator gets SessionEnded in place of its reply, except
    for a final error.
    """
    session_ended()
    for run in runs:
        run.start()
    while under_way := [(run, run.request) for run in runs if run.request is not None]:
        waits = [_result(partial(send, request)) for _, request in under_way]
        replies = [wait if isinstance(wait, BaseException) else _result(wait) for wait in waits]
        if session_ended():
            replies = [reply if _is_final(reply) else SessionEnded() for reply in replies]
        for (run, _), reply in zip(under_way, replies, strict=True):
            run.take(reply)


def _is_final(reply: Reply | BaseException) -> bool:
    passing = NodeExists | NodeChanged | ReplyLost
    return isinstance(reply, BaseException) and not isinstance(reply, passing)


def _result(call: Callable[[], T]) -> T | BaseException:
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - the generator is told, whatever it is
        return error
