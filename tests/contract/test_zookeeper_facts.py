"""What ZooKeeper and kazoo do, on a real server: the facts that the offset store rests on.

A version of either that does otherwise fails here, and what rests on it can be looked at.
"""

import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol.states import KazooState

from service.devservers.servers import EmbeddedZooKeeper
from tests.support.network import Relay
from tests.support.patience import until
from tests.support.zookeeper import SECONDS, expire

pytestmark = pytest.mark.integration

Connect = Callable[..., KazooClient]


@pytest.fixture
def proxy(zookeeper: EmbeddedZooKeeper) -> Iterator[Relay]:
    made = Relay(zookeeper.port)
    yield made
    made.close()


@pytest.fixture
def connect(zookeeper: EmbeddedZooKeeper) -> Iterator[Connect]:
    """`connect(address, timeout)` starts a client of kazoo's."""
    clients = []

    def connect(address: str = zookeeper.address, timeout: float = 8.0) -> KazooClient:
        client = KazooClient(address, timeout=timeout)
        clients.append(client)
        client.start(SECONDS)
        return client

    yield connect
    for client in clients:
        client.stop()
        client.close()


@pytest.fixture
def path(connect: Connect) -> str:
    path = f"/t-{uuid.uuid4().hex[:12]}"
    connect().create(path, b"first")
    return path


def test_an_ephemeral_owner_made_anew_passes_a_zombies_check(
    zookeeper: EmbeddedZooKeeper, connect: Connect, path: str
) -> None:
    """Faults F2: `check` sees the data's version only, and that begins at 0 again."""
    first, second, zombie = connect(), connect(), connect()
    first.create(f"{path}-owner", b"first", ephemeral=True)
    seen = zombie.exists(f"{path}-owner").version
    expire(first, zookeeper)
    until(
        "the first owner is gone",
        lambda: zombie.exists(f"{path}-owner") is None,
        SECONDS,
    )
    second.create(f"{path}-owner", b"second", ephemeral=True)
    transaction = zombie.transaction()
    transaction.check(f"{path}-owner", seen)
    transaction.set_data(path, b"the zombie's")
    assert transaction.commit()[0] is True
    assert zombie.get(path)[0] == b"the zombie's"


def test_a_check_for_a_name_drawn_once_stops_the_zombie(connect: Connect, path: str) -> None:
    """Faults F2: what our nodes do instead; the name dies with the node above it."""
    client = connect()
    client.create(f"{path}/incarnation-one")
    version = client.exists(path).version
    with pytest.raises(NotEmptyError):
        client.delete(path)
    client.delete(path, recursive=True)
    client.create(path, b"anew")
    assert client.exists(path).version == version
    transaction = client.transaction()
    transaction.set_data(path, b"the zombie's", version)
    transaction.check(f"{path}/incarnation-one", -1)
    errors = transaction.commit()
    assert [type(error) for error in errors] == [RolledBackError, NoNodeError]
    assert client.get(path)[0] == b"anew"


def test_a_transaction_that_fails_raises_nothing(connect: Connect, path: str) -> None:
    """Faults F3: the errors stand among the results, the reason not always first."""
    client = connect()
    transaction = client.transaction()
    transaction.check(path, 7)
    transaction.set_data(path, b"second")
    errors = transaction.commit()
    assert [type(error) for error in errors] == [BadVersionError, RuntimeInconsistency]
    transaction = client.transaction()
    transaction.set_data(path, b"second")
    transaction.check(path, 7)
    errors = transaction.commit()
    assert [type(error) for error in errors] == [RolledBackError, BadVersionError]
    assert client.get(path)[0] == b"first"


def test_a_session_is_known_to_be_lost_only_at_the_next_connection(
    connect: Connect, proxy: Relay
) -> None:
    """Faults F6: nothing tells that the session is over, before the next connection.

    Faults F7: without answers it is SUSPENDED after some two thirds of the time-out.
    """
    client, observer = connect(proxy.address, timeout=4.0), connect()
    owner = client.create(f"/t-{uuid.uuid4().hex[:12]}", ephemeral=True)
    states: list[tuple[str, float]] = []
    client.add_listener(lambda state: states.append((state, time.monotonic())))
    deaf_since = time.monotonic()
    proxy.hears.clear()
    until("len(states) == 1", lambda: len(states) == 1, SECONDS)
    assert states[0][0] == KazooState.SUSPENDED
    assert 1.0 < states[0][1] - deaf_since < 4.0
    until(
        "the session is over", lambda: observer.exists(owner) is None, SECONDS
    )  # the session is over
    assert [state for state, _ in states] == [KazooState.SUSPENDED]
    proxy.hears.set()
    until("len(states) == 3", lambda: len(states) == 3, SECONDS)
    assert [state for state, _ in states[1:]] == [KazooState.LOST, KazooState.CONNECTED]


def test_no_request_is_taken_over_into_the_next_session(
    zookeeper: EmbeddedZooKeeper, connect: Connect, path: str
) -> None:
    """What is asked before LOST has been heard fails: the store's lock rests on that."""
    client = connect()
    asked = []

    def ask(state: str) -> None:
        if state in {KazooState.SUSPENDED, KazooState.LOST}:
            asked.append((state, client.set_async(path, b"late")))

    client.add_listener(ask)
    expire(client, zookeeper)
    until(
        "both have asked",
        lambda: client.connected and len(asked) == 2,
        SECONDS,
    )
    client.remove_listener(ask)
    for _state, answer in asked:
        with pytest.raises(SessionExpiredError):
            answer.get(timeout=SECONDS)
    assert client.get(path)[0] == b"first"
