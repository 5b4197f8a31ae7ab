"""Ways in which Storm processed records twice, or died of an error that passes.

The entries are numbered as in docs/storm.md.
"""

from concurrent.futures import Future

from hypothesis import given
from hypothesis import strategies as st

from headrace import Record, bolt
from partition.manager import InFlightLimits
from partition.records import Partition
from partition.recovery import StartPolicy
from tests.worlds.reading import ONE, RETRY_SECONDS, TWO, Bench
from tests.worlds.running import Door, Works

_MOVES = ("fill", "gap", "emit", "ack", "fail", "commit", "elect", "end_session", "restart")


@bolt
def text(record: Record) -> str:
    return (record.value or b"").decode()


def offsets(bench: Bench, record_ids: list[int]) -> list[int]:
    return [bench.message(record_id).offset() for record_id in record_ids]


def test_partitions_of_one_number_are_told_apart_by_their_topic():
    """Storm 25: an ack reaches the partition of its own topic, and both commit."""
    bench = Bench(sources=["t", "u"])
    bench.log.create_topic("u")
    other = Partition("u", 0)
    bench.fill(ONE, 3)
    bench.fill(other, 3)
    bench.start()
    record_ids = bench.emit()
    assert len(set(record_ids)) == 6
    of_other = [o for o in record_ids if bench.message(o).topic() == "u"]
    bench.ack(of_other)
    bench.drain(1.0)
    assert (bench.stored(ONE), bench.stored(other)) == (0, 3)
    bench.ack([o for o in record_ids if o not in of_other])
    bench.drain(2.0)
    assert bench.stored(ONE) == 3


def test_a_new_leader_repeats_nothing_and_forgets_nothing():
    """Storm 30: pending, waiting, failed and committed are the partition's, not the leader's."""
    bench = Bench()
    bench.fill(ONE, 4)
    bench.start()
    record_ids = bench.emit()
    bench.ack(record_ids[:1])
    bench.reader.fail(record_ids[1], 0.0)
    bench.log.elect(ONE)
    bench.fill(ONE, 2)
    bench.poll(0.5)
    assert offsets(bench, bench.emit(0.5)) == [4, 5]
    assert bench.emit(RETRY_SECONDS) == [record_ids[1]]
    bench.ack([*record_ids[1:], *[record_ids[0] + n for n in (4, 5)]])
    bench.drain(2.0)
    assert bench.stored() == 6


def test_answers_that_come_after_their_partition_was_begun_anew_change_nothing():
    """Storm 31: late acks and fails raise nothing and are counted."""
    bench = Bench(start=StartPolicy(on_data_loss="skip"))
    bench.fill(ONE, 5)
    bench.start()
    old = bench.emit()
    bench.ack(old)
    bench.log.truncate(ONE, 2)
    bench.fill(ONE, 1)
    bench.emit(2.0)
    bench.poll(2.0)
    bench.ack(old)
    assert bench.reader.fail(old[2], 2.0)
    ledger = next(bench.reader.statistics(2.0)).ledger
    assert (ledger.last_completed_offset, ledger.ignored) == (2, 6)
    assert offsets(bench, bench.emit(3.0)) == [2]


class Reading:
    """A reader that is pushed about; every emission is checked."""

    def __init__(self) -> None:
        window = InFlightLimits(max_pending=8)
        self.bench = Bench(assignment={"limits": window}, chunk_records=3, fetch_records=4)
        self.bench.fill(ONE, 5)
        self.bench.start()
        self.pending: list[int] = []
        self.acked: set[int] = set()

    def fill(self, number: int, _now: float) -> None:
        self.bench.fill(ONE, number)

    def gap(self, number: int, _now: float) -> None:
        self.bench.log.append_gap(ONE, number)

    def elect(self, _number: int, _now: float) -> None:
        self.bench.log.elect(ONE)

    def emit(self, _number: int, now: float) -> None:
        emitted = self.bench.emit(now)
        found = offsets(self.bench, emitted)
        assert all(offset >= (self.bench.stored() or 0) for offset in found)
        assert not self.acked & set(found)
        self.pending += emitted

    def ack(self, number: int, _now: float) -> None:
        if self.pending:
            record_id = self.pending.pop(number % len(self.pending))
            self.acked |= set(offsets(self.bench, [record_id]))
            self.bench.ack([record_id])

    def fail(self, number: int, now: float) -> None:
        if self.pending:
            record_id = self.pending.pop(number % len(self.pending))
            if not self.bench.reader.fail(record_id, now):
                self.pending.append(record_id)

    def commit(self, _number: int, now: float) -> None:
        self.bench.reader.commit(now, force=True)

    def end_session(self, _number: int, _now: float) -> None:
        self.bench.store.end_session()

    def restart(self, _number: int, _now: float) -> None:
        self.bench.restart()
        self.pending, self.acked = [], set()


@given(st.lists(st.tuples(st.sampled_from(_MOVES), st.integers(0, 9)), max_size=60))
def test_nothing_below_the_stored_offset_is_ever_emitted(moves):
    """Storm 32: whatever was buffered, failed, or read again after a restart."""
    reading = Reading()
    for turn, (move, number) in enumerate(moves):
        getattr(reading, move)(number, turn * 0.3)
        reading.bench.poll(turn * 0.3)


def test_a_session_that_ends_under_a_commit_ends_nothing():
    """Storm 33: the partition is claimed again, and the commit made good."""
    bench = Bench()
    bench.fill(ONE, 3)
    bench.start()
    bench.ack(bench.emit())
    bench.store.end_session()
    bench.reader.commit(1.0)
    bench.reader.commit(2.0)
    bench.poll(2.0)
    assert not bench.reader.assignment.halted
    bench.fill(TWO, 2)
    bench.work(3, 6)
    assert (bench.stored(ONE), bench.stored(TWO)) == (3, 2)


def test_a_commit_that_is_not_answered_holds_no_record_up():
    """Storm 33: records flow, and the frontier of then is stored when the answer has come."""
    bench = Bench()
    bench.start()
    bench.store.holding = True
    for now in range(1, 5):
        bench.fill(ONE, 2)
        bench.ack(bench.emit())
        bench.reader.commit(float(now), force=True)
    assert bench.store.commits == [{ONE: 2}]
    waiting: Future[dict[Partition, Exception]] = bench.store.open_commits[0]
    bench.store.holding = False
    waiting.set_result({})
    bench.drain(6.0)
    assert bench.stored() == 8


def test_one_failure_repeats_one_record():
    """Storm 35: what came after the failed record is not given again."""
    bench = Bench()
    bench.fill(ONE, 100)
    bench.start()
    record_ids = bench.emit()
    bench.ack(record_ids[50:])
    assert bench.reader.fail(record_ids[10], 0.0)
    assert bench.emit(10.0) == [record_ids[10]]
    bench.ack(record_ids[:50])
    assert bench.emit(20.0) == []
    assert bench.drain(30.0) == 0
    assert bench.stored() == 100


def test_waiting_for_a_slow_sink_does_not_use_up_a_records_time():
    """Storm 38: no storm of retries while rows queue up, however long the sink takes."""
    with Works(text, timeout_seconds=2.0, batch_rows=1, fetch_records=1) as works:
        works.sink.gate.clear()
        works.send(*[b"a"] * 20)
        works.until(works.sink.asked.is_set)
        works.advance(10.0)
        works.sink.gate.set()
        works.finish()
        assert works.pipeline.statistics().acker.expired == 0
        assert works.sink.rows == ["a"] * 20


def test_waiting_for_a_worker_does_not_use_up_a_records_time():
    """Storm 38: values that wait behind a slow call are not tried again for that."""
    door = Door()
    with Works(door.as_bolt(), timeout_seconds=2.0) as works:
        works.send(b"slow", b"a", b"b")
        works.until(lambda: door.calls == ["slow"])
        works.advance(10.0)
        door.open()
        works.finish()
        assert works.pipeline.statistics().acker.expired == 1
        assert sorted(door.calls) == ["a", "b", "slow", "slow"]


def test_an_answer_to_a_try_that_has_timed_out_changes_nothing():
    """Storm 31: the record's next try is the one that counts, and there is one row."""
    door = Door()
    with Works(door.as_bolt(), workers=2, timeout_seconds=4.0) as works:
        works.send(b"a")
        works.until(lambda: door.calls == ["a"])
        works.advance(8.0)
        works.finish()
        door.open()
        works.until(lambda: door.answered == 2)
        works.turn(3)
        assert works.sink.rows == ["a"]
        assert works.letters_sink.letters == []
