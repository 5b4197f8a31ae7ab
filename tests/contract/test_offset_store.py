"""One suite for every OffsetStore: the one in memory and the one in ZooKeeper."""

import contextlib
import json
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient

from partition.chunk import Partition
from partition.errors import (
    Fenced,
    OffsetWouldMoveBack,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from partition.memory import MemoryNodes, MemoryStore
from partition.store import OffsetStore, StoredOffset
from partition.zookeeper import ZooKeeperStore
from service.embedded.zookeeper import EmbeddedZooKeeper

A = Partition("orders", 0)
B = Partition("orders", 1)
STORM = (
    b'{"topology":{"id":"wc-3","name":"wc"},"offset":41,"partition":0,'
    b'"broker":{"host":"k1","port":9092},"topic":"orders"}'
)
SECONDS = 30.0


class World(Protocol):
    """A server and a way behind the stores' backs."""

    def store(self) -> OffsetStore: ...
    def put(self, partition: Partition, data: bytes) -> None: ...
    def get(self, partition: Partition) -> dict[str, Any]: ...
    def delete(self, partition: Partition) -> None: ...
    def writes(self) -> int: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.nodes = MemoryNodes()
        self.stores: list[OffsetStore] = []

    def store(self) -> OffsetStore:
        store = MemoryStore(self.nodes, pipeline="shop", topology_id="shop-1")
        self.stores.append(store)
        store.open()
        return store

    def path(self, partition: Partition) -> str:
        return f"/headrace/shop/{partition.topic}/partition_{partition.number}"

    def put(self, partition: Partition, data: bytes) -> None:
        self.nodes.put(self.path(partition), data)

    def get(self, partition: Partition) -> dict[str, Any]:
        return json.loads(self.nodes.nodes[self.path(partition)][0])

    def delete(self, partition: Partition) -> None:
        del self.nodes.nodes[self.path(partition)]

    def writes(self) -> int:
        return self.nodes.writes

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

    def store(self) -> ZooKeeperStore:
        store = ZooKeeperStore(
            self.server.address,
            root=self.root,
            pipeline="shop",
            topology_id="shop-1",
            session_timeout_seconds=2.0,
            timeout_seconds=3.0,
        )
        self.stores.append(store)
        store.open()
        return store

    def path(self, partition: Partition) -> str:
        return f"{self.root}/shop/{partition.topic}/partition_{partition.number}"

    def put(self, partition: Partition, data: bytes) -> None:
        path = self.path(partition)
        if self.client.exists(path):
            self.client.set(path, data)
        else:
            self.client.create(path, data, makepath=True)

    def get(self, partition: Partition) -> dict[str, Any]:
        return json.loads(self.client.get(self.path(partition))[0])

    def delete(self, partition: Partition) -> None:
        self.client.delete(self.path(partition))

    def writes(self) -> int:
        return _zxid(self)

    def lose(self) -> None:
        self.server.kill()

    def find(self) -> None:
        self.server.open()

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.client.stop()
        self.client.close()


def _zxid(world: ZooKeeperWorld) -> int:
    """The count of the server's transactions so far."""
    path = f"{world.root}-{uuid.uuid4().hex}"
    world.client.create(path)
    zxid = int(world.client.exists(path).czxid)
    world.client.delete(path)
    return zxid & 0xFFFFFFFF


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.integration)])
def world(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: MemoryWorld | ZooKeeperWorld
    if request.param == "memory":
        made = MemoryWorld()
    else:
        made = ZooKeeperWorld(request.getfixturevalue("zookeeper"))
    yield made
    made.close()


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.integration)])
def fragile(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A world whose server is the test's own, so that it may be stopped."""
    if request.param == "memory":
        made = MemoryWorld()
        yield made
        made.close()
        return
    server = EmbeddedZooKeeper(request.getfixturevalue("tmp_path"))
    server.open()
    try:
        real = ZooKeeperWorld(server)
        yield real
        real.close()
    finally:
        server.close()


def within(seconds: float, ask: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not ask():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_an_offset_that_was_never_stored_is_none(world: World) -> None:
    assert world.store().load(A) is None


def test_a_first_offset_is_stored_once(world: World) -> None:
    """Promise 7: the first position is stored, and nobody stores another over it."""
    first, second = world.store(), world.store()
    first.create(A, 0)
    with pytest.raises(StoreConflict, match="offset 0"):
        second.create(A, 9)
    with pytest.raises(StoreConflict):
        first.create(A, 9)
    assert world.store().load(A) == StoredOffset(0, "shop-1", "shop-1")


def test_a_commit_is_seen_by_a_fresh_store(world: World) -> None:
    store = world.store()
    store.create(A, 5)
    store.commit({A: 7}).result(SECONDS)
    store.commit({A: 12}).result(SECONDS)
    fresh = world.store().load(A)
    assert fresh is not None
    assert fresh.offset == 12


def test_what_is_stored_can_be_read_by_storms_tools(world: World) -> None:
    store = world.store()
    store.create(A, 5)
    store.commit({A: 7}).result(SECONDS)
    node = world.get(A)
    assert node["topology"] == {"id": "shop-1", "name": "shop-1"}
    assert (node["topic"], node["partition"], node["offset"]) == ("orders", 0, 7)
    assert set(node["broker"]) == {"host", "port"}


def test_an_offset_of_storms_is_taken_over(world: World) -> None:
    world.put(A, STORM)
    store = world.store()
    assert store.load(A) == StoredOffset(41, "wc-3", "wc")
    store.commit({A: 50}).result(SECONDS)
    assert world.get(A)["offset"] == 50


@pytest.mark.parametrize("data", [b"", b"{}", STORM[:-1], b"\xff", STORM.replace(b"41", b"true")])
def test_corrupt_is_not_absent(world: World, data: bytes) -> None:
    """Promise 8: what cannot be read never looks like "no offset"."""
    world.put(A, data)
    store = world.store()
    with pytest.raises(StoreCorrupt, match="shop/orders/partition_0"):
        store.load(A)
    with pytest.raises(StoreCorrupt):
        store.create(A, 0)


def test_an_offset_never_moves_back(world: World) -> None:
    """Promise 2: the stored offset never moves back."""
    store = world.store()
    store.create(A, 5)
    store.create(B, 5)
    store.commit({A: 10}).result(SECONDS)
    with pytest.raises(OffsetWouldMoveBack) as caught:
        store.commit({B: 8, A: 9}).result(SECONDS)
    assert (caught.value.partition, caught.value.stored, caught.value.offset) == (A, 10, 9)
    assert world.get(A)["offset"] == 10
    assert world.get(B)["offset"] == 5


def test_an_offset_that_is_stored_is_not_written_again(world: World) -> None:
    store = world.store()
    store.create(A, 5)
    before = world.get(A)
    store.commit({A: 5}).result(SECONDS)
    assert world.get(A) == before


def test_a_partition_must_be_loaded_before_it_is_committed(world: World) -> None:
    world.put(A, STORM)
    with pytest.raises(StoreError, match="neither loaded nor created"):
        world.store().commit({A: 50}).result(SECONDS)


def test_the_first_writer_is_fenced_by_the_second(world: World) -> None:
    """Promise 9: a write is a compare-and-set; a zombie's does not land, now or later."""
    zombie, successor = world.store(), world.store()
    zombie.create(A, 5)
    zombie.create(B, 5)
    successor.load(A)
    successor.commit({A: 8}).result(SECONDS)
    for offset in (7, 9, 20):
        with pytest.raises(Fenced, match="shop-1") as caught:
            zombie.commit({B: offset, A: offset}).result(SECONDS)
        assert caught.value.partition == A
    assert world.get(A)["offset"] == 8
    assert world.get(B)["offset"] == 5
    successor.commit({A: 9}).result(SECONDS)


def test_a_deleted_node_fences_its_owner(world: World) -> None:
    store = world.store()
    store.create(A, 5)
    world.delete(A)
    with pytest.raises(Fenced, match="deleted"):
        store.commit({A: 6}).result(SECONDS)
    assert world.store().load(A) is None


def test_many_partitions_are_committed_in_one_write(world: World) -> None:
    store = world.store()
    partitions = [Partition("orders", number) for number in range(40)]
    for partition in partitions:
        store.create(partition, 0)
    before = world.writes()
    store.commit(dict.fromkeys(partitions, 3)).result(SECONDS)
    spent = world.writes() - before
    assert spent == (1 if isinstance(world, MemoryWorld) else 3)  # ours, and the probe's two
    assert all(world.get(partition)["offset"] == 3 for partition in partitions)


def test_more_partitions_than_one_write_may_hold_are_committed(world: World) -> None:
    store = world.store()
    partitions = [Partition("orders", number) for number in range(501)]
    for partition in partitions:
        store.create(partition, 0)
    store.commit(dict.fromkeys(partitions, 3)).result(SECONDS)
    assert world.get(partitions[0])["offset"] == 3
    assert world.get(partitions[-1])["offset"] == 3


def test_a_write_whose_reply_was_lost_counts_as_done(world: Any) -> None:
    """Promise 9: our own write, found on reading back, is no fence."""
    store = world.store()
    store.create(A, 5)
    if isinstance(world, MemoryWorld):
        world.nodes.lose_replies = 1
    else:
        own = world.get(A)
        own["offset"] = 8
        own["headrace"]["sequence"] += 1
        world.put(A, json.dumps(own).encode())
    store.commit({A: 8}).result(SECONDS)
    store.commit({A: 9}).result(SECONDS)
    assert world.get(A)["offset"] == 9


def test_without_a_server_an_offset_is_unknown_and_not_absent(fragile: Any) -> None:
    """Promise 8: a store that is away never looks like "no offset"."""
    store = fragile.store()
    fragile.lose()
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.load(A)
    with pytest.raises(StoreUnavailable):
        store.create(A, 0)
    assert time.monotonic() - started < 2 * (3.0 + 1.0) + 1.0
    assert within(SECONDS, lambda: not store.available)


def test_a_commit_waits_for_the_server_to_come_back(fragile: Any) -> None:
    """Promise 15: with ZooKeeper away the commit is delayed, and then done."""
    store = fragile.store()
    store.create(A, 5)
    fragile.lose()
    assert within(SECONDS, lambda: not store.available)
    future: Future[None] = store.commit({A: 9})
    assert not future.done()
    fragile.find()
    future.result(SECONDS)
    assert store.available
    assert fragile.store().load(A) == StoredOffset(9, "shop-1", "shop-1")


def test_close_fails_the_commit_that_waits(fragile: Any) -> None:
    store = fragile.store()
    store.create(A, 5)
    fragile.lose()
    assert within(SECONDS, lambda: not store.available)
    future: Future[None] = store.commit({A: 9})
    started = time.monotonic()
    store.close()
    assert time.monotonic() - started < 5.0
    with pytest.raises(StoreUnavailable):
        future.result(1.0)
    store.close()
    fragile.find()


def test_a_closed_store_answers_nothing(world: World) -> None:
    store = world.store()
    store.create(A, 5)
    store.close()
    for ask in (lambda: store.load(A), lambda: store.create(A, 1)):
        with pytest.raises(StoreUnavailable, match="not open"):
            ask()
    with pytest.raises(StoreUnavailable, match="not open"):
        store.commit({A: 6}).result(SECONDS)
    assert not isinstance(store, ZooKeeperStore) or not store.available


@pytest.mark.integration
@pytest.mark.parametrize("fragile", ["zookeeper"], indirect=True)
def test_a_frozen_server_delays_a_commit_and_fences_nobody(fragile: Any) -> None:
    """Promise 15, and a write of unknown outcome is read back before it is repeated."""
    store = fragile.store()
    store.create(A, 5)
    fragile.server.freeze()
    future = store.commit({A: 9})
    assert within(SECONDS, lambda: not store.available)
    fragile.server.thaw()
    future.result(SECONDS)
    store.commit({A: 10}).result(SECONDS)
    assert fragile.get(A)["offset"] == 10


class Proxy:
    """Passes bytes on to a server; `lose_replies` drops its answers, then the connection."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.lose_replies = False
        self.lost = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.target))
            threading.Thread(target=self.copy, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self.copy, args=(far, near, True), daemon=True).start()

    def copy(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if replies and self.lose_replies:
                    self.lose_replies = False
                    self.lost.set()
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self.listener.close()


@pytest.mark.integration
def test_a_reply_lost_on_the_way_from_a_real_server_counts_as_done(
    zookeeper: EmbeddedZooKeeper,
) -> None:
    """Promise 9: ConnectionLoss after the server has written is neither failure nor fence."""
    proxy = Proxy(zookeeper.port)
    root = f"/t-{uuid.uuid4().hex[:12]}"
    store = ZooKeeperStore(
        f"127.0.0.1:{proxy.port}", root=root, pipeline="shop", topology_id="shop-1"
    )
    store.open()
    try:
        store.create(A, 5)
        for offset in (8, 9, 10):
            proxy.lost.clear()
            proxy.lose_replies = True
            store.commit({A: offset}).result(SECONDS)
            assert proxy.lost.is_set()
        proxy.lose_replies = True
        store.create(B, 1)
        assert store.load(A) == StoredOffset(10, "shop-1", "shop-1")
        assert store.load(B) == StoredOffset(1, "shop-1", "shop-1")
    finally:
        store.close()
        proxy.close()


@pytest.mark.integration
def test_a_store_opens_again_after_it_could_not(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    server.open()
    server.kill()
    store = ZooKeeperStore(
        server.address, pipeline="shop", topology_id="shop-1", timeout_seconds=1.0
    )
    try:
        with pytest.raises(StoreUnavailable):
            store.open()
        server.open()
        assert within(SECONDS, lambda: opens(store))
        assert store.load(A) is None
        store.close()
        store.open()
        assert store.load(A) is None
    finally:
        store.close()
        server.close()


def opens(store: ZooKeeperStore) -> bool:
    try:
        store.open()
    except StoreUnavailable:
        return False
    return True


@pytest.mark.integration
def test_a_server_that_is_not_there_is_named_within_the_deadline() -> None:
    store = ZooKeeperStore(
        "127.0.0.1:1", pipeline="shop", topology_id="shop-1", timeout_seconds=0.5
    )
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        store.open()
    assert time.monotonic() - started < 5.0


@pytest.mark.integration
def test_credentials_never_reach_the_log(
    zookeeper: EmbeddedZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    store = ZooKeeperStore(
        zookeeper.address,
        root=f"/t-{uuid.uuid4().hex[:12]}",
        pipeline="shop",
        topology_id="shop-1",
        kazoo_options={"auth_data": [("digest", "svc:S3cretPw")]},
    )
    caplog.set_level(1)
    for name in ("kazoo", "kazoo.client", "kazoo.protocol.connection"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    store.open()
    logging.getLogger("kazoo.headrace").setLevel(1)
    try:
        store.create(A, 5)
        store.commit({A: 6}).result(SECONDS)
    finally:
        store.close()
    assert "S3cretPw" not in caplog.text
    assert not [r for r in caplog.records if r.name.startswith("kazoo") and r.levelno < 30]
