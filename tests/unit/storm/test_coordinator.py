"""Ways in which Storm's transactions lost, mixed or repeated batches.

The entries are numbered as in docs/storm.md.
"""

import pytest

from partition.interfaces import StoredOffset
from partition.records import OpenTransaction, Partition, Position, Range, Resumed, Transactions
from tests.support.transactions import resume, store
from transactions.transaction import OutOfOrder, Phase, TransactionPolicy, resumed

DIGEST = "0" * 32


def transactions(max_active=3, *, topic="t", kind="transactional", goes_on=None):
    """Transactions whose records others read."""
    policy = TransactionPolicy(kind, max_active=max_active, by_executors=True)
    goes_on = goes_on or Resumed(Position(0), Transactions(kind))
    return resume(Partition(topic, 0), goes_on, policy)


def read(line, txid, attempt=None):
    """An attempt, the live one unless it is said, has read ten records."""
    live = line.transaction_of(txid).attempt
    return line.read(txid, live if attempt is None else attempt, 10, DIGEST, None)


def commit(line):
    """Everything of the lowest open transaction is done, up to its commit."""
    txid = line.committed + 1
    store(line)
    read(line, txid)
    store(line)
    line.take(txid)
    return line.done(txid)


def opened(line):
    return line.to_store().open


@pytest.mark.parametrize("phase", ["planned", "stored", "processed"])
def test_late_failure_leaves_the_live_attempt_alone(phase):
    """Storm 40: attempts are compared before anything is forgotten."""
    line = transactions()
    line.begin(10)
    store(line)
    line.fail(1)
    if phase != "planned":
        store(line)
    if phase == "processed":
        assert read(line, 1)
    before = opened(line), line.transaction_of(1).phase, line.is_recorded(1)
    assert not read(line, 1, attempt=1)
    assert (opened(line), line.transaction_of(1).phase, line.is_recorded(1)) == before
    assert commit(line).end == 10


def test_equal_txids_differ_by_partition_and_attempt():
    """Storm 43: what one partition hears of its txid changes no other's, nor another attempt."""
    orders, flights = transactions(topic="orders"), transactions(topic="flights")
    assert orders.begin(10).txid == flights.begin(10).txid
    orders.fail(1)
    store(orders)
    store(flights)
    assert not read(orders, 1, attempt=1)
    assert read(flights, 1)
    assert orders.transaction_of(1).phase is Phase.PLANNED
    assert flights.transaction_of(1).phase is Phase.PROCESSED


def test_nothing_is_committed_before_all_of_it_is_processed():
    """Storm 44: nor is it done before a commit was asked for."""
    line = transactions()
    line.begin(10)
    for step in (lambda: store(line), lambda: read(line, 1)):
        for early in (line.take, line.done):
            with pytest.raises(OutOfOrder):
                early(1)
        step()
    store(line)
    assert line.committed == 0
    with pytest.raises(OutOfOrder):
        line.done(1)
    line.take(1)
    assert line.done(1) == Range(0, 10, 10, DIGEST)


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize("has", [6, 7, 8])
def test_crash_after_the_sink_commit_commits_nothing_twice(kind, has):
    """Storm 45: the sink's own txid says what it has."""
    ranges = [Range(10 * i, 10 * (i + 1), 10, "0" * 32) for i in range(2)]
    open_ = tuple(OpenTransaction(7 + i, 1, each) for i, each in enumerate(ranges))
    stored = StoredOffset(Position(0), "t", transactions=Transactions(kind, 6, open_))
    again = resumed(Partition("t", 0), stored, {"sink": has}, kind)
    assert again.transactions.committed == has
    assert again.position.offset == 10 * (has - 6)
    assert all(each.txid > has for each in again.transactions.open)
    line = transactions(kind=kind, goes_on=again)
    while opened(line):
        assert commit(line).first == 10 * (line.committed - 7)
    assert line.begin(30).txid == line.committed + 1
