"""The offset store on a real ZooKeeper: lost replies, ended sessions, chroots, Storm's copy."""

import json
import socket
import threading
import time
import uuid

import pytest
from structlog.testing import capture_logs

from partition.errors import OwnershipLost, StoreError, StoreHostsUnknown, StoreUnavailable
from partition.interfaces import Claimed, Progress, StoredOffset
from partition.offsets.holdings import NodeNames
from partition.records import Position
from partition.zookeeper.zookeeper_store import ZooKeeperStore
from service.devservers.servers import EmbeddedZooKeeper
from tests.acceptance import processes
from tests.support.network import Relay
from tests.support.patience import seconds, slack, until
from tests.support.zookeeper import (
    SECONDS,
    A,
    B,
    ZooKeeperWorld,
    begin,
    claim,
    commit,
    commit_plans,
    expire,
    kazoo_of,
    node,
    plan,
    renew_session,
)

pytestmark = pytest.mark.integration

NAMES = NodeNames("/headrace", "shop", "shop-1")


@pytest.fixture
def world(zookeeper):
    made = ZooKeeperWorld(zookeeper)
    yield made
    made.close()


@pytest.fixture
def proxy(zookeeper):
    made = Relay(zookeeper.port)
    yield made
    made.close()


def test_a_reply_lost_on_the_way_counts_as_done(world, proxy):
    """Promise 9: ConnectionLoss after the server has written is neither failure nor fence.

    Faults F5: the reply is lost. Faults Z12: reading back finds our own write.
    """
    store = world.store(hosts=proxy.address)
    proxy.lose_replies = True
    begin(store, A, 5)
    for offset in (8, 9, 10):
        proxy.lost.clear()
        proxy.lose_replies = True
        assert commit(store, {A: offset}) == {}
        assert proxy.lost.is_set()
    proxy.lose_replies = True
    assert claim(store, A).stored == StoredOffset(Position(10), "shop-1", "shop-1", 2)
    proxy.lose_replies = True
    store.move(A, Position(3), "a test").result(SECONDS)
    assert world.store().load(A) == StoredOffset(Position(3), "shop-1", "shop-1", 2)


def test_a_write_is_not_replayed_in_a_new_session(world, proxy):
    """Promise 9: a commit under way when the session ends is refused.

    Faults F4: no retry of kazoo's repeats it. Faults Z05: and no ownership outlives it.
    """
    store = world.store(hosts=proxy.address)
    begin(store, A, 5)
    before = world.raw(A)
    proxy.hears.clear()
    under_way, queued = (
        store.commit({A: Progress(Position(9))}),
        store.commit({A: Progress(Position(10))}),
    )
    client = kazoo_of(store)
    ended = client.client_id[0]
    with capture_logs() as logs:
        expire(client, world.server)
        proxy.hears.set()
        for future in (under_way, queued):
            assert isinstance(future.result(SECONDS)[A], OwnershipLost)
        until("store.available", lambda: store.available, SECONDS)
    assert client.client_id[0] != ended
    assert world.raw(A) == before
    assert [log["event"] for log in logs].count("zookeeper_session_ended") == 1
    assert claim(store, A) == Claimed(
        StoredOffset(Position(5), "shop-1", "shop-1", 2), topic_begun=True, uninterrupted=True
    )
    assert commit(store, {A: 9}) == {}


def test_repeated_claim_goes_on_in_the_next_session(world, proxy):
    store = world.store(hosts=proxy.address)
    begin(store, A, 5)
    proxy.hears.clear()
    future, first = store.claim(A, again=True), store.claim(B)
    expire(kazoo_of(store), world.server)
    proxy.hears.set()
    claimed = future.result(SECONDS)
    assert claimed.uninterrupted
    with pytest.raises(OwnershipLost):
        first.result(SECONDS)
    assert commit(store, {A: 6}) == {}
    assert node(world, A)["headrace"]["epoch"] == claimed.stored.epoch


def test_a_session_that_ends_while_nothing_is_asked_is_noticed(world):
    """Faults Z05: every ownership is dropped, also when no request was under way."""
    store = world.store()
    begin(store, A, 5)
    renew_session(store, world.server)
    assert isinstance(commit(store, {A: 6})[A], OwnershipLost)
    assert node(world, A)["offset"] == 5


def test_a_frozen_server_delays_a_commit_and_fences_nobody(tmp_path):
    """Promise 15: a write of unknown outcome is read back before it is repeated."""
    server = EmbeddedZooKeeper(tmp_path)
    server.open()
    world = ZooKeeperWorld(server)
    try:
        store = world.store(session_timeout_seconds=2.0)
        begin(store, A, 5)
        processes.freeze(server.pid)
        future = store.commit({A: Progress(Position(9))})
        until("not store.available", lambda: not store.available, SECONDS)
        processes.thaw(server.pid)
        refused = future.result(SECONDS)  # whether the session outlives it is the server's choice
        assert all(isinstance(error, OwnershipLost) for error in refused.values())
        assert claim(store, A).uninterrupted
        assert commit(store, {A: 10}) == {}
        assert node(world, A)["offset"] == 10
    finally:
        world.close()
        server.close()


def test_a_store_opens_again_after_it_could_not(tmp_path):
    """Faults Z01: a server that is down at the start is waited for, in bounded time."""
    server = EmbeddedZooKeeper(tmp_path)
    server.open()
    server.kill()
    store = ZooKeeperStore(server.address, NAMES, timeout_seconds=1.0)
    try:
        with pytest.raises(StoreUnavailable):
            store.open()
        server.open()
        until("opens(store)", lambda: opens(store), SECONDS)
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


def test_a_server_that_is_not_there_is_named_within_the_deadline():
    store = ZooKeeperStore("127.0.0.1:1", NAMES, timeout_seconds=0.5)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        store.open()
    assert time.monotonic() - started < slack(5.0)


def test_hosts_without_any_address_are_named_as_wrong():
    store = ZooKeeperStore("no-host.invalid:2181", NAMES, timeout_seconds=0.2)
    with pytest.raises(StoreHostsUnknown, match=r"found 'no-host\.invalid:2181': 'no-host\.inv"):
        store.open()


@pytest.mark.parametrize(
    ("answers", "is_wrong"),
    [
        ({"a": socket.EAI_NONAME, "b": socket.EAI_NODATA}, True),
        ({"a": socket.EAI_NONAME, "b": socket.EAI_AGAIN}, False),  # no DNS server answers
        ({"a": socket.EAI_FAIL}, False),
        ({"a": socket.EAI_NONAME, "b": 0}, False),
        ({"a": None}, False),  # never answers
    ],
)
def test_hosts_are_wrong_only_if_the_look_up_says_so(answers, *, is_wrong, monkeypatch):
    done = threading.Event()

    def look_up(host: str, *_: object) -> list[object]:
        code = answers[host]
        if code is None:
            done.wait(seconds(60))
        if code:
            raise socket.gaierror(code, "no address")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    store = ZooKeeperStore(",".join(answers), NAMES, timeout_seconds=0.2)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable) as raised:
        store.open()
    done.set()
    assert isinstance(raised.value, StoreHostsUnknown) is is_wrong
    assert time.monotonic() - started < slack(5.0)


def test_a_chroot_is_made_if_it_is_missing(world):
    chroot = f"/tenant-{uuid.uuid4().hex[:12]}"
    hosts = f"{world.server.address},{world.server.address}{chroot}"
    store = world.store(hosts=hosts)
    assert store.load(A) is None
    begin(store, A, 5)
    assert commit(store, {A: 6}) == {}
    assert json.loads(world.client.get(chroot + world.path(A))[0])["offset"] == 6
    assert world.client.exists(world.root) is None
    assert claim(world.store(hosts=hosts), A).stored.offset == 6


def test_storm_kafka_finds_its_json_at_zk_root_and_id(world):
    """The way back to Storm: zkRoot and id lead a core spout to the committed offset."""
    store = world.store()
    begin(store, A, 5)
    assert commit(store, {A: 7}) == {}
    zk_root, spout_id = f"{world.root}/shop", "orders"
    found = json.loads(world.client.get(f"{zk_root}/{spout_id}/partition_{A.number}")[0])
    found.pop("headrace")  # storm-kafka ignores other fields
    assert found == {
        "topology": {"id": "shop-1", "name": "shop-1"},
        "offset": 7,
        "partition": A.number,
        "broker": {"host": "", "port": 0},
        "topic": "orders",
    }
    assert commit_plans(store, {A: plan(8, 12)}) == {}
    found = json.loads(world.client.get(f"{zk_root}/{spout_id}/partition_{A.number}")[0])
    assert found["offset"] == 8  # the first record that is missing in a sink


def test_what_is_larger_than_a_request_may_be_is_not_sent(world):
    """Faults Z14: ZooKeeper would end the connection without a word, each time again."""
    store = world.store()
    begin(store, A, 0)
    name = "n" * 1_100_000
    large = world.store(topology_name=name)
    began = time.monotonic()
    with pytest.raises(
        StoreError, match=r"1100\d+ bytes, most for .*/partition_1, is not.*jute\.maxbuffer"
    ):
        large.begin(B, Position(0)).result(SECONDS)
    assert time.monotonic() - began < SECONDS
    assert large.available
    assert commit(store, {A: 5}) == {}
