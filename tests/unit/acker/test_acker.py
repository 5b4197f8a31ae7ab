from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker.acker import Acker, TooManyTrees
from benchmarks.acker import bytes_per_tree


def array(*numbers):
    return np.array(numbers, np.int64)


def edges(*numbers):
    return np.array(numbers, np.uint64)


def acker(**options):
    return Acker(timeout_seconds=30, **options)


def test_trees_in_flight_are_limited():
    """Storm 47: what is never acked does not grow without end."""
    trees = acker(capacity=2, max_trees=4)
    one = trees.begin(array(1))
    trees.begin(array(2, 3, 4))
    with pytest.raises(TooManyTrees, match="4 trees"):
        trees.begin(array(5))
    trees.init(one, edges(0))
    trees.begin(array(5))
    assert trees.in_flight == 4


UNKNOWN = (0, 5, 1023, 1024, 2**31, 2**32 - 1, 1 << 40, 2**62, 2**63 - 1, -1, -(2**63))


@pytest.mark.parametrize("in_flight", [0, 1])
def test_messages_for_unknown_trees_are_ignored(in_flight):
    """Promise 5, Storm 46: no message makes a ghost entry, whatever handle it names."""
    trees = acker()
    trees.begin(array(9)[:in_flight])
    unknown = array(*UNKNOWN)
    trees.init(unknown, np.arange(len(unknown)).astype(np.uint64))
    trees.ack(unknown, np.arange(len(unknown)).astype(np.uint64))
    trees.fail(unknown)
    trees.mark(unknown, 1)
    trees.reset_timeout(unknown)
    assert trees.owners(unknown).tolist() == [-1] * len(UNKNOWN)
    assert trees.statistics().ignored == 5 * len(UNKNOWN)
    assert trees.in_flight == in_flight


@pytest.mark.parametrize("flags", [-1, 32])
def test_flags_above_five_bits_are_an_error(flags):
    trees = acker()
    tree = trees.begin(array(1))
    with pytest.raises(ValueError, match="0 to 31"):
        trees.mark(tree, flags)
    trees.init(tree, edges(3))
    trees.ack(tree, edges(3))
    resolved = trees.drain()
    assert (resolved.acked.tolist(), resolved.acked_flags.tolist()) == ([1], [0])


def test_discarded_trees_have_no_outcome():
    trees = acker()
    found = trees.begin(array(1, 2, 3))
    trees.init(found[:2], edges(5, 6))  # the third waits for its first message
    trees.discard(lambda owners: owners != 2)
    trees.ack(found, edges(5, 6, 7))
    trees.init(found[2:], edges(7))
    assert trees.drain().acked.tolist() == [2]
    assert trees.in_flight == 0
    assert trees.statistics().ignored == 3
    again = trees.begin(array(1, 3))
    trees.init(again, edges(8, 9))
    trees.ack(found, edges(5, 6, 7))
    trees.ack(again, edges(8, 9))
    assert sorted(trees.drain().acked.tolist()) == [1, 3]


PLACE = 3 << 48


@pytest.mark.parametrize("in_flight", [200_000, 1_000_000])
def test_tree_in_flight_takes_at_most_20_bytes(in_flight):
    assert bytes_per_tree(in_flight) <= 20


def test_free_slots_take_memory_only_when_free():
    trees = acker()
    for _turn in range(3):
        handles = trees.begin(np.arange(100_000))
        assert trees.statistics().bytes_held < 20 * trees.statistics().capacity
        trees.init(handles, np.zeros(100_000, np.uint64))
        assert trees.statistics().bytes_held <= 23 * trees.statistics().capacity
        assert sorted(trees.drain().acked.tolist()) == list(range(100_000))


@pytest.mark.parametrize("owner", [0, 1, 2**23, 2**48 - 1, PLACE + 77, 2**62, 2**63 - 1])
def test_owner_of_63_bits_is_returned(owner):
    trees = acker()
    tree = trees.begin(array(owner))
    assert tree[0] >= 0
    assert trees.owners(tree).tolist() == [owner]
    trees.init(tree, edges(0))
    assert trees.drain().acked.tolist() == [owner]


@pytest.mark.parametrize("reuses", [*range(1, 256), 256, 512])
def test_stale_handle_never_changes_the_next_tree(reuses):
    """The generation tells 1 to 255 reuses from each other, the owner's bits the 256th."""
    trees = acker(capacity=1)
    old = trees.begin(array(PLACE))
    trees.init(old, edges(0))
    for offset in range(1, reuses):
        trees.init(trees.begin(array(PLACE + offset)), edges(0))
    new = trees.begin(array(PLACE + reuses))
    trees.init(new, edges(5))
    assert old[0] & 0xFFFFFFFF == new[0] & 0xFFFFFFFF
    trees.drain()
    trees.ack(old, edges(5))
    trees.fail(old)
    trees.mark(old, 1)
    assert trees.owners(old).tolist() == [-1]
    assert trees.owners(new).tolist() == [PLACE + reuses]
    assert trees.statistics().ignored == 3
    trees.ack(new, edges(5))
    resolved = trees.drain()
    assert (resolved.acked.tolist(), resolved.acked_flags.tolist()) == ([PLACE + reuses], [0])


def test_stale_handle_is_mistaken_after_256_reuses_only():
    """The stated bound: the slot, the generation and 23 bits of the owner are all the same."""
    trees = acker(capacity=1)
    old = trees.begin(array(PLACE))
    trees.init(old, edges(0))
    for _reuse in range(255):
        trees.init(trees.begin(array(PLACE)), edges(0))
    assert trees.begin(array((5 << 48) + 2**23)).tolist() == old.tolist()
    assert trees.begin(array(PLACE)).tolist() != old.tolist()


# One message each of a bolt that joins the tuples of two records into one.
MESSAGES = {
    "init a": lambda trees, both: trees.init(both[:1], edges(1)),
    "init b": lambda trees, both: trees.init(both[1:], edges(2)),
    "anchor": lambda trees, both: trees.ack(both, edges(4, 8)),
    "ack a": lambda trees, both: trees.ack(both[:1], edges(1)),
    "ack b": lambda trees, both: trees.ack(both[1:], edges(2)),
    "acked": lambda trees, both: trees.ack(both, edges(4, 8)),
    "failed": lambda trees, both: trees.fail(both),
}


@pytest.mark.parametrize(("end", "other"), [("acked", "failed"), ("failed", "acked")])
def test_joined_records_end_with_their_join(end, other):
    """Promises 4 and 6: in every order of the messages, and whatever else of them is acked.

    Storm 52: no message relies on another to have come before it.
    """
    for order in permutations(MESSAGES.keys() - {other}):
        if min(order.index("ack a"), order.index("ack b")) < order.index("anchor"):
            continue
        trees = acker()
        both = trees.begin(array(10, 20))
        found = {"acked": [], "failed": []}
        for place, name in enumerate(order):
            MESSAGES[name](trees, both)
            resolved = trees.drain()
            found["acked"] += resolved.acked.tolist()
            found["failed"] += resolved.failed.tolist()
            assert end in order[: place + 1] or found == {"acked": [], "failed": []}, order
        assert sorted(found[end]) == [10, 20], order
        assert found[other] == [], order
        assert end == "failed" or trees.statistics().ignored == 0, order


SLACK = 1e-6  # of float sums


def expires_at(trees, now, gaps):
    """Call `expire` until the one tree has expired; gaps are a cycle of seconds."""
    for turn in range(200_000):
        if len(trees.drain().expired):
            return now
        now += gaps[turn % len(gaps)]
        trees.expire(now)
    raise AssertionError("the tree did not expire")


timeouts = st.floats(0.5, 600)
parts = st.lists(st.floats(0.01, 0.5), min_size=1, max_size=5)  # of a tick, between calls


@given(timeouts, parts, st.integers(0, 40), st.floats(0, 1), st.booleans())
def test_a_tree_expires_between_the_timeout_and_one_tick_more(
    timeout, gaps, calls_before, moment, has_init
):
    """Storm 46: T <= age <= T + tick + (n + 1) * d, by calls at most d apart."""
    trees = Acker(timeout_seconds=timeout)
    tick = trees.tick_seconds
    assert tick == pytest.approx(timeout / 8)
    gaps = [part * tick for part in gaps]
    now = 0.0
    trees.expire(now)
    for turn in range(calls_before):
        now += gaps[turn % len(gaps)]
        trees.expire(now)
    begun = now + moment * gaps[0]  # at any moment between two calls
    tree = trees.begin(array(1))
    if has_init:
        trees.init(tree, edges(5))
    age = expires_at(trees, now, gaps) - begun
    assert timeout - SLACK <= age <= timeout + tick + 9 * max(gaps) + gaps[0] + SLACK
    assert trees.in_flight == 0
    trees.ack(tree, edges(5))
    assert trees.statistics().ignored == 1


@given(timeouts, st.floats(0.01, 40), st.floats(1, 40), parts, st.integers(0, 12))
def test_bolt_timeout_has_the_same_bounds(timeout, factor, longest_factor, gaps, calls_before):
    """Storm 52: also when the reset comes before init."""
    seconds, longest = timeout * min(factor, longest_factor), timeout * longest_factor
    trees = Acker(timeout_seconds=timeout, longest_seconds=longest)
    tick = trees.tick_seconds
    assert tick <= max(timeout / 8, timeout)
    gaps = [part * tick for part in gaps]
    now = 0.0
    trees.expire(now)
    tree = trees.begin(array(1))
    begun = now
    for turn in range(calls_before):
        now += gaps[turn % len(gaps)]
        trees.expire(now)
    if len(trees.drain().expired):
        return
    trees.reset_timeout(tree, seconds)
    trees.init(tree, edges(5))
    ended = expires_at(trees, now, gaps)
    earliest = max(begun + timeout, now + seconds)
    assert ended >= earliest - SLACK
    # Two ticks: one as everywhere, one to make the bolt's seconds a whole number of them.
    advances = max(timeout, seconds) / tick + 3
    assert ended <= earliest + 2 * tick + advances * max(gaps) + SLACK


def test_timeout_above_the_longest_is_an_error():
    trees = Acker(timeout_seconds=7, longest_seconds=20)
    tree = trees.begin(array(1))
    trees.reset_timeout(tree, 20)
    with pytest.raises(ValueError, match=r"20\.5 s, expected at most 20"):
        trees.reset_timeout(tree, 20.5)


def test_one_call_ends_one_tick():
    trees = Acker(timeout_seconds=8)
    trees.expire(0)
    trees.init(trees.begin(array(1)), edges(5))
    for call in range(8):
        trees.expire(1000 + 100 * call)
        assert len(trees.drain().expired) == 0
    trees.expire(2000)
    assert trees.drain().expired.tolist() == [1]


def test_reset_keeps_a_slow_tree_alive():
    """Storm 38: what waits is slow, not lost, and does not time out."""
    trees = Acker(timeout_seconds=7)
    trees.expire(0)
    tree = trees.begin(array(1))
    trees.init(tree, edges(5))
    for second in range(600):
        trees.reset_timeout(tree)
        trees.expire(second)
    trees.ack(tree, edges(5))
    assert trees.drain().acked.tolist() == [1]
