"""Partitions at the end of a session of the offset store. Fakes stand in for the servers."""

from concurrent.futures import Future

from partition.errors import (
    OwnershipLost,
)
from tests.support.consumer import ONE, SKIP_LOSS, Bench


def test_ended_session_stops_emission_until_the_claim():
    """Faults Z05: the ownership is dropped at once, not with the next commit."""
    bench = Bench()
    bench.fill(ONE, 5)
    bench.start()
    bench.reader.fetch(0.0, 0.0)
    bench.nodes.away = True
    bench.store.end_session()
    bench.poll()
    assert bench.reader.next_chunk(0.0) is None
    bench.nodes.away = False
    bench.poll()
    assert len(bench.reader.next_chunk(0.0)[0]) == 5


def test_session_end_while_opening_emits_nothing_unclaimed():
    """Promise 9."""
    bench = Bench()
    bench.fill(ONE, 3)
    bench.reader.open()
    log, answers = bench.reader._ways.catalogue.log, []

    def held_back(partition, timestamp_ms=None):
        answers.append((Future(), log(partition, timestamp_ms)))
        return answers[-1][0]

    bench.reader._ways.catalogue.log = held_back
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


def test_jump_that_landed_at_session_end_stays():
    """Promise 2: no offset of before is stored until the partition starts anew."""
    bench = Bench(start=SKIP_LOSS)
    bench.fill(ONE, 5)
    bench.start()
    bench.drain(1.0)
    bench.fill(ONE, 25)
    bench.log.delete_before(ONE, 30)
    move, moved = bench.store.move, []

    def lost(partition, position, reason, transactions):
        move(partition, position, reason, transactions).result()
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
    assert not bench.reader.assignment.halted
    assert bench.stored() == 30


def test_last_commit_waits_for_the_claim():
    """Promise 16."""
    bench = Bench()
    bench.fill(ONE, 5)
    bench.start()
    bench.ack(bench.emit())
    bench.store.end_session()
    bench.reader.commit(1.0, force=True)
    bench.reader.commit(1.0, force=True)
    assert not bench.reader.offsets.is_done
    bench.reader.poll(1.0, opens=False)
    bench.reader.commit(1.0, force=True)
    assert bench.reader.offsets.is_done
    assert bench.stored() == 5
