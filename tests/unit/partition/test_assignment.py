"""Partitions that are found, opened, mended and halted. Fakes stand in for the servers."""

import re
from concurrent.futures import Future

import pytest

from partition.catalogue import AtOffset, AtTimestamp
from partition.chunk import Partition
from partition.errors import (
    CorruptRecord,
    Fenced,
    OffsetOutOfRange,
    OwnershipLost,
    SourceLost,
    StoreCorrupt,
    StoreForeign,
    StoreMissing,
    TopicMissing,
)
from partition.manager import Window
from partition.memory import MemoryStore
from partition.opening import StartPolicy
from partition.position import Position
from tests.worlds.reading import ONE, TWO, Bench

SKIP_LOSS = StartPolicy(on_data_loss="skip")


def path(partition):
    return f"/headrace/memory/{partition.topic}/partition_{partition.number}"


def reasons(bench):
    return [(loss.reason, loss.position.offset, loss.resume.offset) for loss in bench.losses]


# Where a partition starts


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
def test_a_partition_without_a_stored_offset_starts_where_it_is_told(start_from, offset):
    """Storm 7: where a first start begins is said, and is nothing else."""
    bench = Bench(start=StartPolicy(start_from))
    for number in range(6):
        bench.log.append(ONE, b"x", timestamp_ms=number * 100)
        bench.log.append(TWO, b"x", timestamp_ms=number * 100)
    bench.log.delete_before(ONE, 2)
    bench.start()
    assert bench.stored(ONE) == offset


def test_an_offset_to_start_from_that_the_log_does_not_hold_is_told():
    bench = Bench(start=StartPolicy(AtOffset(7)))
    bench.fill(ONE, 9)
    bench.start()
    assert list(bench.reader.halted()) == [TWO]
    assert "start_from" in bench.reader.halted()[TWO]


def test_where_to_start_from_is_asked_once_per_pipeline_and_not_at_a_restart():
    """Storm 34: a start policy is not applied again when the process restarts."""
    bench = Bench(start=StartPolicy("latest", ignore_stored_offsets=True))
    bench.fill(ONE, 3)
    bench.start()
    bench.fill(ONE, 2)
    bench.restart()
    assert len(bench.emit()) == 2


def test_a_stored_offset_of_zero_is_an_offset():
    """Storm 5; Promise 8."""
    bench = Bench(start=StartPolicy("latest"))
    bench.start()
    assert bench.stored() == 0
    bench.fill(ONE, 3)
    bench.restart()
    assert len(bench.emit()) == 3


def test_another_topologys_offset_halts_the_partition_unless_it_may_be_ignored():
    """Storm 37: two pipelines never share a partition's offset unawares."""
    bench = Bench()
    bench.fill(ONE, 5)
    bench.start()
    bench.drain(1.0)
    bench.names = {"topology_id": "another"}
    bench.reader.close()
    bench.reader = bench.another()
    bench.reader.open()
    with pytest.raises(StoreForeign, match="memory"):
        bench.poll()
    assert bench.stored() == 5
    bench.restart(start=StartPolicy(ignore_stored_offsets=True))
    assert bench.events[0] == f"moved {ONE} 0 ignore_stored_offsets"
    assert len(bench.emit()) == 5
    bench.drain(3.0)
    bench.restart(start=StartPolicy(ignore_stored_offsets=True))
    assert bench.stored() == 0  # nothing was acked in between, and it is its own offset now


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"offset": 1}', b"\xff"])
def test_an_unreadable_offset_halts_its_partition_only(data):
    """Promise 8; Storm 8, Storm 13: no default offset is taken, and the others go on."""
    bench = Bench()
    bench.fill(ONE, 2)
    bench.fill(TWO, 2)
    bench.start()
    bench.drain(1.0)
    bench.nodes.put(path(ONE), data)
    bench.fill(TWO, 1)
    bench.restart()
    assert list(bench.reader.halted()) == [ONE]
    assert bench.drain(2.0) == 1
    assert bench.stored(TWO) == 3
    assert bench.nodes.nodes[path(ONE)][0] == data
    bench.nodes.put(path(TWO), data)
    with pytest.raises(StoreCorrupt):
        bench.restart()


def test_a_node_that_is_missing_where_one_was_halts_its_partition():
    """Promise 8: it is not begun anew, from the earliest or the latest."""
    bench = Bench()
    bench.fill(ONE, 2)
    bench.start()
    bench.drain(1.0)
    del bench.nodes.nodes[path(ONE)]
    bench.restart()
    assert list(bench.reader.halted()) == [ONE]
    del bench.nodes.nodes[path(TWO)]
    with pytest.raises(StoreMissing):
        bench.restart()


def test_no_further_behind_than_allowed_is_skipped_only_when_asked_for_and_is_told():
    """Storm 1, Storm 2: what is skipped is in the dead letters, counted, and explicit."""
    bench = Bench()
    bench.start()
    bench.fill(ONE, 10)
    bench.restart()
    assert len(bench.emit()) == 10
    bench.restart(start=StartPolicy(max_offset_behind=4))
    assert reasons(bench) == [("behind", 0, 6)]
    assert bench.stored() == 6
    assert len(bench.emit()) == 4
    one, _two = bench.reader.statistics(0.0)
    assert one.lost == {"behind": 6}


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


LOSSES = {
    "expired": (("expired", 5, 7), 1),
    "truncated": (("truncated", 5, 3), 0),
    "rewritten": (("truncated", 5, 3), 4),
    "recreated": (("recreated", 5, 0), 9),
}


@pytest.mark.parametrize("how", ["expired", "truncated", "rewritten"])
def test_lost_records_halt_the_partition_and_move_no_offset(how):
    """Promise 12; Storm 15, Storm 18: told apart, never skipped unless policy says so."""
    bench = Bench()
    lose(bench, how)
    bench.reader = bench.another()
    bench.start()
    bench.emit(3.0)
    bench.poll(3.0)
    (reason, _offset, _resume), _count = LOSSES[how]
    told = bench.reader.halted()[ONE]
    assert reason in told
    assert "on_data_loss" in told
    assert bench.stored() == 5
    assert bench.losses == []
    bench.fill(TWO, 2)
    assert bench.drain(4.0) == 2


@pytest.mark.parametrize("how", LOSSES)
def test_lost_records_are_skipped_by_policy_told_and_counted(how):
    """Promise 12: resolved once, counted and logged with the number of records lost."""
    bench = Bench(start=SKIP_LOSS)
    lose(bench, how)
    bench.reader = bench.another()
    bench.start()
    bench.work(3, 6)
    loss, count = LOSSES[how]
    assert [each for each in reasons(bench) if each[1]] == [loss]
    assert not bench.reader.halted()
    assert bench.stored() == loss[2] + count
    one = next(bench.reader.statistics(5.0))
    assert one.lost.keys() == {loss[0]}


def test_a_log_cut_off_below_a_first_position_is_noticed():
    """Faults K04: before any record was read, the leader's epoch stands in the resume key."""
    bench = Bench(start=StartPolicy("latest", on_data_loss="skip"))
    bench.fill(ONE, 6)
    bench.start()
    bench.reader.close()
    bench.log.truncate(ONE, 2)
    bench.fill(ONE, 9)
    bench.reader = bench.another()
    bench.start()
    bench.work(1, 4)
    assert reasons(bench) == [("truncated", 6, 2)]
    assert bench.stored() == 11


def test_a_run_to_the_end_does_not_end_before_a_place_past_the_end_is_cleared_up():
    """Promise 12: a log that ends before our offset was cut off, or its leader lags behind."""
    bench = Bench()
    lose(bench, "truncated")
    bench.reader = bench.another()
    bench.start()
    assert not bench.reader.has_reached_goals
    bench.work(1, 3)
    assert bench.reader.halted()
    assert bench.reader.has_reached_goals


def test_a_jump_is_stored_only_once_its_notice_is_durable():
    """Promise 3: what is skipped is in the dead letters before the offset passes it."""
    bench = Bench(start=SKIP_LOSS)
    lose(bench, "expired")
    bench.hold_notices = True
    bench.reader = bench.another()
    bench.start()
    assert bench.stored() == 5
    assert bench.emit() == []
    bench.notices[0].set_result(None)
    bench.poll()
    assert bench.stored() == 7
    assert len(bench.emit()) == 1


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
    assert bench.reader.fail(owners[3], 1.0)
    bench.poll(2.0)
    assert bench.losses == []
    retried = bench.reader.next(5.0)
    bench.ack(retried[1])
    bench.poll(5.0)
    assert reasons(bench) == [("expired", 4, 8)]
    assert bench.drain(6.0) == 2
    assert bench.stored() == 10


def test_a_frontier_that_was_reached_before_a_jump_back_is_not_stored_after_it():
    """Promise 2: a log that was cut off is read again from the cut, not from the old frontier."""
    bench = Bench(start=SKIP_LOSS)
    bench.fill(ONE, 8)
    bench.start()
    bench.store.holding = True
    bench.ack(bench.emit())
    bench.reader.commit(1.0)
    bench.log.truncate(ONE, 3)
    bench.fill(ONE, 1)
    bench.emit(2.0)
    bench.poll(2.0)
    assert bench.stored() == 3
    bench.store.open_commits[0].set_result({})
    bench.store.holding = False
    bench.reader.commit(3.0, force=True)
    assert bench.stored() == 3
    assert bench.drain(4.0) == 1
    assert bench.stored() == 4


def test_a_topic_created_again_while_it_is_read_is_noticed_by_its_id():
    """Storm 18: also when it holds more records than our offset."""
    bench = Bench(start=SKIP_LOSS, assignment={"discover_interval_seconds": 10})
    bench.fill(ONE, 3)
    bench.start()
    bench.drain(1.0)
    bench.log.recreate_topic("t", 2)
    bench.fill(ONE, 7)
    bench.work(5, 8)
    bench.poll(11.0)
    assert ("recreated", 7, 0) in reasons(bench)
    assert bench.drain(13.0) == 7
    assert bench.stored() == 7


# Corrupt records


def test_a_corrupt_record_quarantines_its_partition_only():
    """Faults K10: what was read before it is committed, and the others go on."""
    bench = Bench()
    bench.fill(ONE, 5)
    bench.fill(TWO, 2)
    bench.log.corrupt(ONE, 3)
    bench.start()
    bench.work(1, 9)
    assert bench.stored(ONE) == 3
    assert bench.stored(TWO) == 2
    assert list(bench.reader.halted()) == [ONE]
    assert bench.reader.has_reached_goals
    bench.log.corrupt(TWO, 2)
    bench.fill(TWO, 2)
    with pytest.raises(CorruptRecord):
        bench.work(10, 19)


def test_a_corrupt_record_is_skipped_by_policy_and_told():
    bench = Bench(start=StartPolicy(on_corrupt_record="skip"))
    bench.fill(ONE, 5)
    bench.log.corrupt(ONE, 3)
    bench.start()
    bench.work(1, 9)
    assert reasons(bench) == [("corrupt", 3, 4)]
    assert bench.stored() == 5


def test_trouble_that_passes_halts_nothing():
    bench = Bench()
    bench.fill(ONE, 3)
    bench.start()
    bench.drain(1.0)
    bench.reader._assignment.fail(ONE, OffsetOutOfRange(ONE, 3))
    bench.poll(2.0)
    assert not bench.reader.halted()
    bench.fill(ONE, 2)
    assert bench.drain(3.0) == 2


# Topics and partitions that come and go


def test_new_partitions_are_read_from_their_beginning_also_under_latest():
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


def test_a_first_start_that_ended_half_way_is_no_reason_to_take_the_rest_for_new():
    """Promise 7: under `latest`, only what was added later starts at its beginning."""
    bench = Bench(start=StartPolicy("latest"))
    store = MemoryStore(bench.nodes)
    store.open()
    store.begin(ONE, Position(0), 2).result()
    bench.fill(TWO, 3)
    bench.log.add_partitions("t", 3)
    bench.fill(Partition("t", 2), 3)
    bench.start()
    assert bench.stored(TWO) == 3
    assert bench.stored(Partition("t", 2)) == 0


def test_topics_that_match_a_pattern_are_read_also_those_that_come_later():
    bench = Bench(sources=[re.compile("orders-.*")], assignment={"discover_interval_seconds": 10})
    bench.log.create_topic("orders-eu")
    bench.log.create_topic("all-orders-eu")
    bench.fill(Partition("orders-eu", 0), 2)
    bench.start()
    assert bench.drain(1.0) == 2
    bench.log.create_topic("orders-us")
    bench.fill(Partition("orders-us", 0), 3)
    bench.poll(11.0)
    assert bench.drain(12.0) == 3
    assert {str(part.partition) for part in bench.reader.statistics(0.0)} == {
        "orders-eu[0]",
        "orders-us[0]",
    }


def test_a_pattern_that_matches_nothing_yet_is_waited_for():
    bench = Bench(sources=[re.compile("later")], assignment={"discover_interval_seconds": 10})
    bench.start()
    assert bench.reader.is_settled
    bench.log.create_topic("later")
    bench.fill(Partition("later", 0), 1)
    bench.poll(11.0)
    assert bench.drain(11.0) == 1


def test_partitions_that_an_answer_leaves_out_are_read_on():
    """Storm 11: the known partitions never become fewer by a hiccup of the metadata."""
    bench = Bench(assignment={"discover_interval_seconds": 10})
    bench.start()
    bench.log.away = True
    bench.poll(11.0)
    bench.poll(12.0)
    bench.log.away = False
    bench.fill(TWO, 2)
    assert bench.drain(13.0) == 2


def test_a_deleted_topic_halts_its_partitions_until_it_is_there_again():
    """Faults K05: nothing is read, nothing ends, and another incarnation is a loss."""
    bench = Bench(sources=["t", "other"], assignment={"discover_interval_seconds": 10})
    bench.log.create_topic("other")
    bench.fill(ONE, 2)
    bench.start()
    bench.drain(1.0)
    bench.log.delete_topic("t")
    bench.fill(Partition("other", 0), 1)
    bench.emit(2.0)
    bench.emit(2.5)
    assert set(bench.reader.halted()) == {ONE, TWO}
    bench.log.create_topic("t", 2)
    bench.poll(11.0)
    bench.poll(22.0)
    assert "recreated" in bench.reader.halted()[ONE]


def test_when_nothing_is_left_to_read_the_error_is_raised():
    bench = Bench()
    bench.fill(ONE, 1)
    bench.start()
    bench.log.delete_topic("t")
    with pytest.raises(TopicMissing):
        bench.work(1, 5)


# Sessions of the store


def test_a_session_that_ends_takes_no_partition_if_nobody_came_in_between():
    """Faults Z05: every ownership is dropped at once, and taken up again."""
    bench = Bench()
    bench.fill(ONE, 5)
    bench.start()
    owners = bench.emit()
    bench.nodes.end_session()
    bench.ack(owners)
    bench.reader.commit(1.0)
    bench.fill(ONE, 2)
    bench.reader.commit(2.0)
    assert bench.stored() == 0
    assert [o for o in bench.emit(2.0) if o < 1 << 48] == []
    bench.poll(2.0)
    assert len(bench.emit(3.0)) == 2
    bench.reader.commit(4.0)
    bench.reader.commit(5.0)
    assert bench.stored() == 5


def test_from_a_session_s_end_on_nothing_is_emitted_until_the_partition_is_ours_again():
    """Faults Z05: the ownership is dropped at once, not with the next commit."""
    bench = Bench()
    bench.fill(ONE, 5)
    bench.start()
    bench.reader.fetch(0.0, 0.0)
    bench.nodes.away = True
    bench.store.end_session()
    bench.poll()
    assert bench.reader.next(0.0) is None
    bench.nodes.away = False
    bench.poll()
    assert len(bench.reader.next(0.0)[0]) == 5


def test_a_session_that_ends_while_a_partition_is_mended_leaves_nothing_stuck():
    """Promise 15: what waits is emitted once the partition is ours again, then it is mended."""
    bench = Bench(start=SKIP_LOSS, fetch_records=4)
    bench.fill(ONE, 4)
    bench.start()
    bench.reader.fetch(0.0, 0.0)
    bench.fill(ONE, 6)
    bench.log.delete_before(ONE, 8)
    bench.reader.fetch(0.0, 0.0)
    bench.poll()
    assert bench.losses == []  # four records wait, so the loss is not looked into yet
    bench.store.end_session()
    bench.work(1, 9)
    assert reasons(bench) == [("expired", 4, 8)]
    assert bench.stored() == 10


def test_a_session_that_ends_while_a_partition_is_opened_lets_it_emit_nothing_unclaimed():
    """Promise 9."""
    bench = Bench()
    bench.fill(ONE, 3)
    bench.reader.open()
    log, answers = bench.reader._catalogue.log, []

    def held_back(partition, timestamp_ms=None):
        answers.append((Future(), log(partition, timestamp_ms)))
        return answers[-1][0]

    bench.reader._catalogue.log = held_back
    bench.poll()
    bench.store.end_session()
    bench.nodes.away = True
    for future, answer in answers:
        future.set_result(answer.result())
    bench.poll()
    assert bench.emit() == []
    bench.nodes.away = False
    bench.poll()
    assert len(bench.emit()) == 3


def test_a_partition_that_is_not_ours_for_the_moment_is_paused():
    """Promise 10: what is fetched and may not be emitted is bounded."""
    bench = Bench(assignment={"window": Window(max_pending=10)}, fetch_records=4)
    bench.start()
    bench.fill(ONE, 400)
    bench.nodes.away = True
    bench.store.end_session()
    for now in range(1, 50):
        bench.poll(float(now), times=1)
        bench.reader.fetch(float(now), 0.0)
    one = next(bench.reader.statistics(50.0))
    assert one.ledger.waiting <= 8
    bench.nodes.away = False
    bench.work(50, 150)
    assert bench.stored() == 400


def test_a_jump_that_landed_as_its_session_ended_is_not_taken_back():
    """Promise 2: no frontier of before is stored until the partition starts anew."""
    bench = Bench(start=SKIP_LOSS)
    bench.fill(ONE, 5)
    bench.start()
    bench.drain(1.0)
    bench.fill(ONE, 25)
    bench.log.delete_before(ONE, 30)
    move, moved = bench.store.move, []

    def lost(partition, position, reason):
        move(partition, position, reason).result()
        bench.store.end_session()
        moved.append(Future())
        moved[-1].set_exception(OwnershipLost(partition))
        return moved[-1]

    bench.store.move = lost
    bench.emit(2.0)
    bench.poll(2.0, times=1)
    bench.store.move = move
    for now in range(3, 12):
        bench.poll(float(now), times=1)
        bench.reader.commit(float(now), force=True)
    assert moved
    assert not bench.reader.halted()
    assert bench.stored() == 30


def test_a_halted_partition_s_last_frontier_is_stored_after_a_session_s_end_too():
    """Promise 16: a drain does not wait in vain for a commit that is refused each time."""
    bench = Bench()
    bench.fill(ONE, 5)
    bench.fill(TWO, 1)
    bench.log.corrupt(ONE, 3)
    bench.start()
    for now in range(1, 9):
        bench.ack(bench.emit(float(now)))
        bench.poll(float(now))
    assert list(bench.reader.halted()) == [ONE]
    bench.store.end_session()
    for now in range(20, 25):
        bench.poll(float(now))
        bench.reader.commit(float(now), force=True)
    assert bench.stored() == 3
    assert bench.reader.is_committed


def test_a_session_that_ended_just_before_the_last_commit_is_waited_out():
    """Promise 16."""
    bench = Bench()
    bench.fill(ONE, 5)
    bench.start()
    bench.ack(bench.emit())
    bench.store.end_session()
    bench.reader.commit(1.0, force=True)
    bench.reader.commit(1.0, force=True)
    assert not bench.reader.is_committed
    bench.reader.poll(1.0, opens=False)
    bench.reader.commit(1.0, force=True)
    assert bench.reader.is_committed
    assert bench.stored() == 5


def test_trouble_that_passed_is_forgotten_once_the_place_was_read():
    bench = Bench()
    bench.fill(ONE, 3)
    bench.start()
    bench.drain(1.0)
    for now in range(2, 12):
        bench.reader._assignment.fail(ONE, OffsetOutOfRange(ONE, 3))
        bench.work(now, now + 1)
        bench.emit(float(now))
    assert not bench.reader.halted()


def test_a_drain_opens_nothing_new():
    """Promise 16."""
    bench = Bench()
    bench.fill(ONE, 1)
    bench.reader.open()
    for _ in range(5):
        bench.reader.poll(0.0, opens=False)
    assert bench.events == []


def test_of_many_errors_one_that_says_what_is_wrong_is_raised():
    bench = Bench()
    bench.fill(TWO, 3)
    bench.start()
    bench.reader._assignment.refuse(ONE, Fenced(ONE, "another"))
    bench.log.corrupt(TWO, 3)
    bench.fill(TWO, 1)
    with pytest.raises(CorruptRecord):
        bench.work(1, 9)


def test_a_partition_that_was_taken_while_the_session_was_over_is_halted():
    """Promise 9."""
    bench = Bench()
    bench.fill(ONE, 5)
    bench.start()
    owners = bench.emit()
    bench.nodes.end_session()
    other = MemoryStore(bench.nodes)
    other.open()
    other.claim(ONE).result()
    bench.ack(owners)
    bench.reader.commit(1.0)
    bench.reader.commit(2.0)
    bench.poll(2.0)
    assert list(bench.reader.halted()) == [ONE]
    assert bench.stored() == 0


def test_lost_records_raise_when_every_partition_has_them():
    bench = Bench()
    bench.fill(ONE, 3)
    bench.fill(TWO, 3)
    bench.start()
    bench.drain(1.0)
    bench.reader.close()
    bench.log.recreate_topic("t", 2)
    bench.reader = bench.another()
    with pytest.raises(SourceLost):
        bench.start()
