"""The offset store's generators, driven request by request: every reply may be lost or late."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from partition.errors import Fenced, OwnershipLost
from partition.interfaces import Progress
from partition.offsets.offset_store import MAX_REQUEST_BYTES, OffsetStore
from partition.offsets.ownership import NodeNames
from partition.offsets.requests import (
    NodeChanged,
    NodeExists,
    ReplyLost,
    SessionEnded,
    Write,
    size_of,
)
from partition.records import Partition, Position
from tests.support.faulty_store import FaultyNodes
from tests.support.zookeeper import opened_transactions, plan

A = Partition("orders", 0)
B = Partition("orders", 1)
NAMES = NodeNames("/headrace", "shop", "shop-1")
numbers = itertools.count()


class Unsent(OffsetStore):
    """A store that returns the generators of requests in place of futures."""

    available = True
    session = 0

    def _submit(self, steps: Any, *, claims: Partition | None = None) -> Any:
        return steps

    def load(self, partition: Partition) -> Any:
        return self._load(partition)

    open = close = lambda self: None


class Call:
    """One generator under way; the test says what becomes of each request."""

    def __init__(self, server: FaultyNodes, steps: Any) -> None:
        self.server = server
        self.steps = steps
        self.result: Any = None
        self.done = False
        self.request = self.go(None)

    def go(self, answer: Any) -> Any:
        try:
            if isinstance(answer, Exception):
                self.request = self.steps.throw(answer)
            else:
                self.request = self.steps.send(answer)
        except StopIteration as stop:
            self.result, self.done, self.request = stop.value, True, None
        return self.request

    def carry_out(self, request: Any = None) -> Any:
        try:
            return self.server.answer(request or self.request)
        except (NodeExists, NodeChanged, ReplyLost) as error:
            return error

    def to_the_write(self) -> Write:
        while not isinstance(self.request, Write):
            self.go(self.carry_out())
        return self.request

    def finish(self) -> Any:
        while not self.done:
            self.go(self.carry_out())
        return self.result


@pytest.fixture
def server() -> FaultyNodes:
    return FaultyNodes()


def process() -> Unsent:
    return Unsent(NAMES, f"process-{next(numbers)}")


def run(server: FaultyNodes, steps: Any) -> Any:
    return Call(server, steps).finish()


def owner(server: FaultyNodes, *partitions: Partition) -> Unsent:
    nodes = process()
    for partition in partitions:
        run(server, nodes.begin(partition, Position(5)))
    return nodes


def offset(server: FaultyNodes, partition: Partition) -> int:
    return run(server, process().load(partition)).offset


def progress(server: FaultyNodes, partition: Partition) -> Progress:
    stored = run(server, process().load(partition))
    return Progress(stored.position, stored.transactions)


def test_a_write_that_is_done_late_is_done_once(server: FaultyNodes) -> None:
    """Promise 9: "may be done yet" is answered by the version: one of the two is refused."""
    nodes = owner(server, A)
    call = Call(server, nodes.commit({A: Progress(Position(6))}))
    late = call.to_the_write()
    call.go(ReplyLost())
    again = call.to_the_write()  # it was not there on reading back
    assert again == late
    call.carry_out(late)
    assert call.finish() == {}
    assert run(server, nodes.commit({A: Progress(Position(7))})) == {}
    assert isinstance(call.carry_out(late), NodeChanged)
    assert offset(server, A) == 7


def test_commit_is_cut_into_requests_of_at_most_512_kib(server: FaultyNodes) -> None:
    """Faults Z14."""
    nodes = Unsent(NodeNames("/headrace", "shop", "shop-1", "n" * 5_000), "process-large")
    partitions = [Partition("orders", number) for number in range(300)]
    for partition in partitions:
        run(server, nodes.begin(partition, Position(5)))
    call = Call(server, nodes.commit(dict.fromkeys(partitions, Progress(Position(6)))))
    sizes = []
    while not call.done:
        if isinstance(call.request, Write):
            sizes.append(sum(map(size_of, call.request.operations)))
        call.go(call.carry_out())
    assert call.result == {}
    assert max(sizes) <= MAX_REQUEST_BYTES == 512 * 1024
    assert len(sizes) == math.ceil(sum(sizes) / MAX_REQUEST_BYTES)
    assert {offset(server, partition) for partition in partitions} == {6}


def test_claim_ends_with_its_session(server: FaultyNodes) -> None:
    """Promise 9: in the next session the partition may be another's, by a later plan."""
    owner(server, A)
    nodes = process()
    call = Call(server, nodes.claim(A))
    call.to_the_write()
    before = dict(server.nodes)
    nodes.session_ended()
    with pytest.raises(OwnershipLost):
        call.go(SessionEnded())
    assert server.nodes == before


def test_what_is_left_of_a_commit_is_not_sent_in_a_later_session(server: FaultyNodes) -> None:
    """Promise 9: a commit of several writes, the first of which the session took with it."""
    partitions = [Partition("orders", number) for number in range(501)]
    nodes = owner(server, *partitions)
    before = dict(server.nodes)
    call = Call(server, nodes.commit(dict.fromkeys(partitions, Progress(Position(6)))))
    call.to_the_write()
    nodes.session_ended()
    call.go(SessionEnded())
    assert call.done
    assert set(call.result) == set(partitions)
    assert server.nodes == before


def test_claim_stays_interrupted_after_its_session_ended(server: FaultyNodes) -> None:
    nodes, other = owner(server, A), process()
    nodes.session_ended()
    run(server, other.claim(A))
    run(server, other.commit({A: Progress(Position(9))}))
    call = Call(server, nodes.claim(A))
    call.carry_out(call.to_the_write())  # it lands, and the session ends before the reply
    nodes.session_ended()
    with pytest.raises(OwnershipLost):
        call.go(SessionEnded())
    claim = run(server, nodes.claim(A))
    assert (claim.uninterrupted, claim.stored.offset) == (False, 9)


@pytest.mark.parametrize("landed", [True, False])
def test_a_plan_whose_reply_is_lost_is_read_back(server: FaultyNodes, landed: bool) -> None:
    """Promise 9: it is found by its writer, or sent again as it was.

    Storm 42: before the answer nothing of it is emitted, and a crash here leaves it whole.
    """
    nodes = owner(server, A, B)
    call = Call(server, nodes.commit({A: plan(5, 9), B: plan(5, 7)}))
    write = call.to_the_write()
    if landed:
        call.carry_out(write)
    call.go(ReplyLost())
    assert call.finish() == {}
    assert (progress(server, A), progress(server, B)) == (plan(5, 9), plan(5, 7))
    assert run(server, nodes.commit({A: plan(5, 9, 12)})) == {}
    assert progress(server, A) == plan(5, 9, 12)


def test_plan_that_skips_offsets_is_not_sent(server: FaultyNodes) -> None:
    """Promise 14: nobody could read it back; those beside it are not stored either."""
    nodes = owner(server, A, B)
    before = dict(server.nodes)
    for wrong in (
        Progress(Position(6), opened_transactions(5, 9)),
        Progress(Position(5), opened_transactions(6, 9)),
    ):
        with pytest.raises(ValueError, match="it was to begin at"):
            run(server, nodes.commit({B: Progress(Position(7)), A: wrong}))
        with pytest.raises(ValueError, match="it was to begin at"):
            run(server, nodes.move(A, wrong.position, "a test", wrong.transactions))
        with pytest.raises(ValueError, match="it was to begin at"):
            run(server, nodes.begin(Partition("new", 0), wrong.position, 1, wrong.transactions))
    assert server.nodes == before
    assert run(server, nodes.commit({A: plan(5, 9), B: Progress(Position(7))})) == {}


def dropped(logs: Any) -> list[tuple[str, list[int]]]:
    return [
        (log["partition"], log["txids"]) for log in logs if log["event"] == "transactions_dropped"
    ]


def test_dropped_transactions_are_logged_once(
    server: FaultyNodes,
) -> None:
    nodes, successor = owner(server, A, B), process()
    run(server, nodes.commit({A: plan(5, 9, 12, committed=41), B: plan(5, 9)}))
    run(server, successor.claim(A))
    run(server, successor.claim(B))
    run(server, successor.commit({A: plan(5, 9, 12, committed=41)}))
    with capture_logs() as logs:
        call = Call(server, successor.commit({A: Progress(Position(5)), B: plan(9, committed=1)}))
        call.carry_out(call.to_the_write())
        assert dropped(logs) == []
        call.go(ReplyLost())
        assert call.finish() == {}
        assert run(server, successor.commit({A: Progress(Position(6))})) == {}
        assert isinstance(run(server, nodes.commit({B: Progress(Position(7))}))[B], Fenced)
    assert dropped(logs) == [("orders[0]", [42, 43])]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, [42, 43]),
        (opened_transactions(20, committed=41), [42, 43]),
        (opened_transactions(20, committed=42), [43]),
        (opened_transactions(20, committed=43), []),
        (opened_transactions(20, 25, committed=41), [43]),
    ],
)
def test_a_move_tells_which_transactions_it_dropped(
    server: FaultyNodes, given: Any, told: list[int]
) -> None:
    nodes = owner(server, A)
    run(server, nodes.commit({A: plan(5, 9, 12, committed=41)}))
    with capture_logs() as logs:
        run(server, nodes.move(A, Position(20), "a test", given))
    assert dropped(logs) == ([("orders[0]", told)] if told else [])
    assert progress(server, A) == Progress(Position(20), given)


@given(st.data())
def test_replicas_that_claim_and_commit_over_a_bad_network(data: st.DataObject) -> None:
    """Promise 9: epochs only grow. Promise 2: offsets never fall.

    Promise 14: what is open goes on from the offset that was stored with it.
    """
    server = FaultyNodes()
    replicas = [owner(server, A), process(), process()]
    calls: list[tuple[int, str, Call]] = []
    late: list[Write] = []
    seen = (0, 0)
    for step in range(data.draw(st.integers(1, 40))):
        which = data.draw(st.integers(0, 2))
        mine = [each for each in calls if each[0] == which]
        if not mine:
            replica = replicas[which]
            if data.draw(st.booleans()):
                calls.append((which, "claim", Call(server, replica.claim(A))))
            else:
                asked = {A: plan(step, step + which + 1, committed=step)}
                calls.append((which, "commit", Call(server, replica.commit(asked))))
        else:
            call = mine[0][2]
            fate = data.draw(st.sampled_from(["answer", "answer", "lost", "late", "expired"]))
            try:
                if fate == "expired":
                    replicas[which].session_ended()
                    late.clear()  # whatever was under way in it
                    call.go(SessionEnded())
                elif fate == "answer" or not isinstance(call.request, Write):
                    call.go(call.carry_out())
                else:
                    if fate == "lost":
                        call.carry_out()
                    else:
                        late.append(call.request)
                    call.go(ReplyLost())
            except (Fenced, OwnershipLost):
                call.done = True
        if late and data.draw(st.booleans()):
            Call.carry_out(calls[0][2] if calls else Call(server, process().load(A)), late.pop())
        calls = [each for each in calls if not each[2].done]
        stored = run(server, process().load(A))
        assert (stored.epoch, stored.offset) >= seen
        assert stored.offset >= seen[1]
        open_now = stored.transactions  # None: nobody has committed yet
        assert open_now is None or (open_now.committed, open_now.first) == (stored.offset,) * 2
        seen = (stored.epoch, stored.offset)
