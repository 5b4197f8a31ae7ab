"""Tables whose files are only noted, and a topology of them for commands to load."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

from headrace import Record, Topology, bolt
from headrace.sinks import MemoryDeadLetters, Sink, SinkContext
from partition.errors import StoreUnavailable
from partition.memory.ports import MemoryCatalogue
from partition.offsets.requests import ZNode
from partition.records import Partition, Position
from partition.replicas.balance import Control, Leaving, Member, Note, Plan
from partition.replicas.heartbeat import (
    control_path,
    encode_control,
    encode_member,
    encode_plan,
    plan_path,
    replica_path,
    replicas_path,
)
from service.cli.control import ReplicaNodes
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore
from topology.sink import Compaction, Maintenance, Removal, Staged

TARGET = "tests.support.commands:topology"


class FileSink(Sink[Any]):
    """A table of files of some sizes, in bytes. `error` is raised when it is maintained."""

    def __init__(self, name: str, *sizes: int, error: Exception | None = None) -> None:
        self.name = name
        self.sizes = list(sizes)
        self.error = error
        self.calls: list[str] = []
        self.context: SinkContext | None = None

    def open(self, context: SinkContext) -> None:
        self.calls.append("open")
        self.context = context

    def commit(self, staged: Staged) -> None:
        raise AssertionError("no row comes here")

    def close(self) -> None:
        self.calls.append("close")

    def maintenance(self) -> Maintenance:
        return self

    def compact(self, target_bytes: int, *, dry_run: bool = False) -> Compaction:
        self._asked(f"compact {target_bytes}", dry_run=dry_run)
        small = [size for size in self.sizes if size < target_bytes]
        if len(small) < 2:
            return Compaction(0, 0, 0)
        if not dry_run:
            self.sizes = [size for size in self.sizes if size >= target_bytes] + [sum(small)]
        return Compaction(len(small), 1, sum(small))

    def vacuum(self, older_than_hours: int, *, dry_run: bool = False) -> Removal:
        self._asked(f"vacuum {older_than_hours}", dry_run=dry_run)
        return Removal(0, len(self.sizes))

    def expire(self, *, dry_run: bool = False) -> Removal:
        self._asked("expire", dry_run=dry_run)
        return Removal(len(self.sizes), 0)

    def _asked(self, what: str, *, dry_run: bool) -> None:
        self.calls.append(f"{what} dry" if dry_run else what)
        if self.error is not None:
            raise self.error

    def data_files(self) -> list[str]:
        return [f"/tables/{self.name}/{at}-{size}" for at, size in enumerate(self.sizes)]


@bolt
def passes(record: Record) -> int:
    return record.offset


def topology_of(sinks: Sequence[Sink[Any]], **more: Any) -> Topology:
    made = Topology("tables", **more)
    rows = made.source("numbers").then(passes)
    for sink in sinks:
        rows.into(sink)
    made.dead_letters.into(MemoryDeadLetters())
    return made


topology = topology_of([FileSink("orders")])


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

    def put_control(self, control: Control) -> None:
        self.put(control_path(ROOT, PIPELINE), encode_control(control))

    def garble(self, name: str) -> str:
        """Put bytes that are no JSON into a replica's node; return its path."""
        path = f"{replicas_path(ROOT, PIPELINE)}/{name}"
        self.put(path, b"?")
        return path

    def open(self) -> None:
        self._check("/")

    def close(self) -> None:
        """Keep the nodes."""

    @contextmanager
    def opened(self, *_arguments):
        yield self.pipeline

    def _check(self, path: str) -> None:
        if self.away:
            raise StoreUnavailable(f"for {path}", "it is away")


P = [Partition("numbers", number) for number in range(4)]


class World:
    """Four partitions whose logs hold 5 to 20; 0 and 1 are stored at 10 under epoch 1."""

    def __init__(self, topology: Topology | None = None) -> None:
        self.nodes = NodesInMemory()
        self.log = FaultyLog({"numbers": len(P)})
        for partition in P:
            for number in range(20):
                self.log.append(partition, b"x", timestamp_ms=1000 + number)
            self.log.delete_before(partition, 5)
            self.log.elect(partition)
        self.catalogue = MemoryCatalogue(self.log)
        self.stored = FaultyNodes()
        self.owner, self.store = self.opened(), self.opened()
        self.catalogue.open()
        self.topology = topology or topology_of([FileSink("a")])
        for partition in P[:2]:
            self.owner.claim(partition).result(0)
            self.owner.begin(partition, Position(10), len(P)).result(0)

    def opened(self) -> Any:
        made = FaultyStore(self.stored, pipeline=PIPELINE, topology_id=PIPELINE)
        made.open()
        return made

    @property
    def parts(self) -> dict[str, Any]:
        return {"catalogue": self.catalogue, "store": self.store}

    def before_claim(self, does: Callable[[Partition], object]) -> None:
        """Call something whenever a command is about to claim a partition."""
        claim = self.store.claim

        def late(partition: Partition) -> Any:
            does(partition)
            return claim(partition)

        self.store.claim = late

    def offsets(self) -> list[int | None]:
        found = [self.store.load(partition) for partition in P]
        return [None if each is None else each.offset for each in found]

    def share(self) -> None:
        """Replica a, who leads, has 0, gives 1 to b, and is given 2; c is gone and had 3."""
        self.nodes.register("a", P[0], P[1], seen=6)
        self.nodes.register("b", seen=7)
        owners = {P[0]: "a", P[2]: "a", P[3]: "c"}
        plan = Plan(7, "a", owners, {P[1]: Leaving("a", 7)})
        self.nodes.put(plan_path(ROOT, PIPELINE), encode_plan(plan))
