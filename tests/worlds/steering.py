"""A pipeline's nodes in memory, as operators' commands read and change them."""

import itertools
from collections.abc import Callable
from contextlib import contextmanager

from partition.errors import StoreUnavailable
from partition.offsets.requests import ZNode
from partition.replicas.heartbeat import (
    control_path,
    encode_control,
    encode_member,
    encode_plan,
    plan_path,
    replica_path,
    replicas_path,
)
from partition.replicas.plan import Control, Member, Note, Plan
from service.cli.replicas import ReplicaNodes

ROOT, PIPELINE = "/headrace", "tables"
NOTE = Note("ada@desk", "a new release", 1_700_000_000_000)


class NodesInMemory:
    """A tree of nodes. `away` answers nothing; `before` is called once, before a change."""

    def __init__(self) -> None:
        self.nodes: dict[str, ZNode] = {}
        self.away = False
        self.refuses: set[str] = set()
        self._created = itertools.count(1)
        self.pipeline = ReplicaNodes(self, ROOT, PIPELINE)

    def children(self, path: str) -> list[str] | None:
        self._check(path)
        names = [
            each.removeprefix(f"{path}/") for each in self.nodes if each.startswith(f"{path}/")
        ]
        return [name for name in names if "/" not in name] or None

    def get(self, path: str) -> ZNode | None:
        self._check(path)
        return self.nodes.get(path)

    def change(self, path: str, function: Callable[[bytes | None], bytes]) -> bytes:
        self._check(path)
        if path in self.refuses:
            raise StoreUnavailable(f"for {path}", "it is away")
        found = self.nodes.get(path)
        data = function(None if found is None else found.data)
        self.put(path, data)
        return data

    def put(self, path: str, data: bytes) -> None:
        found = self.nodes.get(path)
        created = next(self._created) if found is None else found.created
        version = 0 if found is None else found.version + 1
        self.nodes[path] = ZNode(data, version, created, is_ours=False)

    def register(self, name: str, *holds: object, seen: int = 1) -> None:
        """Let a replica have registered, on host `host-<name>`."""
        member = Member(
            name=name,
            process=f"process-of-{name}",
            joined=0,
            seen=seen,
            holds=frozenset(holds),
            host=f"host-{name}",
            since_ms=NOTE.at_ms,
            headrace="0.1.0",
        )
        self.put(replica_path(ROOT, PIPELINE, name), encode_member(member))

    def leave(self, name: str) -> None:
        del self.nodes[replica_path(ROOT, PIPELINE, name)]

    def put_plan(self, plan: Plan) -> None:
        self.put(plan_path(ROOT, PIPELINE), encode_plan(plan))

    def put_control(self, control: Control) -> None:
        self.put(control_path(ROOT, PIPELINE), encode_control(control))

    def garble(self, name: str) -> str:
        """Put bytes that are no JSON into a replica's node; return its path."""
        path = f"{replicas_path(ROOT, PIPELINE)}/{name}"
        self.put(path, b"?")
        return path

    @contextmanager
    def opened(self, *_arguments):
        """Stand in for `replica_nodes`."""
        yield self.pipeline

    def _check(self, path: str) -> None:
        if self.away:
            raise StoreUnavailable(f"for {path}", "it is away")
