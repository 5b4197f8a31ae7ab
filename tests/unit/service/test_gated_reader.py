"""The reader exactly once: what is planned is stored, then emitted; what is committed, resolved."""

from partition.errors import Fenced
from tests.support.consumer import ONE, GatedBench


def started(**policy):
    bench = GatedBench(**policy)
    bench.start()
    bench.reader.commit(0.0, force=True)
    bench.reader.commit(0.0, force=True)
    bench.store.commits.clear()
    return bench


def fetched(count=10, **policy):
    """A bench with records of the first partition that wait."""
    bench = started(commit_interval_seconds=60.0, **policy)
    bench.fill(ONE, count)
    bench.reader.fetch(0.0, 0.0)
    return bench


def plan(bench, *ends):
    """Plan transactions, and say so as the committer does."""
    bench.modes[ONE].plan(*ends)
    bench.reader.offsets.note(bench.reader.manager(0))


def commit(bench, now=1.0, **how):
    """Store what is to be stored, and hear that it is."""
    bench.reader.commit(now, **how)
    bench.reader.commit(now)


def stored(bench):
    """What stands in the store."""
    found = bench.store.load(ONE)
    return found.offset, found.transactions


def test_plan_is_stored_at_once_and_emitted_then():
    """Storm 42: a transaction's record stands in ZooKeeper before its first tuple is emitted."""
    bench = fetched()
    bench.store.holding = True
    plan(bench, 4, 7)
    bench.reader.commit(1.0)
    assert bench.store.commits == [{ONE: 0}]
    assert bench.reader.next_chunk(1.0) is None
    bench.store.open_commits[0].set_result({})
    bench.reader.commit(1.0)
    assert len(bench.reader.next_chunk(1.0)[0]) == 7


def test_refused_plan_is_never_emitted():
    """Promise 9."""
    bench = fetched()
    gate, mine = bench.modes[ONE], bench.reader
    other = bench.another()
    other.open()
    for _ in range(5):
        other.poll(0.0)
    gate.plan(4)
    mine.offsets.note(mine.manager(0))
    mine.commit(1.0)
    mine.commit(1.0)
    assert isinstance(bench.loss_of(ONE), Fenced)
    assert gate.open_to == 0
    assert mine.next_chunk(1.0) is None
    assert 0 not in dict(mine.assignment.owned())


def test_partition_fenced_by_a_sink_emits_nothing():
    """Promise 9."""
    bench = fetched()
    plan(bench, 4)
    bench.reader.commit(1.0)
    bench.reader.assignment.refuse(ONE, Fenced(ONE, "epoch 9"))
    assert bench.reader.next_chunk(1.0) is None
    assert [place for place, _manager in bench.reader.assignment.owned()] == [1]
    bench.poll(1.0, times=1)
    assert bench.told[-1] == f"-{ONE}"
