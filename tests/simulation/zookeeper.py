"""A linearizable ZooKeeper: nodes in memory, with sessions, and an observer of each write."""

from collections.abc import Callable
from typing import Any

from partition.memory import MemoryNodes
from partition.offsets.requests import (
    CheckNode,
    NodeChanged,
    NodeExists,
    Operation,
    SessionEnded,
    ZNode,
)


class SimZooKeeper(MemoryNodes):
    """The servers, as one. `written` hears of each change: sender, path, before, after."""

    def __init__(self, written: Callable[[Any, str, bytes | None, bytes | None], None]) -> None:
        super().__init__()
        self.written = written
        self.sessions: set[int] = set()
        self._session = 0

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

    def write_in(
        self, session: int, sender: object, operations: tuple[Operation, ...]
    ) -> list[int] | Exception:
        """All operations or none."""
        if session not in self.sessions:
            return SessionEnded()
        before = dict(self.nodes)
        try:
            versions = self.write(operations)
        except (NodeExists, NodeChanged) as error:
            return error
        for each in operations:
            if not isinstance(each, CheckNode):
                self.written(sender, each.path, _data(before.get(each.path)), each.data)  # type: ignore[union-attr]
        return versions

    def put(self, path: str, data: bytes) -> None:
        """Write as an operator does."""
        node = self.nodes.get(path)
        self.nodes[path] = ZNode(data, 0 if node is None else node.version + 1)
        self.written(None, path, _data(node), data)

    def delete(self, path: str) -> None:
        """Delete as an operator does."""
        node = self.nodes.pop(path, None)
        if node is not None:
            self.written(None, path, node.data, None)


def _data(node: ZNode | None) -> bytes | None:
    return None if node is None else node.data
