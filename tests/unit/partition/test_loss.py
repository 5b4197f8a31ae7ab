"""What the log says about a resume key, and what follows."""

import pytest

from partition.interfaces import Log
from partition.records import Partition, Position
from partition.recovery import behind, loss_of

ORDERS = Partition("orders", 0)


def found(offset, log, **facts):
    return loss_of(ORDERS, Position(offset, 2, "id"), log, **facts)


def test_a_log_cut_off_and_written_anew_goes_on_where_it_diverged():
    """Faults K04: the new records between the cut and the offset are not skipped."""
    loss = found(100, Log(0, 160, "id"), diverged_at=60)
    assert (loss.reason, loss.lost, loss.resume.offset) == ("truncated", 40, 60)


@pytest.mark.parametrize("end", [5, 50, 5000])
def test_a_topic_created_again_begins_at_its_start_however_large_it_is(end):
    """Promise 12; Storm 18: records of the new topic below the old offset are not skipped."""
    loss = found(100, Log(0, end, "another"), known_end=130)
    assert (loss.reason, loss.lost) == ("recreated", 30)
    assert loss.resume == Position(0, None, "another")


def test_only_what_is_further_behind_than_allowed_is_skipped():
    """Storm 1: nothing is skipped unless it is asked for, and then it is counted."""
    at = Position(10, 2, "id")
    assert behind(ORDERS, at, Log(0, 100, "id"), 90) is None
    loss = behind(ORDERS, at, Log(0, 101, "id"), 90)
    assert (loss.reason, loss.lost, loss.resume.offset) == ("behind", 1, 11)


def test_after_a_cut_the_old_epoch_is_kept_so_that_a_lower_cut_is_noticed_too():
    log = Log(0, 160, "id", leader_epoch=5)
    at = Position(100, 2, "id")
    assert loss_of(ORDERS, at, log, diverged_at=60).resume == Position(60, 2, "id")
    at = Position(200, None, "id")
    assert loss_of(ORDERS, at, log).resume == Position(160, 5, "id")


def test_a_cut_that_the_logs_start_has_passed_is_told_once():
    log = Log(80, 160, "id", leader_epoch=5)
    resume = loss_of(ORDERS, Position(100, 2, "id"), log, diverged_at=60).resume
    assert resume == Position(80, 5, "id")


def test_where_no_record_was_read_the_leaders_epoch_stands_for_it():
    """Faults K04: a log cut off below a first position, and written anew, is noticed."""
    log = Log(10, 100, "id", leader_epoch=5)
    at = Position(4, 2, "id")
    assert loss_of(ORDERS, at, log).resume == Position(10, 5, "id")
    assert behind(ORDERS, Position(20, 2, "id"), log, 30).resume == Position(70, 5, "id")
