"""What is asked of nodes, and what may come back: data, and no I/O.

A generator (`partition.offsets.offset_nodes`, `partition.replicas.heartbeat`) yields requests; a
shell sends them and answers with the reply, or throws what went wrong into the generator. So
one and the same text runs against ZooKeeper, against memory, and in a simulator whose network loses
and delays.
"""

from collections.abc import Generator, Iterable
from typing import NamedTuple, TypeAlias, TypeVar

ANY_VERSION = -1
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


class CheckNode(NamedTuple):
    """One operation of a write: the node must exist. Its "version" in the reply is 0."""

    path: str


class CreateEphemeral(NamedTuple):
    """One operation of a write: as CreateNode, and the node ends with the session."""

    path: str
    data: bytes


class DeleteNode(NamedTuple):
    """One operation of a write: delete a node of this version. In the reply it is 0."""

    path: str
    version: int


Operation: TypeAlias = SetNode | CreateNode | CheckNode | CreateEphemeral | DeleteNode


class Read(NamedTuple):
    """Reply: a node's data and version as the leader knows them, or None if there is none."""

    path: str


class Stat(NamedTuple):
    """A node, and which one of that path it is."""

    data: bytes
    version: int
    created: int  # grows from one node made to the next, whatever their paths
    is_ours: bool  # it ends with the session in which this was asked


class ReadStat(NamedTuple):
    """Reply: a node's Stat as the leader knows it, or None if there is none."""

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


Request: TypeAlias = Read | ReadStat | Children | Write | Pause
Reply: TypeAlias = tuple[bytes, int] | Stat | list[str] | list[int] | None
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


class OutcomeUnknown(Exception):
    """A request was sent and no reply came: it may have been done, or be done yet."""


class SessionEnded(Exception):
    """The session is over.

    What was sent in it is not carried out any more once the next session is established.
    """


def missing_parents(operations: Iterable[Operation]) -> list[str]:
    """Return the parents that a shell must make before a write, each with its own parents.

    A parent that the write itself names is the write's business: created earlier in it, or
    expected to be there.
    """
    operations = tuple(operations)
    named = {operation.path for operation in operations}
    parents = [
        operation.path.rpartition("/")[0]
        for operation in operations
        if isinstance(operation, CreateNode | CreateEphemeral)
    ]
    return [parent for parent in dict.fromkeys(parents) if parent and parent not in named]
