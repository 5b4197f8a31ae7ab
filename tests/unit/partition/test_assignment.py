import re
from concurrent.futures import Future

import pytest

from partition.errors import SourceLost, StoreCorrupt, StoreForeign, TopicMissing
from partition.interfaces import AtOffset, AtTimestamp, Log, Progress
from partition.records import Partition, Position
from partition.recovery import StartPolicy, behind, loss_of
from tests.support.consumer import ONE, SKIP_LOSS, TWO, Bench


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.parametrize(
    ("start_from", "offset"),
    [
        ("earliest", 2),
        ("latest", 6),
        (AtOffset(4), 4),
        (AtTimestamp(300), 3),
        (AtTimestamp(10_000), 6),
    ],
)
def test_new_partition_starts_where_start_from_says(start_from, offset):
    """Storm 7: where a first start begins is said, and is nothing else."""
    bench = Bench(start=StartPolicy(start_from))
    for number in range(6):
        bench.log.append(ONE, b"x", timestamp_ms=number * 100)
        bench.log.append(TWO, b"x", timestamp_ms=number * 100)
    bench.log.delete_before(ONE, 2)
    bench.start()
    assert bench.stored(ONE) == offset


def test_start_offset_outside_the_log_halts():
    bench = Bench(start=StartPolicy(AtOffset(7)))
    bench.fill(ONE, 9)
    bench.start()
    assert list(bench.reader.assignment.halted) == [TWO]
    assert "start_from" in bench.reader.assignment.halted[TWO]


def test_a_stored_offset_of_zero_is_an_offset():
    """Storm 5; Promise 8. Storm 34: a start policy is not applied again by a restart."""
    bench = Bench(start=StartPolicy("latest"))
    bench.start()
    assert bench.stored() == 0
    bench.fill(ONE, 3)
    bench.restart()
    assert len(bench.emit()) == 3


def test_foreign_offset_halts_unless_ignored(bench):
    """Storm 37: two pipelines never share a partition's offset unawares."""
    bench.fill(ONE, 5)
    bench.start()
    bench.drain(1.0)
    bench.names = {"topology_id": "another"}
    with pytest.raises(StoreForeign, match="memory"):
        bench.restart()
    assert bench.stored() == 5
    bench.restart(start=StartPolicy(ignore_stored_offsets=True))
    assert bench.events[0] == f"moved {ONE} 0 ignore_stored_offsets"
    assert len(bench.emit()) == 5
    bench.drain(3.0)
    bench.restart(start=StartPolicy(ignore_stored_offsets=True))
    assert bench.stored() == 0  # nothing was acked in between, and it is its own offset now


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"offset": 1}', b"\xff"])
def test_an_unreadable_offset_halts_its_partition_only(bench, data):
    """Promise 8; Storm 8, Storm 13: no default offset is taken, and the others go on."""
    bench.fill(ONE, 2)
    bench.fill(TWO, 2)
    bench.start()
    bench.drain(1.0)
    path = bench.store._names.path
    bench.nodes.put(path(ONE), data)
    bench.fill(TWO, 1)
    bench.restart()
    assert list(bench.reader.assignment.halted) == [ONE]
    assert bench.drain(2.0) == 1
    assert bench.stored(TWO) == 3
    assert bench.nodes.nodes[path(ONE)][0] == data
    bench.nodes.put(path(TWO), data)
    with pytest.raises(StoreCorrupt):
        bench.restart()


def test_skip_behind_the_allowed_distance_is_reported(bench):
    """Storm 1, Storm 2: what is skipped is in the dead letters, counted, and explicit."""
    bench.start()
    bench.fill(ONE, 10)
    bench.restart()
    assert len(bench.emit()) == 10
    bench.restart(start=StartPolicy(max_offset_behind=4))
    assert bench.reasons() == [("behind", 0, 6)]
    assert bench.stored() == 6
    assert len(bench.emit()) == 4
    one, _two = bench.reader.statistics(0.0)
    assert one.lost == {"behind": 6}


def test_added_partition_starts_at_its_beginning():
    """Faults K07: what was written before they were found is not skipped."""
    bench = Bench(start=StartPolicy("latest"), assignment={"discover_interval_seconds": 10})
    bench.start()
    bench.log.add_partitions("t", 3)
    new = Partition("t", 2)
    bench.fill(new, 4)
    bench.poll(5.0)
    assert bench.emit() == []
    bench.poll(11.0)
    assert len(bench.emit()) == 4
    assert bench.stored(new) == 0


def test_pattern_matches_later_topics():
    bench = Bench(sources=[re.compile("orders-.*")], assignment={"discover_interval_seconds": 10})
    bench.start()
    assert bench.reader.assignment.is_settled
    bench.log.create_topic("all-orders-eu")
    bench.log.create_topic("orders-us")
    bench.fill(Partition("orders-us", 0), 3)
    bench.poll(11.0)
    assert bench.drain(12.0) == 3
    assert [str(part.partition) for part in bench.reader.statistics(0.0)] == ["orders-us[0]"]


def test_partition_is_assigned_before_its_first_record(bench):
    bench.fill(ONE, 1)
    bench.reader.open()
    assert bench.told == []
    while bench.reader.next_chunk(0.0) is None:
        bench.reader.poll(0.0)
        bench.reader.fetch(0.0, 0.0)
    assert bench.told == [f"+{ONE}", f"+{TWO}"]
    bench.poll(times=20)
    assert len(bench.told) == 2


def test_at_the_end_each_is_revoked_once(bench):
    """Promise 16."""
    bench.start()
    bench.reader.release()
    assert bench.told[2:] == [f"-{ONE}", f"-{TWO}"]
    bench.reader.release()
    bench.reader.close()
    assert len(bench.told) == 4


def test_fenced_partition_is_revoked_alone(bench):
    """Promise 9."""
    bench.fill(ONE, 1)
    bench.start()
    record_ids = bench.emit()
    successor = bench.successor()
    assert successor.commit({ONE: Progress(Position(1))}).result() == {}
    bench.ack(record_ids)
    bench.commit(1.0)
    bench.reader.poll(2.0)
    assert bench.told[2:] == [f"-{ONE}"]
    bench.reader.release()
    assert bench.told[3:] == [f"-{TWO}"]


def test_halted_partition_is_revoked_once_it_is_idle():
    bench = Bench(start=StartPolicy(on_corrupt_record="halt"))
    bench.fill(ONE, 3)
    bench.log.corrupt(ONE, 2)
    bench.start()
    record_ids = bench.emit()
    assert len(record_ids) == 2
    for now in range(1, 20):
        bench.emit(float(now))
        bench.poll(float(now))
    bench.ack(record_ids[:1])
    bench.poll(20.0)
    assert bench.told == [f"+{ONE}", f"+{TWO}"]
    bench.ack(record_ids[1:])
    for now in range(21, 40):
        bench.emit(float(now))
        bench.poll(float(now))
    assert list(bench.reader.assignment.halted) == [ONE]
    assert bench.told[2:] == [f"-{ONE}"]


def test_returning_topic_is_assigned_again():
    """Faults K05: until then nothing of it is read, and nothing ends."""
    bench = Bench(sources=("t", "u"), start=SKIP_LOSS)
    bench.log.create_topic("u", 1)
    bench.start()
    bench.log.delete_topic("t")
    bench.emit(1.0)
    bench.poll(1.0)
    assert isinstance(bench.reader.assignment[ONE].error, TopicMissing)
    assert bench.told[3:] == [f"-{ONE}", f"-{TWO}"]
    bench.log.create_topic("t", 2)
    for now in range(100, 110):
        bench.emit(float(now))
        bench.poll(float(now))
    assert bench.told[5:] == [f"+{ONE}", f"+{TWO}"]


def test_last_commit_waits_for_the_claim(bench):
    """Promise 16."""
    bench.fill(ONE, 5)
    bench.start()
    bench.ack(bench.emit())
    bench.store.end_session()
    bench.commit(1.0)
    assert not bench.reader.offsets.is_done
    bench.reader.poll(1.0, opens=False)
    bench.reader.commit(1.0, force=True)
    assert bench.reader.offsets.is_done
    assert bench.stored() == 5


def test_session_that_ends_while_opening_emits_nothing_unclaimed(bench):
    """Promise 9."""
    bench.fill(ONE, 3)
    bench.start()
    bench.reader.close()
    bench.reader = bench.another()
    bench.reader.open()
    catalogue, answers = bench.reader._ways.catalogue, []
    log = catalogue.log

    def held_back(*asked):
        answers.append((Future(), log(*asked)))
        return answers[-1][0]

    catalogue.log = held_back
    bench.poll()
    assert answers
    bench.store.end_session()
    bench.nodes.away = True
    for future, answer in answers:
        future.set_result(answer.result())
    catalogue.log = log
    bench.poll()
    assert bench.emit() == []
    bench.nodes.away = False
    bench.poll()
    assert len(bench.emit()) == 3


def lose(bench, how):
    """Commit 5 of 8 records, stop, and lose what was to be read next."""
    bench.fill(ONE, 8)
    bench.start()
    bench.ack(bench.emit()[:5])
    bench.commit(1.0)
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
def test_lost_records_halt_the_partition_and_move_no_offset(bench, how, reason):
    """Promise 12; Storm 15, Storm 18: told apart, never skipped unless policy says so."""
    lose(bench, how)
    bench.restart()
    bench.emit(3.0)
    bench.poll(3.0)
    told = bench.reader.assignment.halted[ONE]
    assert reason in told
    assert "on_data_loss" in told
    assert bench.stored() == 5
    assert bench.losses == []
    bench.fill(TWO, 2)
    assert bench.drain(4.0) == 2


def test_recreated_topic_ends_the_run_and_moves_no_offset(bench):
    """Storm 18: all of its partitions are halted, so nothing is left to read."""
    lose(bench, "recreated")
    with pytest.raises(SourceLost, match="recreated"):
        bench.restart()
    assert bench.stored() == 5


def test_run_to_the_end_waits_for_recovery(bench):
    """Promise 12: a log that ends before our offset was cut off, or its leader lags behind."""
    lose(bench, "truncated")
    bench.restart()
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


def test_topic_that_one_broker_does_not_know_is_read_on(bench):
    """Faults K05: and what is in flight of it does not hold it up."""
    bench.fill(ONE, 2)
    bench.start()
    assert len(bench.emit()) == 2
    for place in (ONE, TWO):
        bench.reader.assignment.fail(place, TopicMissing("t"))
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
    for place in (ONE, TWO):
        bench.reader.assignment.fail(place, TopicMissing("t"))
    bench.work(1, 5)
    assert [loss.reason for loss in bench.losses if loss.partition == ONE] == ["recreated"]
    assert bench.stored() == 6


def test_truncated_log_resumes_where_it_diverged():
    """Faults K04: the new records between the cut and the offset are not skipped."""
    loss = loss_of(ONE, Position(100, 2, "id"), Log(0, 160, "id"), diverged_at=60)
    assert (loss.reason, loss.lost, loss.resume.offset) == ("truncated", 40, 60)


def test_only_what_is_further_behind_than_allowed_is_skipped():
    """Storm 1: nothing is skipped unless it is asked for, and then it is counted."""
    at = Position(10, 2, "id")
    assert behind(ONE, at, Log(0, 100, "id"), 90) is None
    loss = behind(ONE, at, Log(0, 101, "id"), 90)
    assert (loss.reason, loss.lost, loss.resume.offset) == ("behind", 1, 11)


def test_first_position_carries_the_leaders_epoch():
    """Faults K04: a log cut off below a first position, and written anew, is noticed."""
    log = Log(10, 100, "id", leader_epoch=5)
    at = Position(4, 2, "id")
    assert loss_of(ONE, at, log).resume == Position(10, 5, "id")
    assert behind(ONE, Position(20, 2, "id"), log, 30).resume == Position(70, 5, "id")
