import pytest

from sinks.shares import check_fences, is_to_commit
from topology.errors import SinkFailed, SinkFenced
from topology.sink import Committed, Fence, Share


def share(txid: int, line: str = "orders[0]", epoch: int = 3) -> Share:
    return Share(line, epoch, txid, 1, txid, txid + 1, "0" * 32, 1)


def found(txid: int, line: str = "orders[0]", epoch: int = 3) -> Committed:
    return Committed(line, epoch, txid)


def test_the_next_txid_of_each_line_is_to_be_committed_and_one_that_is_there_is_not() -> None:
    """Promise 14."""
    shares = [share(7), share(1, "orders[1]")]
    assert is_to_commit(shares, [found(6), found(0, "orders[1]")])
    assert not is_to_commit(shares, [found(7), found(4, "orders[1]")])
    assert is_to_commit([], []), "rows of no transaction"


def test_a_group_of_which_some_is_there_is_not_committed() -> None:
    with pytest.raises(SinkFailed, match=r"orders\[1\] 1 is not committed, but others"):
        is_to_commit([share(7), share(1, "orders[1]")], [found(7), found(0, "orders[1]")])


@pytest.mark.parametrize("has", [0, 5])
def test_a_sink_that_has_lost_what_was_committed_in_it_gets_no_more(has: int) -> None:
    """Promise 14: put back to an older state under a running service, rows would be missing."""
    with pytest.raises(SinkFailed, match=rf"up to {has}, but those up to 6 were committed"):
        is_to_commit([share(7)], [found(has)])


def test_whoever_has_a_lower_epoch_than_the_line_is_fenced_first() -> None:
    """Promise 9."""
    with pytest.raises(SinkFenced):
        is_to_commit([share(7)], [found(2, epoch=4)])
    with pytest.raises(SinkFenced):
        check_fences([Fence("orders[0]", 3)], [found(0, epoch=4)])
    check_fences([Fence("orders[0]", 3)], [found(0, epoch=3)])
