import logging

import pytest

from partition.errors import StoreUnavailable
from partition.offsets.requests import Pause, SessionEnded, Write
from partition.zookeeper.zookeeper_client import KazooLog, ZooKeeperSecurity
from partition.zookeeper.zookeeper_store import changing
from tests.support.faulty_store import FaultyNodes, carry_out

PATH = "/headrace/shop/@control"


def appended(data):
    """Add a letter, whatever stands there."""
    return (data or b"") + b"x"


def once(data):
    """Add a letter, unless it is there."""
    return data if data and b"x" in data else appended(data)


def run(steps, nodes, before=lambda _request: None):
    """Carry out requests; `before` is told of each one first, and may change nodes or raise."""

    def answer(request):
        before(request)
        return nodes.answer(request)

    return carry_out(steps, answer)


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


@pytest.mark.parametrize("is_sent", [True, False])
def test_absence_says_whether_the_change_may_have_been_made(is_sent):
    nodes = FaultyNodes()
    nodes.lose_replies = 1
    written = [] if is_sent else ["nothing"]

    def before(request):
        if written and not isinstance(request, Pause):
            raise StoreUnavailable("in time", "no connection")
        written.extend([request] if isinstance(request, Write) else [])

    with pytest.raises(StoreUnavailable, match="no connection") as caught:
        run(changing(PATH, once), nodes, before)
    assert ("may have been made" in str(caught.value)) is is_sent


def test_a_node_that_others_change_all_the_while_is_given_up():
    nodes = FaultyNodes()
    nodes.put(PATH, b"a")
    with pytest.raises(StoreUnavailable, match="others were quicker"):
        run(changing(PATH, appended), nodes, lambda _: nodes.put(PATH, b"b"))


CANARY = "canary-91e0"
DIGEST = ZooKeeperSecurity("digest", "orders", CANARY, "creator")
SASL = ZooKeeperSecurity("sasl", "orders", CANARY, "creator")


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
