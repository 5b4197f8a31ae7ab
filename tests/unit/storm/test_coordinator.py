"""Ways in which Storm's transactions lost, mixed or repeated batches.

The entries are numbered as in docs/storm.md.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.chunk import Partition
from partition.position import Position
from partition.store import StoredOffset
from partition.transaction import OpenTransaction, Range, Transactions
from transactions.coordinator import Attempt, Coordinator, Phase
from transactions.resume import resumed


def commit(coordinator):
    """Everything of the lowest open transaction is done, up to its commit."""
    lowest = coordinator.active[0].attempt
    coordinator.recorded(lowest)
    coordinator.processed(lowest)
    taken = coordinator.next_commit()
    assert taken.attempt == lowest
    assert coordinator.done(lowest)
    return taken.covers


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=40))
def test_whenever_there_is_room_again_transactions_go_on_without_a_hole(max_active, steps):
    """Storm 39: their txids and their ranges follow one another, in whatever order room comes."""
    coordinator = Coordinator[tuple[int, int]](max_active=max_active)
    end, begun, committed = 0, [], []
    for begins in steps:
        if begins and coordinator.may_begin:
            begun.append(coordinator.begin((end, end + 10)).txid)
            end += 10
        elif coordinator.active:
            committed.append(commit(coordinator))
    assert begun == list(range(1, len(begun) + 1))
    assert committed == [(10 * i, 10 * (i + 1)) for i in range(len(committed))]


@pytest.mark.parametrize("phase", [Phase.PLANNED, Phase.PROCESSING, Phase.PROCESSED])
def test_a_late_failure_of_an_old_attempt_leaves_the_live_one_alone(phase):
    """Storm 40: attempts are compared before anything is forgotten."""
    coordinator = Coordinator[str](max_active=2)
    old = coordinator.begin("a")
    [live] = coordinator.fail(old)
    if phase is not Phase.PLANNED:
        coordinator.recorded(live)
    if phase is Phase.PROCESSED:
        coordinator.processed(live)
    assert coordinator.fail(old) == ()
    assert [(each.attempt, each.phase) for each in coordinator.active] == [(live, phase)]
    assert commit(coordinator) == "a"


@pytest.mark.parametrize("num_open", [1, 2, 3])
def test_attempts_grow_over_restarts_for_every_open_transaction(num_open):
    """Storm 41: the last one's too; and a word about a stale attempt has an answer."""
    recorded = [(Attempt(txid, 1), "r") for txid in range(1, num_open + 1)]
    for restart in range(1, 4):
        coordinator = Coordinator[str](max_active=num_open, recorded=recorded)
        now = [each.attempt for each in coordinator.active]
        assert [attempt.number for attempt in now] == [1 + restart] * num_open
        for stale, _covers in recorded:
            assert not coordinator.recorded(stale)
            assert coordinator.fail(stale) == ()
        assert [each.attempt for each in coordinator.active] == now
        recorded = [(attempt, "r") for attempt in now]


def test_transactions_of_one_number_are_told_apart_by_line_and_attempt():
    """Storm 43: what one line hears of its txid changes no other's, nor another attempt."""
    orders, flights = Coordinator[str](max_active=1), Coordinator[str](max_active=1)
    first, other = orders.begin("orders"), flights.begin("flights")
    assert first == other
    [again] = orders.fail(first)
    assert orders.recorded(again)
    assert not orders.processed(other)
    assert flights.recorded(other)
    assert [flights.active[0].covers, orders.active[0].covers] == ["flights", "orders"]
    assert flights.active[0].phase is orders.active[0].phase is Phase.PROCESSING


def test_nothing_is_committed_before_all_of_it_is_processed():
    """Storm 44: nor is it done before a commit was asked for."""
    coordinator = Coordinator[str](max_active=1)
    attempt = coordinator.begin("r")
    for step in (coordinator.recorded, coordinator.processed):
        assert coordinator.next_commit() is None
        assert not coordinator.done(attempt)
        assert step(attempt)
    assert coordinator.committed == 0
    assert not coordinator.done(attempt)
    coordinator.next_commit()
    assert coordinator.done(attempt)


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize("has", [6, 7, 8])
def test_a_crash_between_the_sinks_commit_and_our_record_of_it_commits_nothing_twice(kind, has):
    """Storm 45: the sink's own txid says what it has."""
    ranges = [Range(10 * i, 10 * (i + 1), 10, "0" * 32) for i in range(2)]
    open_ = tuple(OpenTransaction(7 + i, 1, each) for i, each in enumerate(ranges))
    stored = StoredOffset(Position(0), "t", transactions=Transactions(kind, 6, open_))
    again = resumed(Partition("t", 0), stored, {"sink": has}, kind)
    assert again.transactions.committed == has
    assert again.position.offset == 10 * (has - 6)
    assert all(each.txid > has for each in again.transactions.open)
    coordinator = Coordinator[Range](
        max_active=3,
        committed=again.transactions.committed,
        recorded=[
            (Attempt(each.txid, each.attempt), each.range) for each in again.transactions.open
        ],
        attempts=again.attempts,
    )
    while coordinator.active:
        assert commit(coordinator).first == 10 * (coordinator.committed - 7)
    assert coordinator.begin(Range(20, 30, 10, "0" * 32)).txid == coordinator.committed + 1
