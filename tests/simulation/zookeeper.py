"""A linearizable ZooKeeper: nodes with versions that begin anew when re-created, and sessions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from partition.offsets.requests import (
    CheckNode,
    CreateNode,
    NodeChanged,
    NodeExists,
    Operation,
    SessionEnded,
    SetNode,
    ZNode,
    missing_parents,
)

ANY = -1  # ZooKeeper's version for "whatever it is"


@dataclass(slots=True)
class SimZooKeeper:
    """The servers, as one. `written` hears of each change: sender, path, before, after."""

    written: Callable[[Any, str, bytes | None, bytes | None], None]
    nodes: dict[str, ZNode] = field(default_factory=dict)
    sessions: set[int] = field(default_factory=set)
    _session: int = 0

    def open_session(self) -> int:
        """A new session."""
        self._session += 1
        self.sessions.add(self._session)
        return self._session

    def end_session(self, session: int) -> None:
        """Expire a session; nothing sent in it is carried out any more."""
        self.sessions.discard(session)

    def read(self, session: int, path: str) -> ZNode | Exception | None:
        """Data and version of a node."""
        return self.nodes.get(path) if session in self.sessions else SessionEnded()

    def write(
        self, session: int, sender: object, operations: tuple[Operation, ...]
    ) -> list[int] | Exception:
        """All operations or none."""
        if session not in self.sessions:
            return SessionEnded()
        for parent in missing_parents(operations):
            self.nodes.setdefault(parent, ZNode(b"{}"))
        before = dict(self.nodes)
        changed: list[tuple[str, bytes | None, bytes]] = []
        versions = []
        for operation in operations:
            node = self.nodes.get(operation.path)
            error = _refused(operation, node)
            if error is not None:
                self.nodes = before
                return error
            if isinstance(operation, CheckNode):
                versions.append(0)
                continue
            version = operation.version + 1 if isinstance(operation, SetNode) else 0
            self.nodes[operation.path] = ZNode(operation.data, version)
            changed.append((operation.path, None if node is None else node.data, operation.data))
            versions.append(version)
        for path, old, new in changed:
            self.written(sender, path, old, new)
        return versions

    def put(self, path: str, data: bytes) -> None:
        """Write as an operator does."""
        node = self.nodes.get(path)
        self.nodes[path] = ZNode(data, 0 if node is None else node.version + 1)
        self.written(None, path, None if node is None else node.data, data)

    def delete(self, path: str) -> None:
        """Delete as an operator does."""
        node = self.nodes.pop(path, None)
        if node is not None:
            self.written(None, path, node.data, None)


def _refused(operation: Operation, node: ZNode | None) -> Exception | None:
    if isinstance(operation, CreateNode):
        return None if node is None else NodeExists()
    if node is None:
        return NodeChanged()
    if isinstance(operation, SetNode) and operation.version not in {node.version, ANY}:
        return NodeChanged()
    return None
