"""What a client of ZooKeeper shows, asks for, and keeps to itself."""

import logging

import pytest
from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL

from partition.zookeeper.zookeeper_client import KazooLog, ZooKeeperSecurity

CANARY = "canary-91e0"
DIGEST = ZooKeeperSecurity("digest", "orders", CANARY, "creator")
SASL = ZooKeeperSecurity("sasl", "orders", CANARY, "creator")


def test_digest_is_shown_as_name_and_password():
    assert DIGEST.kazoo_options() == {
        "auth_data": [("digest", f"orders:{CANARY}")],
        "default_acl": CREATOR_ALL_ACL,
    }


def test_with_tls_certificates_and_host_names_are_always_checked(tmp_path):
    assert ZooKeeperSecurity(tls=True).kazoo_options() == {
        "use_ssl": True,
        "verify_certs": True,
        "check_hostname": True,
    }
    files = ZooKeeperSecurity(
        tls=True, ca=tmp_path / "ca", certificate=tmp_path / "cert", key=tmp_path / "key"
    ).kazoo_options()
    assert files["ca"] == str(tmp_path / "ca")
    assert (files["certfile"], files["keyfile"]) == (str(tmp_path / "cert"), str(tmp_path / "key"))


@pytest.mark.parametrize("security", [DIGEST, SASL, ZooKeeperSecurity(tls=True)])
def test_kazoo_takes_the_options(security):
    KazooClient("one:2181", **security.kazoo_options())


@pytest.mark.parametrize("security", [DIGEST, SASL])
def test_the_password_is_not_in_the_repr(security):
    assert CANARY not in repr(security)
    assert CANARY not in f"{security}"


def test_the_log_keeps_the_newest_warning_and_drops_what_is_below(caplog):
    log = KazooLog()
    for name in ("kazoo", "kazoo.headrace"):
        caplog.set_level(1, logger=name)  # as an operator who wants to see everything
    log.debug("Sending request: %s", CANARY)
    log.log(5, "session password %s", CANARY)
    log.info("established")
    assert (log.last, caplog.records) == ("", [])
    log.warning("Connection dropped: %s", "certificate verify failed")
    log.warning("Transition to CONNECTING")
    assert log.last == "Connection dropped: certificate verify failed"
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
