import time

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from partition.errors import StoreUnavailable
from partition.records import Partition, Position
from tests.support.patience import seconds, slack
from tests.support.secured_servers import PASSWORD, USER

# kazoo does not close the socket of a handshake that failed; the collector does.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

A = Partition("orders", 0)
SECONDS = seconds(20.0)
PATIENCE_SECONDS = 0.5


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_of_our_authority_under_its_own_name_is_trusted(host, secured, authority, connect):
    signed_in = {"auth": "sasl", "username": USER, "password": PASSWORD}
    store = connect(
        f"{host}:{secured.tls_port}", tls=True, tls_ca=authority.certificate, **signed_in
    )
    store.begin(A, Position(5)).result(SECONDS)
    assert store.load(A).offset == 5


def refused(connect, address, reason, **keys):
    """The store says in bounded time why there is no connection."""
    patience = seconds(PATIENCE_SECONDS)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match=reason) as caught:
        connect(address, patience=patience, **keys)
    assert time.monotonic() - started < 2 * patience + slack(5.0)  # to connect, then to close
    assert address in str(caught.value)


def test_a_certificate_for_another_host_is_refused(impostor, authority, connect):
    refused(
        connect, impostor.tls_address, "IP address mismatch", tls=True, tls_ca=authority.certificate
    )


def test_a_certificate_of_another_authority_is_refused(secured, authority, another, connect):
    refused(connect, secured.tls_address, "certificate", tls=True, tls_ca=another.certificate)
    refused(connect, secured.tls_address, "certificate", tls=True)  # the system's own


def test_the_port_for_tls_takes_no_plain_connection(secured, connect):
    refused(connect, secured.tls_address, "connection broken")
    client = KazooClient(secured.tls_address, timeout=PATIENCE_SECONDS)
    with pytest.raises(KazooTimeoutError):
        client.start(timeout=PATIENCE_SECONDS)
    client.close()


def test_a_clients_own_certificate_makes_the_nodes_its_own(secured, authority, connect):
    certificate, key = authority.pem("client")
    keys = {"tls": True, "tls_ca": authority.certificate, "acl": "creator"}
    store = connect(secured.tls_address, tls_cert=certificate, tls_key=key, **keys)
    store.begin(A, Position(5)).result(SECONDS)
    path = f"{store._names.root}/shop/orders/partition_0"
    ((entry,), _) = store._worker.connection.client.get_acls(path)
    assert (entry.id.scheme, entry.id.id) == ("x509", "CN=client")
