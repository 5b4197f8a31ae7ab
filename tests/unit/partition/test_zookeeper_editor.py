"""How an operator's change of one node ends: by others' changes, lost replies, ended sessions."""

import logging

import pytest
from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL

from partition.errors import StoreCorrupt, StoreUnavailable
from partition.offsets.requests import (
    NodeChanged,
    NodeExists,
    Pause,
    ReplyLost,
    SessionEnded,
    Write,
)
from partition.zookeeper.zookeeper_client import KazooLog, ZooKeeperSecurity
from partition.zookeeper.zookeeper_store import ZooKeeperStore, changing
from tests.support.faulty_store import FaultyNodes

PATH = "/headrace/shop/@control"


def appended(data):
    """Add a letter, whatever stands there."""
    return (data or b"") + b"x"


def once(data):
    """Add a letter, unless it is there."""
    return data if data and b"x" in data else appended(data)


def run(steps, nodes, before=None):
    """Carry out requests; `before` is told of each one first, and may change nodes or raise."""
    request = next(steps)
    try:
        while True:
            try:
                if before is not None:
                    before(request)
                reply = nodes.answer(request)
            except (NodeExists, NodeChanged, ReplyLost, SessionEnded) as error:
                request = steps.throw(error)
            except StoreUnavailable as error:
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as stop:
        return stop.value


def test_a_node_that_is_not_there_is_made_with_its_parents():
    nodes = FaultyNodes()
    assert run(changing(PATH, appended), nodes) == b"x"
    assert nodes.nodes[PATH][:2] == (b"x", 0)
    assert run(changing(PATH, appended), nodes) == b"xx"
    assert nodes.nodes[PATH][:2] == (b"xx", 1)


def test_what_stands_there_as_it_is_wanted_is_not_written():
    nodes = FaultyNodes()
    run(changing(PATH, once), nodes)
    assert run(changing(PATH, once), nodes) == b"x"
    assert nodes.writes == 1


def test_a_lost_reply_is_read_back_and_the_change_is_made_once():
    nodes = FaultyNodes()
    nodes.lose_replies = 1
    assert run(changing(PATH, once), nodes) == b"x"
    assert nodes.nodes[PATH][:2] == (b"x", 0)
    assert nodes.writes == 1


def test_a_change_that_never_arrived_is_made_again():
    nodes = FaultyNodes()
    asked = []

    def before(request):
        asked.append(type(request))
        if isinstance(request, Write) and asked.count(Write) == 1:
            raise SessionEnded

    assert run(changing(PATH, once), nodes, before) == b"x"
    assert asked.count(Write) == 2
    assert asked.count(Pause) == 1


def test_lost_reply_error_says_the_change_may_be_made():
    nodes = FaultyNodes()
    nodes.lose_replies = 1
    written = []

    def before(request):
        if written and not isinstance(request, Pause):
            raise StoreUnavailable("in time", "no connection")
        written.extend([request] if isinstance(request, Write) else [])

    with pytest.raises(StoreUnavailable, match=r"@control: no connection; .*may have been made"):
        run(changing(PATH, once), nodes, before)


def test_an_absence_before_anything_was_sent_is_only_that():
    def before(_request):
        raise StoreUnavailable("in time", "no connection")

    with pytest.raises(StoreUnavailable) as caught:
        run(changing(PATH, once), FaultyNodes(), before)
    assert "may have been" not in str(caught.value)


def test_what_cannot_be_read_is_left_as_it_is():
    nodes = FaultyNodes()
    nodes.put(PATH, b"?")

    def refuses(_data):
        raise StoreCorrupt(PATH, "no JSON")

    with pytest.raises(StoreCorrupt):
        run(changing(PATH, refuses), nodes)
    assert nodes.nodes[PATH][:2] == (b"?", 0)


def test_a_node_that_others_change_all_the_while_is_given_up():
    nodes = FaultyNodes()
    nodes.put(PATH, b"a")
    with pytest.raises(StoreUnavailable, match="others were quicker"):
        run(changing(PATH, appended), nodes, lambda _: nodes.put(PATH, b"b"))


def test_an_editor_that_is_not_open_says_so():
    editor = ZooKeeperStore("127.0.0.1:1")
    with pytest.raises(StoreUnavailable, match="not open"):
        editor.change(PATH, once)
    editor.close()


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


def test_kazoo_log_keeps_the_newest_warning(caplog):
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
