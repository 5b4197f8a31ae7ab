"""At most once: what is read is stored before it is emitted, so nothing is emitted twice."""

import random

import pytest

from partition.delivery import CommitBeforeEmit
from partition.interfaces import Progress
from partition.manager import InFlightLimits
from partition.records import Position
from tests.support.consumer import ONE, Bench


def ahead(window=200, **policy):
    assignment = {"delivery": CommitBeforeEmit, "limits": InFlightLimits(max_pending=window)}
    return Bench(assignment=assignment, **policy)


def turn(bench, now=0.0):
    """One turn as the pipeline does it; the owners it emits."""
    bench.reader.poll(now)
    emission = bench.reader.next_chunk(now)
    if emission is None:
        bench.reader.fetch(now, 0.0)
        emission = bench.reader.next_chunk(now)
    bench.reader.commit(now)
    return [] if emission is None else emission[1].tolist()


def test_at_most_once_stores_before_it_emits():
    bench = ahead()
    bench.start()
    bench.fill(ONE, 3)
    bench.store.holding = True
    assert turn(bench) == []
    assert bench.store.commits == [{ONE: 3}]
    assert turn(bench) == []
    bench.store.open_commits[0].set_result({})
    assert turn(bench) == []
    assert turn(bench) == [0, 1, 2]


def test_crash_at_most_once_repeats_nothing():
    bench = ahead(fetch_records=5, chunk_records=2)
    bench.start()
    bench.fill(ONE, 20)
    first = [record_id for _ in range(4) for record_id in turn(bench)]
    assert first
    stored = bench.stored()
    bench.reader = bench.another()
    bench.start()
    second = [record_id for _ in range(40) for record_id in turn(bench)]
    assert not set(first) & set(second)
    assert second == list(range(stored, 20))


@pytest.mark.parametrize("seed", range(30))
def test_at_most_once_never_emits_twice(seed):
    """Each life ends with a crash, the last one with all resolved."""
    rng = random.Random(seed)
    window = rng.choice([3, 8, 40])
    bench = ahead(window, fetch_records=rng.choice([2, 10]), chunk_records=rng.choice([1, 4, 50]))
    seen: list[int] = []
    lost: set[int] = set()
    written = 0
    lives = 6
    for life in range(lives):
        if life:
            bench.reader = bench.another()
        bench.start(float(life))
        begun_at = bench.stored()
        bench.store.holding = rng.random() < 0.7
        flying: list[int] = []
        emitted: list[int] = []
        for step in range(rng.randrange(120)):
            now = life + step / 1000
            if written < 200 and rng.random() < 0.3:
                count = rng.randrange(1, 12)
                bench.fill(ONE, count)
                written += count
            record_ids = turn(bench, now)
            emitted += record_ids
            flying += record_ids
            _answer(bench, rng)
            rng.shuffle(flying)
            for record_id in flying[: rng.randrange(4)]:
                assert rng.random() < 0.7 or not bench.reader.fail(record_id, now)
                bench.ack([record_id])
                flying.remove(record_id)
            assert len(flying) <= window
            assert all(record_id < bench.stored() for record_id in record_ids)
        seen += emitted
        skipped = set(range(begun_at, bench.stored())) - set(emitted)
        assert len(skipped | set(flying)) <= window + len(emitted) - len(flying)
        lost |= skipped
        assert len(skipped) <= window
    bench.reader = bench.another()
    bench.start(10.0)
    for step in range(600):
        record_ids = turn(bench, 10.0 + step)
        seen += record_ids
        bench.ack(record_ids)
    assert len(seen) == len(set(seen))
    assert set(seen) | lost == set(range(written))


def _answer(bench, rng):
    """Carry a commit out some time after it was asked for."""
    store = bench.store
    if store.holding and store.open_commits and rng.random() < 0.5:
        future = store.open_commits.pop()
        positions = {at: Progress(Position(to)) for at, to in store.commits[-1].items()}
        future.set_result(super(type(store), store).commit(positions).result())
