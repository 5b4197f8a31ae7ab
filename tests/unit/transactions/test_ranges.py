"""A line of ranges: planned, stored, read by others, sealed, committed."""

import pytest

from partition.errors import ReplayDiffers
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


# Planned


def test_planned_range_has_no_share():
    line = new_line()
    txid = begin(line, 1300)
    with pytest.raises(ValueError, match=r"orders\[3\] transaction 1 is not sealed"):
        GroupMember(0, line, txid).share(7, 0)


def test_ranges_are_stored_before_they_run():
    """Promise 14: a record's txid is stored before it runs."""
    line = new_line()
    assert (line.planned_to, line.may_begin, line.is_due) == (100, True, False)
    assert told(line.begin(140)) == (1, 1, Range(100, 140))
    assert (line.planned_to, line.is_due) == (140, True)
    assert not line.accepts_more(99), "executors read the records"
    assert not line.is_recorded(1)
    asked = line.to_store()
    line.begin(150)
    store(line, asked)
    assert (line.is_recorded(1), line.is_recorded(2), line.is_recorded(3)) == (True, False, False)
    assert line.is_due
    store(line)
    assert line.is_recorded(2)
    assert not line.is_due
    assert standing(line) == [(1, 1, Range(100, 140)), (2, 1, Range(140, 150))]


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


# Sealed and committed


def test_ranges_are_taken_and_done_in_order_only():
    """Promise 14: transactions are committed in txid order."""
    line = new_line()
    begin(line, 110)
    begin(line, 120)
    read(line, 2)
    store(line)
    assert not line.awaits_commit
    with pytest.raises(OutOfOrder):
        line.take(2)
    read(line, 1)
    store(line)
    line.take(1)
    line.take(2)
    with pytest.raises(OutOfOrder):
        line.done(2)
    line.done(1)
    line.done(2)
    with pytest.raises(OutOfOrder):
        line.done(2)
    with pytest.raises(OutOfOrder):
        line.take(2)


def test_stale_attempt_changes_nothing():
    """Promise 14: an attempt older than the live one changes nothing."""
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


def test_attempt_with_other_records_is_never_committed():
    """Storm 14: a batch that is read again is whole, or it fails."""
    line = new_line()
    begin(line, 110)
    read(line, 1)
    line.fail(1)
    store(line)
    assert read(line, 1, 7, OTHER)
    error = line.replay_error(log_moved=False)
    assert isinstance(error, ReplayDiffers)
    assert error.txid == 1
    assert error.expected == f"offsets 100 to 110 (8 records), digest {DIGEST} under leader epoch 7"
    found = f"offsets 100 to 110 (7 records), digest {OTHER} under leader epoch 7"
    assert error.found == f"the log now gives {found}"
    assert line.replay_error(log_moved=True) is error
    store(line)
    assert (line.is_ready(1), line.may_begin, line.awaits_commit) == (False, False, False)


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


def test_opaque_range_that_a_sink_has_must_be_the_same():
    """Promise 14."""
    line = new_line(kind="opaque")
    begin(line, 110)
    read(line, 1)
    store(line)
    line.take(1)
    line.not_done(1)
    line.is_in("lake", 1)
    line.fail(1)
    store(line)
    read(line, 1, 7, OTHER)
    assert isinstance(line.replay_error(log_moved=False), ReplayDiffers)
    assert standing(line) == [(1, 2, Range(100, 110, 8, DIGEST, 7))]


def test_sealed_range_written_by_a_later_leader_differs():
    """Promise 14. Storm 14: the log was cut off before it, and written anew."""
    line = new_line(*SEALED, committed=4)
    store(line)
    read(line, 5, leader_epoch=8)
    assert line.replay_error(log_moved=False).expected.endswith(" under leader epoch 7")
    assert line.replay_error(log_moved=False).found.endswith(" under leader epoch 8")
    assert not line.is_ready(5)


@pytest.mark.parametrize(("was", "now"), [(7, 6), (7, 7), (7, None), (None, 8)])
def test_sealed_range_is_the_same_under_known_leaders(was, now):
    """An earlier one is as good: a seal also knows who led the log when the range was planned."""
    line = new_line()
    begin(line, 110)
    read(line, 1, leader_epoch=was)
    line.fail(1)
    store(line)
    read(line, 1, leader_epoch=now)
    store(line)
    assert line.replay_error(log_moved=False) is None
    assert line.is_ready(1)


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


# After a restart


def test_open_ranges_resume_in_their_next_attempt():
    """Storm 41: attempts grow over restarts."""
    line = new_line(*SEALED, committed=4, skips={"lake": 5})
    assert [told(each) for each in line.ungrouped] == [
        (5, 3, SEALED[0].range),
        (6, 2, SEALED[1].range),
    ]
    assert (line.planned_to, line.may_begin) == (130, False)
    assert line.skips == {"lake": 5}
    assert not line.is_recorded(5)
    store(line, Transactions("transactional", 4, SEALED))
    assert not line.is_recorded(5), "that was the attempt before"
    store(line)
    assert line.is_recorded(5)
    assert line.position_of(6) == Position(110, 7, "id")
    read(line, 5)
    assert line.is_ready(5), "its seal stands there already"


@pytest.mark.parametrize(
    ("committed", "found"),
    [
        (-1, []),
        (0, [(2, 1, 100)]),
        (1, [(1, 1, 100)]),
        (0, [(1, 1, 100), (3, 1, 110)]),
        (0, [(1, 1, 100), (2, 1, 111)]),
        (0, [(1, 0, 100)]),
    ],
)
def test_stored_transactions_with_a_hole_are_rejected(committed, found):
    """Promise 14."""
    opened = [OpenTransaction(txid, n, Range(first, first + 10)) for txid, n, first in found]
    with pytest.raises(ValueError, match=r"txid|allowed"):
        new_line(*opened, committed=committed)


def test_attempts_begin_at_the_least_allowed():
    line = new_line(committed=4, attempts={5: 3}, least_attempt=7)
    assert (line.begin(110).attempt, line.begin(120).attempt) == (7, 7)
    assert new_line(SEALED[0], committed=4, least_attempt=9).transaction_of(5).attempt == 9


def test_sink_skips_what_it_has():
    line = new_line(skips={"lake": 3})
    line.is_in("lake", 2)
    line.is_in("archive", 4)
    assert line.skips == {"lake": 3, "archive": 4}


# Where the log is not what it was


def test_planned_range_may_be_planned_anew():
    line = new_line(OpenTransaction(5, 2, Range(100, 110)), SEALED[1], committed=4)
    assert line.replay_error(log_moved=True) is None
    anew = line.resume_state(Position(105, 7, "id"))
    again = resume(ORDERS, anew, policy())
    assert told(again.begin(115)) == (5, 4, Range(105, 115))
    assert again.begin(116).attempt == 3
    assert again.to_store().checked(105)


def test_sealed_range_may_not_be_planned_anew():
    line = new_line(*SEALED, committed=4)
    lost = line.replay_error(log_moved=True)
    assert isinstance(lost, ReplayDiffers)
    assert (lost.txid, lost.expected) == (
        5,
        f"offsets 100 to 110 (8 records), digest {DIGEST} under leader epoch 7",
    )


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


def test_sealed_range_outlives_a_later_leader_before_it():
    line = new_line(*SEALED[:1], OpenTransaction(6, 1, Range(110, 130, 9, DIGEST, 6)), committed=4)
    store(line)
    assert read(line, 5, leader_epoch=7)
    assert not line.is_outdated(6), "a sink may have had both"


def test_ungrouped_range_has_a_new_attempt_after_truncation():
    line = new_line()
    group(line, line.begin(140, 8).txid)
    line.begin(150, 8)
    store(line)
    assert read(line, 1, leader_epoch=9)
    assert line.is_outdated(2)
    group(line, 2)
    assert not line.is_recorded(2)
    assert standing(line)[1] == (2, 2, Range(140, 150, leader_epoch=9))
