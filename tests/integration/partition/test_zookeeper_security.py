import json
import logging
import time
import traceback
import uuid

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, Permissions

from partition.errors import StoreError, StoreUnavailable
from partition.interfaces import Progress
from partition.records import Partition, Position
from service.config.connections import ZooKeeperConfig
from tests.support.patience import Limit, seconds, slack
from tests.support.places import Folder
from tests.support.secured_servers import PASSWORD, USER

pytestmark = pytest.mark.integration

A = Partition("orders", 0)
B = Partition("orders", 1)
C = Partition("returns", 0)
SECONDS = seconds(20.0)


@pytest.fixture
def place(secured, zookeeper, request):
    """The server's address for the scheme of this test, and the scheme's keys."""
    scheme = request.param
    server = secured if scheme == "sasl" else zookeeper
    return server.address, {"auth": scheme, "username": USER, "password": PASSWORD}


both = pytest.mark.parametrize("place", ["digest", "sasl"], indirect=True)


@pytest.fixture
def client():
    clients = []

    def client(address, **options):
        clients.append(KazooClient(address, timeout=5.0, **options))
        clients[-1].start(timeout=SECONDS)
        return clients[-1]

    yield client
    for each in clients:
        each.stop()
        each.close()


def nodes(root):
    topic = f"{root}/shop/orders"
    return [root, f"{root}/shop", topic, f"{topic}/partition_0"]


def identity(address, keys):
    return ZooKeeperConfig(hosts=address, **keys).security().kazoo_options()


@both
def test_every_node_of_the_store_is_its_creators_only(place, connect, client, root):
    address, keys = place
    store = connect(address, **keys)
    store.begin(A, Position(5)).result(SECONDS)
    assert store.commit({A: Progress(Position(6))}).result(SECONDS) == {}
    owner, stranger = client(address, **identity(address, keys)), client(address)
    for path in nodes(root):
        ((entry,), _) = owner.get_acls(path)
        assert entry.perms == Permissions.ALL
        assert entry.id.scheme == keys["auth"]
        assert entry.id.id.split(":")[0] == USER
        for forbidden in (
            lambda path=path: stranger.get(path),
            lambda path=path: stranger.get_children(path),
            lambda path=path: stranger.set(path, b"{}"),
            lambda path=path: stranger.create(f"{path}/more"),
            lambda path=path: stranger.set_acls(path, OPEN_ACL_UNSAFE),
        ):
            with pytest.raises(NoAuthError):
                forbidden()
    for path in reversed(nodes(root)[1:]):
        with pytest.raises(NoAuthError):
            stranger.delete(path)
    assert json.loads(owner.get(nodes(root)[-1])[0])["offset"] == 6


def test_open_nodes_are_open_though_the_client_has_signed_in(zookeeper, connect, client, root):
    keys = {"auth": "digest", "username": USER, "password": PASSWORD, "acl": "open"}
    connect(zookeeper.address, **keys).begin(A, Position(5)).result(SECONDS)
    stranger = client(zookeeper.address)
    for path in nodes(root):
        assert stranger.get_acls(path)[0] == OPEN_ACL_UNSAFE


@pytest.mark.parametrize(
    "others", [{}, {"auth": "digest", "username": USER, "password": "of-somebody-else"}]
)
def test_unreadable_offset_is_an_error_and_not_absent(others, zookeeper, connect, root):
    """Promise 8: what may not be read never looks like "no offset"."""
    keys = {"auth": "digest", "username": USER, "password": PASSWORD}
    owner = connect(zookeeper.address, **keys)
    owner.begin(A, Position(5)).result(SECONDS)
    stranger = connect(zookeeper.address, **others)
    asks = (
        lambda: stranger.load(A),
        lambda: stranger.claim(A).result(SECONDS),
        lambda: stranger.claim(B).result(SECONDS),  # never begun, but who can tell
        lambda: stranger.begin(A, Position(0)).result(SECONDS),
        lambda: stranger.begin(B, Position(0)).result(SECONDS),
        lambda: stranger.begin(C, Position(0)).result(SECONDS),
    )
    for ask in asks:
        started = time.monotonic()
        with pytest.raises(StoreError, match="NoAuth") as caught:
            ask()
        assert not isinstance(caught.value, StoreUnavailable)
        assert root in str(caught.value)
        assert time.monotonic() - started < SECONDS / 2
    assert owner.load(A).offset == 5


@pytest.mark.parametrize("wrong", [{"password": "of-somebody-else"}, {"username": "nobody"}])
def test_rejected_credentials_are_an_error_at_once(wrong, secured, connect):
    """Promise 8: credentials that are refused never look like "no offset"."""
    keys = {"auth": "sasl", "username": USER, "password": PASSWORD, **wrong}
    started = time.monotonic()
    with pytest.raises(StoreError, match="refuses the credentials") as caught:
        connect(secured.address, **keys)
    assert time.monotonic() - started < slack(3.0)
    assert not isinstance(caught.value, StoreUnavailable)
    assert secured.address in str(caught.value)
    assert keys["password"] not in str(caught.value)


def test_credentials_that_are_refused_later_end_every_wait(secured, connect):
    """Promise 8: also after a reconnection nothing waits for ever, or finds no offset."""
    store = connect(secured.address, auth="sasl", username=USER, password=PASSWORD)
    store.begin(A, Position(5)).result(SECONDS)
    kazoo = store._worker.connection.client
    kazoo._connection.sasl_options["password"] = "changed-meanwhile"  # noqa: S105
    kazoo._connection._socket.shutdown(2)
    deadline = Limit(SECONDS)
    while kazoo.connected and not deadline.passed:
        time.sleep(0.01)
    with pytest.raises(StoreError, match="refuses the credentials"):
        store.commit({A: Progress(Position(6))}).result(SECONDS)
    with pytest.raises(StoreError, match="refuses the credentials"):
        store.load(A)
    assert not store.available


@both
def test_chroot_is_created_with_the_same_rights(place, connect, client, root):
    address, keys = place
    chroot = f"/tenant-{uuid.uuid4().hex[:12]}"
    store = connect(f"{address}{chroot}", **keys)
    assert store.load(A) is None
    store.begin(A, Position(5)).result(SECONDS)
    assert store.load(A).offset == 5
    owner, stranger = client(address, **identity(address, keys)), client(address)
    assert owner.exists(root) is None
    for path in (chroot, *(f"{chroot}{path}" for path in nodes(root))):
        ((entry,), _) = owner.get_acls(path)
        assert (entry.perms, entry.id.scheme) == (Permissions.ALL, keys["auth"])
        with pytest.raises(NoAuthError):
            stranger.get(path)


def test_a_chroot_below_a_node_that_is_missing_is_a_clear_error(zookeeper, connect):
    store = connect(f"{zookeeper.address}/missing-{uuid.uuid4().hex}/below")
    with pytest.raises(StoreError, match="chroot"):
        store.begin(A, Position(5)).result(SECONDS)


def test_secrets_are_printed_by_nobody(secured, zookeeper, connect, caplog, capfd):
    said = []
    for name in ("", "kazoo", "kazoo.client", "kazoo.headrace", "kazoo.protocol.connection"):
        caplog.set_level(1, logger=name)
    wrong = PASSWORD + "-wrong"
    for address, scheme in ((zookeeper.address, "digest"), (secured.address, "sasl")):
        for password in (PASSWORD, wrong):
            try:
                keys = {"auth": scheme, "username": USER, "password": password}
                store = connect(address, **keys)
                logging.getLogger("kazoo.headrace").setLevel(1)
                said.append(repr(store))
                store.begin(A, Position(5)).result(SECONDS)
                store.load(A)
            except StoreError as error:
                said.append("".join(traceback.format_exception(error)))
    assert len(said) == 5  # two opened well; a wrong digest opens and is refused; SASL does not
    printed = "".join([*said, caplog.text, *capfd.readouterr()])
    assert "refuses" in printed
    assert PASSWORD not in printed


def test_check_tells_refused_credentials_and_not_the_password(secured, tmp_path):
    wrong = "canary-of-somebody-else"
    place = Folder(tmp_path, "numbers", "127.0.0.1:1", secured.address)
    place.configure('[logs]\nlevel = "debug"\n')
    signed_in = {"AUTH": "sasl", "USERNAME": USER, "PASSWORD": wrong}
    place.environment |= {f"HEADRACE_ZOOKEEPER__{k}": v for k, v in signed_in.items()}
    ended = place.headrace("check", "flow:topology", "--json", HEADRACE_DEBUG="1")
    checks = {each["name"]: each for each in ended.facts["checks"]}
    assert not checks["zookeeper"]["ok"]
    assert "refuses the credentials" in checks["zookeeper"]["detail"]
    assert wrong not in ended.out + ended.err
