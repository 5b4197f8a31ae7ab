import threading
import time
import uuid

import pytest

from partition.errors import StoreUnavailable
from partition.records import Partition
from partition.storm_offsets import read_offsets
from partition.zookeeper.zookeeper_store import ZooKeeperStore
from tests.support.network import Relay
from tests.support.patience import seconds, slack
from tests.support.places import nodes_of

pytestmark = pytest.mark.integration


@pytest.fixture
def path():
    return f"/t-{uuid.uuid4().hex[:12]}/shop/@control"


@pytest.fixture
def client(zookeeper):
    with nodes_of(zookeeper) as client:
        yield client


@pytest.fixture
def editor_of():
    opened = []

    def make(hosts, **options):
        editor = ZooKeeperStore(hosts, **{"timeout_seconds": 10.0, **options})
        opened.append(editor)
        editor.open()
        editor.open()  # changes nothing
        return editor

    yield make
    for editor in opened:
        editor.close()
        editor.close()


def appended(data):
    return (data or b"") + b"x"


def test_it_reads_makes_and_sets(zookeeper, editor_of, client, path):
    editor = editor_of(zookeeper.address)
    parent = path.rpartition("/")[0]
    assert (editor.get(path), editor.children(parent)) == (None, None)
    assert editor.change(path, appended) == b"x"
    assert editor.change(path, appended) == b"xx"
    assert client.get(path)[0] == b"xx"
    client.create(f"{parent}/b", b"")
    assert sorted(editor.children(parent)) == ["@control", "b"]
    assert editor.children(path) == []
    assert parent.split("/")[1] in editor.children("")
    first, second = editor.get(path), editor.get(f"{parent}/b")
    assert (first.data, second.data) == (b"xx", b"")
    assert first.created < second.created


def test_of_many_who_change_a_node_none_loses_a_change(zookeeper, editor_of, client, path):
    def change(editor):
        for _ in range(20):
            editor.change(path, appended)

    editors = [editor_of(zookeeper.address) for _ in range(4)]
    threads = [threading.Thread(target=change, args=(editor,)) for editor in editors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds(60))
    assert client.get(path)[0] == b"x" * 80


def test_a_reply_lost_on_the_way_counts_as_done(zookeeper, editor_of, client, path):
    """Faults F5: the reply is lost; the node is read back, and the change stands there once."""
    proxy = Relay(zookeeper.port)
    try:
        editor = editor_of(proxy.address)
        editor.change(path, lambda _: b"1")

        def change(data):
            if data == b"1":
                proxy.lose_replies = True  # the next one answers the write
            return b"2"

        assert editor.change(path, change) == b"2"
        assert proxy.lost.is_set()
        assert client.get(path)[1].version == 1
    finally:
        proxy.close()


def test_paths_of_storm_begin_at_a_chroot(zookeeper, editor_of, client):
    root = f"/storm-{uuid.uuid4().hex[:8]}"
    client.create(
        f"{root}/größe 1/partition_0", b'{"topology": {"id": "w"}, "offset": 0}', makepath=True
    )
    tree = editor_of(f"{zookeeper.address}{root}")
    assert tree.children("/") == ["größe 1"]
    found = read_offsets(tree, "core", "/größe 1", ["t"])
    assert found[Partition("t", 0)].path == "/größe 1/partition_0"


def test_a_server_that_is_away_is_no_answer_in_bounded_time(zookeeper, editor_of, path):
    """Storm 8: no answer is an error, in bounded time."""
    started = time.monotonic()
    proxy = Relay(zookeeper.port)
    try:
        editor = editor_of(proxy.address, timeout_seconds=1.0)
        proxy.hears.clear()
        for what in (
            lambda: editor.change(path, appended),
            lambda: editor.get(path),
            lambda: editor.children(path),
        ):
            with pytest.raises(StoreUnavailable):
                what()
        assert time.monotonic() - started < slack(20)
    finally:
        proxy.close()
