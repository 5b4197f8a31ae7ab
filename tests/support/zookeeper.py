"""Where offset stores are tested: nodes in memory, and a real ZooKeeper."""

import itertools
import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from partition.errors import StoreError
from partition.interfaces import Claimed, Progress
from partition.offsets.holdings import NodeNames
from partition.offsets.offset_store import OffsetStore
from partition.records import (
    OpenTransaction,
    Partition,
    Position,
    Range,
    TransactionKind,
    Transactions,
)
from partition.zookeeper.zookeeper_store import ZooKeeperStore
from service.devservers.process import HOST, free_ports
from service.devservers.servers import EmbeddedZooKeeper, ask_zookeeper
from tests.support.faulty_store import FaultyNodes, FaultyStore
from tests.support.patience import seconds, until

A = Partition("orders", 0)
B = Partition("orders", 1)
STORM = (
    b'{"topology":{"id":"wc-3","name":"wc"},"offset":41,"partition":0,'
    b'"broker":{"host":"k1","port":9092},"topic":"orders"}'
)
SECONDS = seconds(30.0)
BOTH = ["memory", pytest.param("zookeeper", marks=pytest.mark.integration)]


def path_below(root: str, place: Partition | str) -> str:
    """The path of a partition's node, or of one that is named by its path."""
    return (
        place if isinstance(place, str) else f"{root}/shop/{place.topic}/partition_{place.number}"
    )


class MemoryNodesWorld:
    root = "/headrace"

    def __init__(self) -> None:
        self.nodes = FaultyNodes()
        self.stores: list[FaultyStore] = []

    def store(self, topology_id: str = "shop-1") -> FaultyStore:
        store = FaultyStore(self.nodes, pipeline="shop", topology_id=topology_id)
        self.stores.append(store)
        store.open()
        return store

    def path(self, place: Partition | str) -> str:
        return path_below(self.root, place)

    def put(self, place: Partition | str, data: bytes) -> None:
        self.nodes.put(self.path(place), data)

    def raw(self, place: Partition | str) -> bytes:
        return self.nodes.nodes[self.path(place)][0]

    def delete(self, path: str) -> None:
        self.nodes.delete(path)

    def writes(self) -> int:
        return self.nodes.writes

    def end_session(self, store: FaultyStore) -> None:
        store.end_session()

    def lose(self) -> None:
        self.nodes.away = True

    def find(self) -> None:
        self.nodes.away = False

    def close(self) -> None:
        for store in self.stores:
            store.close()


class ZooKeeperWorld:
    def __init__(self, server: EmbeddedZooKeeper) -> None:
        self.server = server
        self.root = f"/t-{uuid.uuid4().hex[:12]}"
        self.stores: list[ZooKeeperStore] = []
        self.client = KazooClient(server.address)
        self.client.start()

    def store(self, topology_id: str = "shop-1", **options: Any) -> ZooKeeperStore:
        settings = {
            "session_timeout_seconds": min(30.0, seconds(8.0)),  # a busy server is long in starting
            "timeout_seconds": 3.0,
            **options,
        }
        hosts = settings.pop("hosts", self.server.address)
        name = settings.pop("topology_name", "")
        store = ZooKeeperStore(hosts, NodeNames(self.root, "shop", topology_id, name), **settings)
        self.stores.append(store)
        store.open()
        return store

    def path(self, place: Partition | str) -> str:
        return path_below(self.root, place)

    def put(self, place: Partition | str, data: bytes) -> None:
        path = self.path(place)
        if self.client.exists(path):
            self.client.set(path, data)
        else:
            self.client.create(path, data, makepath=True)

    def raw(self, place: Partition | str) -> bytes:
        return self.client.get(self.path(place))[0]

    def delete(self, path: str) -> None:
        self.client.delete(path, recursive=True)

    def writes(self) -> int:
        """The count of the server's transactions so far; asking makes two."""
        path = f"{self.root}-{uuid.uuid4().hex}"
        self.client.create(path)
        zxid = int(self.client.exists(path).czxid)
        self.client.delete(path)
        return zxid & 0xFFFFFFFF

    def end_session(self, store: ZooKeeperStore) -> None:
        renew_session(store, self.server)

    def lose(self) -> None:
        self.server.kill()

    def find(self) -> None:
        self.server.open()

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.client.stop()
        self.client.close()


def opened(kind: str, request: pytest.FixtureRequest, server: str = "zookeeper") -> Iterator[Any]:
    """What a fixture yields: a world on the server of a fixture, which may be shared."""
    is_real = kind == "zookeeper"
    made = ZooKeeperWorld(request.getfixturevalue(server)) if is_real else MemoryNodesWorld()
    yield made
    made.close()


def opened_apart(kind: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """What a fixture yields: a world whose server is the test's own, so that it may be stopped."""
    if kind == "memory":
        yield MemoryNodesWorld()
        return
    server = EmbeddedZooKeeper(request.getfixturevalue("tmp_path"))
    server.open()
    try:
        real = ZooKeeperWorld(server)
        yield real
        real.close()
    finally:
        server.close()


def kazoo_of(store: ZooKeeperStore) -> KazooClient:
    worker = store._worker
    return worker.connection.client


def renew_session(store: ZooKeeperStore, server: EmbeddedZooKeeper) -> None:
    ended = store.session
    expire(kazoo_of(store), server)
    until("the next session", lambda: store.session > ended and store.available, SECONDS)


def expire(client: KazooClient, server: EmbeddedZooKeeper) -> None:
    """End a client's session from outside: a second client takes it up and closes it."""
    second = KazooClient(server.address, client_id=client.client_id)
    second.start()
    second.stop()
    second.close()


def node(world: Any, partition: Partition) -> dict[str, Any]:
    return json.loads(world.raw(partition))


def begin(store: OffsetStore, partition: Partition, offset: int) -> None:
    store.begin(partition, Position(offset)).result(SECONDS)


def claim(store: OffsetStore, partition: Partition, *, adopt: bool = False) -> Claimed:
    return store.claim(partition, adopt=adopt).result(SECONDS)


def commit(store: OffsetStore, offsets: dict[Partition, int]) -> dict[Partition, StoreError]:
    made = {partition: Progress(Position(offset)) for partition, offset in offsets.items()}
    return dict(store.commit(made).result(SECONDS))


def opened_transactions(
    first: int, *ends: int, committed: int = 0, kind: TransactionKind = "transactional"
) -> Transactions:
    """Those after `committed`, each from where the last ends up to the next of `ends`."""
    covered = itertools.pairwise((first, *ends))
    ranges = [Range(start, end, end - start, f"{end:032x}", 5) for start, end in covered]
    numbered = enumerate(ranges, committed + 1)
    return Transactions(
        kind, committed, tuple(OpenTransaction(txid, 1, each) for txid, each in numbered)
    )


def plan(first: int, *ends: int, committed: int = 0) -> Progress:
    """A position, and the transactions that are open from there on."""
    return Progress(Position(first), opened_transactions(first, *ends, committed=committed))


def commit_plans(
    store: OffsetStore, plans: Mapping[Partition, Progress]
) -> dict[Partition, StoreError]:
    return dict(store.commit(plans).result(SECONDS))


SERVERS = (1, 2, 3)
_SECONDS = 60.0


class ZooKeeperEnsemble:
    def __init__(self, folder: Path) -> None:
        peers = iter(free_ports(3 * len(SERVERS)))
        addresses = {each: (next(peers), next(peers), next(peers)) for each in SERVERS}
        members = {
            f"server.{each}": f"{HOST}:{quorum}:{election}"
            for each, (_port, quorum, election) in addresses.items()
        }
        self.servers: dict[int, EmbeddedZooKeeper] = {}
        for each in SERVERS:
            data = folder / str(each) / "zookeeper-data"
            data.mkdir(parents=True)
            (data / "myid").write_text(str(each))
            self.servers[each] = EmbeddedZooKeeper(
                folder / str(each),
                addresses[each][0],
                properties={
                    **members,
                    "initLimit": "20",
                    "syncLimit": "10",
                    "4lw.commands.whitelist": "ruok,srvr,stat,conf,mntr,isro",
                },
                flags=["-Dreadonlymode.enabled=true"],
            )

    @property
    def hosts(self) -> str:
        return ",".join(server.address for server in self.servers.values())

    def open(self) -> None:
        """Start those that do not run; return when all take writes."""
        for server in self.servers.values():
            server.open()
        until("all take writes", lambda: set(self._modes()) == {"rw"}, _SECONDS)

    def leave_one(self) -> EmbeddedZooKeeper:
        """Stop all but one; return that when it answers, and takes no writes."""
        *others, left = self.servers.values()
        for server in others:
            server.close()
        until("it is read-only", lambda: ask_zookeeper(left.port, "isro").strip() == "ro", _SECONDS)
        return left

    def close(self) -> None:
        for server in self.servers.values():
            server.close()

    def _modes(self) -> Iterator[str]:
        return (ask_zookeeper(each.port, "isro").strip() for each in self.servers.values())


def read_only(server: EmbeddedZooKeeper) -> str:
    """The newest transaction of a server that takes no writes; another after a write.

    It is asked by a four-letter word: kazoo cannot read what such a server answers to a client.
    """
    told = dict(
        line.split(": ", 1)
        for line in ask_zookeeper(server.port, "srvr").splitlines()
        if ": " in line
    )
    assert told["Mode"] == "read-only"
    return told["Zxid"]
