"""A ZooKeeper with users and TLS, and an authority that signs certificates."""

import gc
import uuid
from typing import Any

import pytest

from partition.offsets.holdings import NodeNames
from partition.zookeeper.zookeeper_store import ZooKeeperStore
from service.config.connections import ZooKeeperConfig
from tests.support.patience import seconds
from tests.support.secured_servers import Authority, GuardedZooKeeper
from tests.support.servers import opened


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority(
        tmp_path_factory.mktemp("authority"),
        server="IP:127.0.0.1,DNS:localhost",
        elsewhere="DNS:zookeeper.example",
        client="DNS:client.example",
    )


@pytest.fixture(scope="session")
def another(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("another"))


@pytest.fixture(scope="session")
def secured(authority, tmp_path_factory):
    with opened(GuardedZooKeeper(tmp_path_factory.mktemp("secured"), authority)) as server:
        yield server


@pytest.fixture(scope="session")
def impostor(authority, tmp_path_factory):
    """Its certificate is signed by our authority, and made out to another host."""
    folder = tmp_path_factory.mktemp("impostor")
    with opened(GuardedZooKeeper(folder, authority, "elsewhere")) as server:
        yield server


@pytest.fixture
def root():
    return f"/t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def connect(root):
    """`connect(address, **keys)` opens a store by the keys of `[zookeeper]`."""
    stores = []

    def connect(address: str, *, patience: float = 20.0, **keys: Any) -> ZooKeeperStore:
        config = ZooKeeperConfig(hosts=address, root=root, **keys)
        store = ZooKeeperStore(
            config.hosts,
            NodeNames(config.root, "shop", "shop-1"),
            session_timeout_seconds=4.0,
            timeout_seconds=seconds(patience),
            kazoo_options=config.security().kazoo_options(),
        )
        stores.append(store)
        store.open()
        return store

    yield connect
    for store in stores:
        store.close()
    gc.collect()  # the sockets of handshakes that failed
