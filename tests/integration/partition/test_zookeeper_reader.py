"""Reading nodes that are not ours from a real ZooKeeper."""

import time
import uuid

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from partition.errors import StoreError, StoreUnavailable
from partition.records import Partition
from partition.storm_offsets import read_offsets
from partition.zookeeper.reader import ZooKeeperReader
from service.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.patience import seconds, slack

pytestmark = pytest.mark.integration


@pytest.fixture
def path():
    return f"/storm-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def writer(zookeeper):
    client = KazooClient(zookeeper.address)
    client.start(timeout=seconds(30))
    yield client
    client.stop()
    client.close()


@pytest.fixture
def reader(zookeeper):
    made = ZooKeeperReader(zookeeper.address)
    made.open()
    made.open()  # changes nothing
    yield made
    made.close()
    made.close()


def test_it_tells_data_versions_names_and_what_is_not_there(reader, writer, path):
    writer.create(f"{path}/größe 1:9092/b", b"1", makepath=True)
    writer.set(f"{path}/größe 1:9092/b", b"2")
    assert reader.children(path) == ["größe 1:9092"]
    assert reader.get(f"{path}/größe 1:9092/b") == (b"2", 1)
    assert reader.children(f"{path}/größe 1:9092/b") == []
    assert reader.get(f"{path}/x") is None
    assert reader.children(f"{path}/x") is None
    assert path[1:] in (reader.children("") or [])


def test_a_chroot_is_where_paths_begin(zookeeper, writer, path):
    writer.create(f"{path}/s/partition_0", b'{"topology": {"id": "w"}, "offset": 0}', makepath=True)
    reader = ZooKeeperReader(f"{zookeeper.address}{path}")
    reader.open()
    try:
        found = read_offsets(reader, "core", "/s", ["t"])
    finally:
        reader.close()
    assert found[Partition("t", 0)].path == "/s/partition_0"


def test_a_node_it_may_not_read_is_an_error_and_not_absent(reader, writer, path):
    """Storm 8: whatever keeps a node from being read never looks like no offset."""
    writer.create(path, b"1", acl=[make_digest_acl("storm", "secret", all=True)])
    with pytest.raises(StoreError, match="NoAuthError") as caught:
        reader.get(path)
    assert not isinstance(caught.value, StoreUnavailable)


def test_a_server_that_is_away_or_a_reader_that_is_closed_is_no_answer():
    """Storm 8: no answer is an error, in bounded time."""
    reader = ZooKeeperReader("127.0.0.1:1", timeout_seconds=0.5)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        reader.open()
    assert time.monotonic() - started < slack(5)
    with pytest.raises(StoreUnavailable, match="not open"):
        reader.get("/x")


def test_a_server_that_goes_away_while_it_is_read_is_no_answer(tmp_path):
    """Storm 8: no answer is an error, in bounded time."""
    server = EmbeddedZooKeeper(tmp_path)
    server.open()
    reader = ZooKeeperReader(server.address, timeout_seconds=1.0)
    try:
        reader.open()
        assert reader.get("/zookeeper") is not None
        server.close()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            reader.children("/zookeeper")
        assert time.monotonic() - started < slack(5)
    finally:
        reader.close()
        server.close()
