"""The XOR acker: trees complete, fail and expire once, whatever the order of the messages."""

import random
from functools import reduce
from operator import xor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker.acker import Acker, TooManyTrees


def array(*numbers):
    return np.array(numbers, np.int64)


def edges(*numbers):
    return np.array(numbers, np.uint64)


def acker(**options):
    return Acker(timeout_seconds=30, **options)


def test_a_failed_tree_never_completes():
    """Promise 4: one failed child fails the tree, and siblings' later acks do not revive it.

    Storm 3: of the tuples of one record, the first ack neither completes the record nor
    undoes the failure of another.
    """
    trees = acker()
    tree = trees.begin(array(7))
    trees.init(tree, edges(5 ^ 9))
    trees.fail(tree)
    trees.ack(tree, edges(5 ^ 9))
    resolved = trees.drain()
    assert resolved.failed.tolist() == [7]
    assert resolved.acked.tolist() == []
    assert trees.statistics().ignored == 1


def test_repeated_acks_of_a_completed_tree_are_counted_and_ignored():
    """Promise 5: a tree resolves exactly once.

    Storm 31: late acks change nothing, raise nothing and are counted.
    """
    trees = acker()
    tree = trees.begin(array(7))
    trees.init(tree, edges(5))
    trees.ack(tree, edges(5))
    trees.ack(tree, edges(5))
    trees.fail(tree)
    assert trees.drain().acked.tolist() == [7]
    assert trees.statistics().ignored == 2


def test_the_bound_on_trees_in_flight_is_an_error_not_a_leak():
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
def test_messages_for_trees_that_never_were_are_counted_and_change_nothing(in_flight):
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
def test_flags_that_a_tree_has_no_bits_for_are_an_error(flags):
    trees = acker()
    tree = trees.begin(array(1))
    with pytest.raises(ValueError, match="0 to 31"):
        trees.mark(tree, flags)
    with pytest.raises(ValueError, match="0 to 31"):
        trees.init(tree, edges(1), flags)
    trees.init(tree, edges(3))
    trees.ack(tree, edges(3))
    resolved = trees.drain()
    assert (resolved.acked.tolist(), resolved.acked_flags.tolist()) == ([1], [0])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_any_order_of_messages_gives_the_same_result(sizes, rng: random.Random):
    """Promise 6: init, acks and fails in any order, also split into batches at random.

    Storm 52: no message relies on another to have come before it.
    """
    trees = acker(capacity=4)
    owners = array(*range(len(sizes)))
    handles = trees.begin(owners)
    messages = []
    expected = {}
    for owner, size in enumerate(sizes):
        ids = [1 << place for place in range(size)]  # no part of them XORs to 0
        expected[owner] = rng.random() < 0.3
        for place, one in enumerate(ids):
            lost = expected[owner] and place == 0
            messages.append(("fail", owner, 0) if lost else ("ack", owner, one))
        messages.append(("init", owner, reduce(xor, ids)))
    rng.shuffle(messages)
    acked, failed_owners = [], []
    for kind, owner, value in messages:
        one = handles[owner : owner + 1]
        if kind == "init":
            trees.init(one, edges(value))
        elif kind == "ack":
            trees.ack(one, edges(value))
        else:
            trees.fail(one)
        resolved = trees.drain()
        acked += resolved.acked.tolist()
        failed_owners += resolved.failed.tolist()
    assert sorted(acked) == [owner for owner, failed in expected.items() if not failed]
    assert sorted(failed_owners) == [owner for owner, failed in expected.items() if failed]
    assert trees.in_flight == 0


def test_discarded_trees_come_to_nothing_and_late_acks_are_ignored():
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


def test_an_owner_is_held_until_its_outcome_is_drained():
    """Who asks may give its number to another, and the outcome would count for that."""
    trees = acker()
    found = trees.begin(array(1, 2))
    trees.init(found, edges(5, 6))

    def is_one(owners):
        return owners == 1

    assert trees.holds(is_one)
    trees.ack(found[:1], edges(5))
    assert trees.holds(is_one)
    trees.drain()
    assert not trees.holds(is_one)


def test_an_edge_acked_twice_never_completes_its_tree():
    trees = acker()
    tree = trees.begin(array(7))
    trees.init(tree, edges(5))
    trees.ack(array(tree[0], tree[0]), edges(5, 5))
    assert trees.drain().acked.tolist() == []
    assert trees.in_flight == 1
