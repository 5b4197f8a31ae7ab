import pytest

from partition.records import OpenTransaction, Partition, Position, Range, Resumed, Transactions
from tests.support.transactions import resume, store
from transactions.groups import GroupMember, TransactionGroups
from transactions.transaction import OutOfOrder, TransactionPolicy

ORDERS = Partition("orders", 3)
DIGEST, OTHER = "ab" * 16, "cd" * 16
SEALED = (
    OpenTransaction(5, 2, Range(100, 110, 8, DIGEST, 7)),
    OpenTransaction(6, 1, Range(110, 130)),
)


def new_line(*opened, committed=0, kind="transactional", position=100, max_active=2, **resumed):
    transactions = Transactions(kind, committed, opened)
    goes_on = Resumed(Position(position, 6, "id"), transactions, **resumed)
    return resume(ORDERS, goes_on, policy(kind, max_active))


def policy(kind="transactional", max_active=2):
    return TransactionPolicy(kind, max_active=max_active, by_executors=True)


def group(line, txid):
    """Let a group have it."""
    TransactionGroups(1).plan([GroupMember(0, line, txid)])


def told(transaction):
    return transaction.txid, transaction.attempt, transaction.range


def begin(line, end):
    """Plan a range, give it to a group, and store it; its txid."""
    planned = line.begin(end)
    group(line, planned.txid)
    store(line)
    return planned.txid


def read(line, txid, count=8, digest=DIGEST, leader_epoch=7):
    attempt = line.transaction_of(txid).attempt
    return line.read(txid, attempt, count, digest, leader_epoch)


def standing(line):
    return [(each.txid, each.attempt, each.range) for each in line.to_store().open]


def test_planned_range_has_no_share():
    line = new_line()
    txid = begin(line, 1300)
    with pytest.raises(ValueError, match=r"orders\[3\] transaction 1 is not sealed"):
        GroupMember(0, line, txid).share(7, 0)


def test_open_ranges_are_limited_and_not_empty():
    line = new_line()
    with pytest.raises(ValueError, match="offsets 100 to 100 are none"):
        line.begin(100)
    line.begin(101)
    line.begin(102)
    assert not line.may_begin
    with pytest.raises(OutOfOrder, match="2 transactions of"):
        line.begin(103)


def test_range_begins_at_the_end_of_the_one_before():
    line = new_line()
    begin(line, 140)
    begin(line, 150)
    assert line.position_of(1) == Position(100, 6, "id")
    assert line.position_of(2) == Position(140, None, "id")
    read(line, 1, leader_epoch=9)
    assert line.position_of(2) == Position(140, 9, "id")
    store(line)
    line.take(1)
    line.done(1)
    assert line.position_of(2) == Position(140, 9, "id")
    read(line, 2, 0, leader_epoch=None)
    store(line)
    line.take(2)
    line.done(2)
    begin(line, 160)
    assert line.position_of(3) == Position(150, 9, "id"), "a range of gaps tells no other epoch"
    with pytest.raises(KeyError):
        line.position_of(2)


def test_stale_attempt_changes_nothing():
    """Promise 14: an attempt older than the live one changes nothing.

    Storm 40 and 43: attempts are compared, and each partition numbers its own transactions.
    """
    line = new_line()
    begin(line, 110)
    line.fail(1)
    assert not line.is_recorded(1)
    assert not line.read(1, 2, 8, DIGEST, 7), "it runs though it is not recorded"
    store(line)
    assert not line.read(1, 1, 8, DIGEST, 7)
    assert not line.read(2, 1, 8, DIGEST, 7)
    assert standing(line) == [(1, 2, Range(100, 110))]
    assert line.read(1, 2, 8, DIGEST, 7)
    assert not line.read(1, 2, 9, OTHER, 7)
    assert line.replay_error(log_moved=False) is None


def test_opaque_range_that_no_sink_has_is_sealed_anew():
    """Storm's opaque batches: what comes again may be another one until a sink has it."""
    line = new_line(kind="opaque")
    begin(line, 110)
    begin(line, 120)
    read(line, 1)
    read(line, 2)
    store(line)
    line.take(1)
    line.fail(2)
    assert standing(line)[1] == (2, 2, Range(110, 120, leader_epoch=7))
    store(line)
    assert read(line, 2, 7, OTHER, 8)
    assert line.replay_error(log_moved=False) is None
    sealed = Range(110, 120, 7, OTHER, 8)
    assert standing(line)[1] == (2, 2, sealed)
    assert (line.is_due, line.is_ready(2)) == (True, False), "the new seal is not stored"
    store(line)
    line.take(2)


@pytest.mark.parametrize("failing", [1, 2])
def test_nothing_fails_during_an_unknown_outcome(failing):
    line = new_line(max_active=3)
    for end in (110, 120, 130):
        read(line, begin(line, end))
    store(line)
    line.take(1)
    line.take(2)
    before = standing(line)
    with pytest.raises(OutOfOrder, match=f"from {failing} on is being committed"):
        line.fail(failing)
    assert standing(line) == before
    line.fail(3)
    assert [attempt for _txid, attempt, _range in standing(line)] == [1, 1, 2], "those after may"
    line.not_done(1)
    line.fail(1)
    assert [attempt for _txid, attempt, _range in standing(line)] == [2, 2, 3]


def test_stored_transactions_with_a_hole_are_rejected():
    """Promise 14."""
    with pytest.raises(ValueError, match="txid 5 where 1 was to come"):
        new_line(SEALED[0])


def test_attempts_begin_at_the_least_allowed():
    line = new_line(committed=4, attempts={5: 3}, least_attempt=7)
    assert (line.begin(110).attempt, line.begin(120).attempt) == (7, 7)
    assert new_line(SEALED[0], committed=4, least_attempt=9).transaction_of(5).attempt == 9


def test_planned_range_may_be_planned_anew():
    line = new_line(OpenTransaction(5, 2, Range(100, 110)), SEALED[1], committed=4)
    assert line.replay_error(log_moved=True) is None
    anew = line.resume_state(Position(105, 7, "id"))
    again = resume(ORDERS, anew, policy())
    assert told(again.begin(115)) == (5, 4, Range(105, 115))
    assert again.begin(116).attempt == 3
    assert again.to_store().checked(105)


def test_opaque_range_may_be_given_up_unless_committed():
    line = new_line(*SEALED, committed=4, kind="opaque")
    assert line.replay_error(log_moved=True) is None
    assert new_line(*SEALED, committed=4, kind="opaque", skips={"a": 5}).replay_error(
        log_moved=True
    )
    group(line, 5)
    store(line)
    read(line, 5)
    line.take(5)
    assert line.replay_error(log_moved=True) is None, "it needs nothing of the log"


# Cut off and written anew while it is read


def test_range_read_before_a_truncation_runs_again():
    line = new_line()
    for end in (140, 150):
        group(line, line.begin(end, 8).txid)
    store(line)
    assert read(line, 2, leader_epoch=8)
    store(line)
    assert not line.is_outdated(2)
    assert read(line, 1, leader_epoch=9), "of what a later leader has written in place of the rest"
    assert (line.is_outdated(1), line.is_outdated(2)) == (False, True)
    store(line)
    line.take(1)
    assert not line.is_ready(2), "its records are in the log no more"
    line.fail(2)
    assert not line.is_outdated(2)
    assert standing(line)[1] == (2, 2, Range(140, 150, leader_epoch=9)), "nobody can have had it"
    store(line)
    assert line.position_of(2) == Position(140, 9, "id")
    assert read(line, 2, digest=OTHER, leader_epoch=9)
    store(line)
    assert (line.replay_error(log_moved=False), line.is_ready(2)) == (None, True)
    line.done(1)
    line.take(2)
    assert line.done(2) == Range(140, 150, 8, OTHER, 9)


@pytest.mark.parametrize("is_done", [False, True])
def test_range_of_an_older_leader_is_not_sealed(is_done):
    line = new_line()
    for end in (140, 150):
        group(line, line.begin(end, 7).txid)
    store(line)
    assert read(line, 1, leader_epoch=9)
    store(line)
    if is_done:
        line.take(1)
        line.done(1)
    assert read(line, 2, leader_epoch=8)
    assert line.is_outdated(2)
    assert not line.transaction_of(2).range.is_sealed
    line.fail(2)
    assert line.transaction_of(2).range == Range(140, 150, leader_epoch=9)
    store(line)
    assert read(line, 2, leader_epoch=None), "the log holds nothing there that anyone can read"
    assert not line.is_outdated(2)
