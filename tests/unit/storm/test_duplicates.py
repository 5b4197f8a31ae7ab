"""Ways in which Storm processed records twice, or died of an error that passes.

The entries are numbered as in docs/storm.md.
"""

from concurrent.futures import Future

from partition.records import Partition
from tests.support.consumer import ONE, RETRY_SECONDS, Bench


def offsets(bench: Bench, record_ids: list[int]) -> list[int]:
    return [bench.message(record_id).offset() for record_id in record_ids]


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


def test_a_commit_that_is_not_answered_holds_no_record_up():
    """Storm 33: records flow, and the offset of then is stored when the answer has come."""
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
