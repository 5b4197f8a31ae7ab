"""What both engines' lines share: transactions are stored before they run, and done in order."""

import pytest

from partition.chunk import Partition
from partition.position import Position
from partition.transaction import OpenTransaction, Range, Resumed, Transactions
from transactions.base_line import BaseLine, Opened, Transaction
from transactions.errors import OutOfOrder
from transactions.policy import TransactionPolicy

FIRST, SECOND = Range(100, 110, 10, "aa"), Range(110, 120, 10, "bb")


def new_line(*found):
    """A line that found these ranges recorded behind txid 4, each in its second attempt."""
    opened = tuple(OpenTransaction(txid, 2, covers) for txid, covers in enumerate(found, 5))
    resumed = Resumed(Position(100), Transactions("opaque", 4, opened))
    return BaseLine(
        Partition("topic", 0),
        resumed,
        TransactionPolicy("opaque"),
        lambda each: Opened(each.attempt, each.covers),
    )


def take(line, txid):
    """Let it be committed from now on."""
    found = line._known(txid)
    line._coordinator.processed(found.attempt)
    line._coordinator.next_commit()
    found.is_taken = True


def test_what_is_found_recorded_is_to_be_stored_in_a_new_attempt():
    line = new_line(FIRST, SECOND)
    wanted = line.to_store()
    assert wanted.open == (OpenTransaction(5, 3, FIRST), OpenTransaction(6, 3, SECOND))
    assert line.to_store() is wanted
    assert line.has_to_store
    line.stored(wanted)
    assert not line.has_to_store
    assert [each.stored for each in line._open] == [FIRST, SECOND]


def test_what_is_stored_of_an_older_attempt_does_not_count():
    line = new_line(FIRST)
    line.stored(Transactions("opaque", 4, (OpenTransaction(5, 2, FIRST),)))
    assert line.has_to_store
    assert line._known(5).stored is None


def test_transactions_are_done_in_their_order_and_stand_in_the_store_no_more():
    """Promise 14."""
    line = new_line(FIRST, SECOND)
    line.stored(line.to_store())
    take(line, 5)
    take(line, 6)
    with pytest.raises(OutOfOrder):
        line.done(6)
    assert line.done(5) == FIRST
    assert line.committed == 5
    assert line.has_to_store
    assert line.to_store() == Transactions("opaque", 5, (OpenTransaction(6, 3, SECOND),))
    with pytest.raises(OutOfOrder):
        line.done(5)


def test_one_that_is_not_being_committed_cannot_be_done():
    line = new_line(FIRST)
    line.stored(line.to_store())
    with pytest.raises(OutOfOrder):
        line.done(5)
    assert line._not_taken.transaction == Transaction(5, 3, FIRST)
    take(line, 5)
    assert line._not_taken is None


def test_what_is_not_open_is_not_known():
    line = new_line(FIRST)
    for txid in (4, 6):
        assert line._find(txid) is None
        with pytest.raises(KeyError):
            line._known(txid)
