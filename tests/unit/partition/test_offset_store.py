"""The offset store's generators, driven request by request: every reply may be lost or late."""

import itertools
import logging
import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.errors import Fenced, OwnershipLost, StoreError, StoreUnavailable
from partition.interfaces import Progress
from partition.offsets.holdings import NodeNames
from partition.offsets.offset_store import MAX_REQUEST_BYTES, OffsetStore
from partition.offsets.requests import (
    NodeChanged,
    NodeExists,
    Pause,
    Read,
    ReplyLost,
    Run,
    SessionEnded,
    Write,
    run_all,
    size_of,
)
from partition.records import Partition, Position
from partition.zookeeper.zookeeper_client import KazooLog, ZooKeeperSecurity
from partition.zookeeper.zookeeper_store import changing
from tests.support.faulty_store import FaultyNodes, carry_out
from tests.support.zookeeper import plan

A = Partition("orders", 0)
numbers = itertools.count()


class Unsent(OffsetStore):
    """A store that returns the generators of requests in place of futures."""

    available = True
    session = 0

    def _submit(self, steps, *, claims=None):
        return steps

    def load(self, partition):
        return self._load(partition)

    open = close = lambda self: None


def process():
    return Unsent(NodeNames("/headrace", "shop", "shop-1"), f"process-{next(numbers)}")


def answer(server, request):
    """The reply, or the error in place of one."""
    try:
        return server.answer(request)
    except (NodeExists, NodeChanged, ReplyLost) as error:
        return error


def test_commit_is_cut_into_requests_of_at_most_512_kib():
    """Faults Z14."""
    server, sizes = FaultyNodes(), []
    nodes = Unsent(NodeNames("/headrace", "shop", "shop-1", "n" * 5_000), "process-large")
    partitions = [Partition("orders", number) for number in range(300)]
    for partition in partitions:
        carry_out(nodes.begin(partition, Position(5)), server.answer)

    def sized(request):
        if isinstance(request, Write):
            sizes.append(sum(map(size_of, request.operations)))
        return server.answer(request)

    commit = nodes.commit(dict.fromkeys(partitions, Progress(Position(6))))
    assert carry_out(commit, sized) == {}
    assert max(sizes) <= MAX_REQUEST_BYTES == 512 * 1024
    assert len(sizes) == math.ceil(sum(sizes) / MAX_REQUEST_BYTES)
    loaded = [carry_out(process().load(each), server.answer) for each in partitions]
    assert {each.offset for each in loaded} == {6}


@given(st.data())
def test_replicas_that_claim_and_commit_over_a_bad_network(data):
    """Promise 9: epochs only grow. Promise 2: offsets never fall.

    Promise 14: what is open goes on from the offset that was stored with it.
    """
    server = FaultyNodes()
    replicas = [process(), process(), process()]
    carry_out(replicas[0].begin(A, Position(5)), server.answer)
    runs = {}  # by replica
    late = []
    seen = (0, 0)
    for step in range(data.draw(st.integers(1, 40))):
        which = data.draw(st.integers(0, 2))
        replica, run = replicas[which], runs.get(which)
        if run is None:
            asked = {A: plan(step, step + which + 1, committed=step)}
            claims = data.draw(st.booleans())
            runs[which] = Run(replica.claim(A) if claims else replica.commit(asked))
            runs[which].start()
        else:
            fate = data.draw(st.sampled_from(["answer", "answer", "lost", "late", "expired"]))
            if fate == "expired":
                replica.session_ended()
                late.clear()  # whatever was under way in it
                run.take(SessionEnded())
            elif fate == "answer" or not isinstance(run.request, Write):
                run.take(answer(server, run.request))
            else:
                if fate == "lost":
                    answer(server, run.request)
                else:
                    late.append(run.request)
                run.take(ReplyLost())
        if late and data.draw(st.booleans()):
            answer(server, late.pop())
        for ended in [each for each, run in runs.items() if run.request is None]:
            error = runs.pop(ended).future.exception(0)
            assert error is None or isinstance(error, Fenced | OwnershipLost)
        stored = carry_out(process().load(A), server.answer)
        assert (stored.epoch, stored.offset) >= seen
        assert stored.offset >= seen[1]
        open_now = stored.transactions  # None: nobody has committed yet
        assert open_now is None or (open_now.committed, open_now.first) == (stored.offset,) * 2
        seen = (stored.epoch, stored.offset)


def test_claim_stays_interrupted_after_its_session_ended():
    """Promise 9: our own claim, landed in a session that ended, is not taken for "nobody came"."""
    server, nodes, other = FaultyNodes(), process(), process()
    carry_out(nodes.begin(A, Position(5)), server.answer)
    nodes.session_ended()
    carry_out(other.claim(A), server.answer)
    carry_out(other.commit({A: Progress(Position(9))}), server.answer)

    def lands(request):
        reply = server.answer(request)
        if isinstance(request, Write):
            nodes.session_ended()
            raise SessionEnded
        return reply

    with pytest.raises(OwnershipLost):
        carry_out(nodes.claim(A), lands)
    claim = carry_out(nodes.claim(A), server.answer)
    assert (claim.uninterrupted, claim.stored.offset) == (False, 9)


def asks(*paths):
    """Read paths; the errors are among the replies."""
    replies = []
    for path in paths:
        try:
            replies.append((yield Read(path)))
        except (ReplyLost, SessionEnded, StoreError) as error:
            replies.append(type(error))
    return replies


def carried_out(runs, replies=None, ended=()):
    """Run all on a server that gives these replies; what it has heard and said."""
    log, ends = [], iter(ended)

    def reply(path):
        log.append(f"replied {path}")
        found = (replies or {}).get(path)
        if isinstance(found, Exception):
            raise found
        return found

    def send(request):
        log.append(f"sent {request.path}")
        return partial(reply, request.path)

    run_all(runs, send, lambda: next(ends, False))
    return log


def test_all_are_sent_before_the_first_reply_is_waited_for():
    runs = [Run(asks("a", "b")), Run(asks("c"))]
    log = carried_out(runs)
    assert log == ["sent a", "sent c", "replied a", "replied c", "sent b", "replied b"]
    assert [run.future.result(0) for run in runs] == [[None, None], [None]]


def test_ended_session_is_reported_except_for_final_errors():
    runs = [Run(asks(path, "next")) for path in ("done", "lost", "refused")]
    carried_out(runs, {"lost": ReplyLost(), "refused": StoreError("no")}, ended=(False, True))
    found = [SessionEnded, SessionEnded, StoreError]
    assert [run.future.result(0) for run in runs] == [[each, None] for each in found]


def test_what_was_cancelled_is_not_begun_and_an_error_is_its_own():
    def fails():
        yield Read("x")
        raise StoreError("of one")

    cancelled, failed, fine = Run(asks("a")), Run(fails()), Run(asks("b"))
    cancelled.future.cancel()
    assert "sent a" not in carried_out([cancelled, failed, fine])
    with pytest.raises(StoreError, match="of one"):
        failed.future.result(0)
    assert fine.future.result(0) == [None]


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


@pytest.fixture
def nodes():
    return FaultyNodes()


def test_a_node_that_is_not_there_is_made_with_its_parents(nodes):
    assert run(changing(PATH, appended), nodes) == b"x"
    assert nodes.nodes[PATH][:2] == (b"x", 0)
    assert run(changing(PATH, appended), nodes) == b"xx"
    assert nodes.nodes[PATH][:2] == (b"xx", 1)


@pytest.mark.parametrize("lose_replies", [0, 1])
def test_a_change_is_made_once_though_it_is_asked_for_again_or_its_reply_is_lost(
    nodes, lose_replies
):
    nodes.lose_replies = lose_replies
    for _ in range(2):
        assert run(changing(PATH, once), nodes) == b"x"
        assert nodes.nodes[PATH][:2] == (b"x", 0)
    assert nodes.writes == 1


def test_a_change_that_never_arrived_is_made_again(nodes):
    asked = []

    def before(request):
        asked.append(type(request))
        if isinstance(request, Write) and asked.count(Write) == 1:
            raise SessionEnded

    assert run(changing(PATH, once), nodes, before) == b"x"
    assert asked.count(Write) == 2
    assert asked.count(Pause) == 1


@pytest.mark.parametrize("is_sent", [True, False])
def test_absence_says_whether_the_change_may_have_been_made(nodes, is_sent):
    nodes.lose_replies = 1
    written = [] if is_sent else ["nothing"]

    def before(request):
        if written and not isinstance(request, Pause):
            raise StoreUnavailable("in time", "no connection")
        written.extend([request] if isinstance(request, Write) else [])

    with pytest.raises(StoreUnavailable, match="no connection") as caught:
        run(changing(PATH, once), nodes, before)
    assert ("may have been made" in str(caught.value)) is is_sent


def test_a_node_that_others_change_all_the_while_is_given_up(nodes):
    nodes.put(PATH, b"a")
    with pytest.raises(StoreUnavailable, match="others were quicker"):
        run(changing(PATH, appended), nodes, lambda _: nodes.put(PATH, b"b"))


CANARY = "canary-91e0"


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


@pytest.mark.parametrize("scheme", ["digest", "sasl"])
def test_the_password_is_not_in_the_repr(scheme):
    security = ZooKeeperSecurity(scheme, "orders", CANARY, "creator")
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
