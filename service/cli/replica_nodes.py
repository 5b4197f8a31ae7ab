"""What replicas and operators keep in ZooKeeper beside the offsets, for an operator's commands."""

import getpass
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

from partition.offsets.requests import ZNode
from partition.replicas.heartbeat import (
    control_path,
    decode_control,
    decode_member,
    decode_plan,
    encode_control,
    plan_path,
    replica_path,
    replicas_path,
)
from partition.replicas.plan import Control, Member, Plan
from partition.zookeeper.zookeeper_editor import MakeData, ZooKeeperEditor
from service.cli.changes import Change, changes_path, decode_changes, with_change
from service.config import Config
from topology.topology import Topology


class Nodes(Protocol):
    """A ZooKeeperEditor, as far as it is used here; all of it raises as that does."""

    def children(self, path: str) -> list[str] | None:
        """The names below a node; None if there is no such node."""

    def get(self, path: str) -> ZNode | None:
        """A node; None if there is no such node."""

    def change(self, path: str, function: MakeData) -> bytes:
        """Set a node to what `function` makes of its data, by compare-and-set."""


class ReplicaNodes:
    """The nodes of one pipeline. Everything raises StoreUnavailable, StoreError, StoreCorrupt."""

    def __init__(self, nodes: Nodes, root: str, pipeline: str) -> None:
        self._nodes = nodes
        self._root = root
        self.pipeline = pipeline
        self.place = f"{root.rstrip('/')}/{pipeline}"
        self.control_path = control_path(root, pipeline)
        self.changes_path = changes_path(replicas_path(root, pipeline))

    def members(self) -> list[Member]:
        """The replicas that are registered, in the order of their names."""
        found = []
        for name in sorted(self._nodes.children(replicas_path(self._root, self.pipeline)) or ()):
            path = replica_path(self._root, self.pipeline, name)
            node = self._nodes.get(path)
            if node is not None:  # else it has just left
                found.append(decode_member(path, node.data, node.created))
        return found

    def plan(self) -> Plan | None:
        """The newest plan; None if there was none yet."""
        path = plan_path(self._root, self.pipeline)
        node = self._nodes.get(path)
        return None if node is None else decode_plan(path, node.data)

    def control(self) -> Control:
        """What operators ask for."""
        node = self._nodes.get(self.control_path)
        return self._control(None if node is None else node.data)

    def change_control(self, function: Callable[[Control], Control]) -> Control:
        """Change what operators ask for, and return it; see `ZooKeeperEditor.change`."""
        made = self._nodes.change(
            self.control_path, lambda data: encode_control(function(self._control(data)))
        )
        return self._control(made)

    def changes(self) -> list[Change]:
        """The newest moves of offsets by operators, the oldest of them first."""
        node = self._nodes.get(self.changes_path)
        return decode_changes(self.changes_path, None if node is None else node.data)

    def record(self, change: Change) -> None:
        """Keep that an operator has moved an offset."""
        path = self.changes_path
        self._nodes.change(path, lambda data: with_change(path, data, change))

    def _control(self, data: bytes | None) -> Control:
        return decode_control(self.control_path, data) if data else Control()


@contextmanager
def replica_nodes(topology: Topology, config: Config) -> Iterator[ReplicaNodes]:
    """The nodes of a pipeline, under a session of our own. Raises StoreUnavailable, StoreError."""
    settings = config.zookeeper
    editor = ZooKeeperEditor(
        settings.hosts,
        session_timeout_seconds=settings.session_timeout_seconds,
        kazoo_options=settings.security().kazoo_options(),
    )
    editor.open()
    try:
        yield ReplicaNodes(editor, settings.root, config.pipeline.name or topology.name)
    finally:
        editor.close()


def whoami() -> str:
    """Who gives a command: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def moment(at_ms: int) -> str:
    """A moment for a person, in UTC; nodes may hold any number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
