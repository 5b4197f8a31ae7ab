import pytest

from partition.errors import SourceLost, TopicMissing
from partition.interfaces import Log
from partition.records import Partition, Position
from partition.recovery import StartPolicy, behind, loss_of
from tests.support.consumer import ONE, SKIP_LOSS, TWO, Bench

# Where the log is not what it was


def lose(bench, how):
    """Commit 5 of 8 records, stop, and lose what was to be read next."""
    bench.fill(ONE, 8)
    bench.start()
    bench.ack(bench.emit()[:5])
    bench.reader.commit(1.0)
    bench.reader.commit(2.0)
    bench.reader.close()
    if how == "expired":
        bench.log.delete_before(ONE, 7)
    elif how == "truncated":
        bench.log.truncate(ONE, 3)
    elif how == "rewritten":
        bench.log.truncate(ONE, 3)
        bench.fill(ONE, 4)
    else:
        bench.log.recreate_topic("t", 2)
        bench.fill(ONE, 9)


@pytest.mark.parametrize(
    ("how", "reason"),
    [("expired", "expired"), ("truncated", "truncated"), ("rewritten", "truncated")],
)
def test_lost_records_halt_the_partition_and_move_no_offset(how, reason):
    """Promise 12; Storm 15, Storm 18: told apart, never skipped unless policy says so."""
    bench = Bench()
    lose(bench, how)
    bench.reader = bench.another()
    bench.start()
    bench.emit(3.0)
    bench.poll(3.0)
    told = bench.reader.assignment.halted[ONE]
    assert reason in told
    assert "on_data_loss" in told
    assert bench.stored() == 5
    assert bench.losses == []
    bench.fill(TWO, 2)
    assert bench.drain(4.0) == 2


def test_recreated_topic_ends_the_run_and_moves_no_offset():
    """Storm 18: all of its partitions are halted, so nothing is left to read."""
    bench = Bench()
    lose(bench, "recreated")
    bench.reader = bench.another()
    with pytest.raises(SourceLost, match="recreated"):
        bench.start()
    assert bench.stored() == 5


def test_run_to_the_end_waits_for_recovery():
    """Promise 12: a log that ends before our offset was cut off, or its leader lags behind."""
    bench = Bench()
    lose(bench, "truncated")
    bench.reader = bench.another()
    bench.start()
    assert not bench.reader.assignment.has_reached_goals
    bench.work(1, 3)
    assert bench.reader.assignment.halted
    assert bench.reader.assignment.has_reached_goals


def test_a_corrupt_record_is_skipped_by_policy_and_told():
    bench = Bench(start=StartPolicy(on_corrupt_record="skip"))
    bench.fill(ONE, 5)
    bench.log.corrupt(ONE, 3)
    bench.start()
    bench.work(1, 9)
    assert bench.reasons() == [("corrupt", 3, 4)]
    assert bench.stored() == 5


def say_missing(bench):
    for place in (ONE, TWO):
        bench.reader.assignment.fail(place, TopicMissing("t"))


def test_topic_that_one_broker_does_not_know_is_read_on():
    """Faults K05: and what is in flight of it does not hold it up."""
    bench = Bench()
    bench.fill(ONE, 2)
    bench.start()
    assert len(bench.emit()) == 2
    say_missing(bench)
    bench.poll()
    bench.fill(ONE, 3)
    assert len(bench.emit(1.0)) == 3
    assert bench.reader.assignment.halted == {}
    assert bench.losses == []


def test_records_in_flight_resolve_before_a_lost_range_is_passed():
    """Promise 12: retention that overtakes a running reader."""
    bench = Bench(start=SKIP_LOSS, fetch_records=4)
    bench.fill(ONE, 4)
    bench.start()
    owners = bench.emit()
    bench.fill(ONE, 6)
    bench.log.delete_before(ONE, 8)
    assert bench.emit(1.0) == []
    bench.poll(1.0)
    assert bench.losses == []
    bench.ack(owners[:3])
    assert bench.fail(owners[3], 1.0)
    bench.poll(2.0)
    assert bench.losses == []
    retried = bench.reader.next_chunk(5.0)
    bench.ack(retried[1])
    bench.poll(5.0)
    assert bench.reasons() == [("expired", 4, 8)]
    assert bench.drain(6.0) == 2
    assert bench.stored() == 10


def test_recreated_topic_is_never_read_as_the_old_one():
    bench = Bench(start=SKIP_LOSS)
    bench.fill(ONE, 4)
    bench.start()
    bench.ack(bench.emit())
    bench.log.recreate_topic("t", 2)
    bench.fill(ONE, 6)
    say_missing(bench)
    bench.work(1, 5)
    assert [loss.reason for loss in bench.losses if loss.partition == ONE] == ["recreated"]
    assert bench.stored() == 6


ORDERS = Partition("orders", 0)


def found(offset, log, **facts):
    return loss_of(ORDERS, Position(offset, 2, "id"), log, **facts)


def test_truncated_log_resumes_where_it_diverged():
    """Faults K04: the new records between the cut and the offset are not skipped."""
    loss = found(100, Log(0, 160, "id"), diverged_at=60)
    assert (loss.reason, loss.lost, loss.resume.offset) == ("truncated", 40, 60)


def test_only_what_is_further_behind_than_allowed_is_skipped():
    """Storm 1: nothing is skipped unless it is asked for, and then it is counted."""
    at = Position(10, 2, "id")
    assert behind(ORDERS, at, Log(0, 100, "id"), 90) is None
    loss = behind(ORDERS, at, Log(0, 101, "id"), 90)
    assert (loss.reason, loss.lost, loss.resume.offset) == ("behind", 1, 11)


def test_first_position_carries_the_leaders_epoch():
    """Faults K04: a log cut off below a first position, and written anew, is noticed."""
    log = Log(10, 100, "id", leader_epoch=5)
    at = Position(4, 2, "id")
    assert loss_of(ORDERS, at, log).resume == Position(10, 5, "id")
    assert behind(ORDERS, Position(20, 2, "id"), log, 30).resume == Position(70, 5, "id")
