"""The XOR acker: trees complete, fail and expire once, whatever the order of the messages."""

import random
from functools import reduce
from operator import xor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker.acker import Acker
from acker.errors import TooManyTrees


def array(*numbers):
    return np.array(numbers, np.int64)


def edges(*numbers):
    return np.array(numbers, np.uint64)


def acker(**options):
    return Acker(timeout_seconds=30, **options)


def test_a_tree_completes_when_every_edge_came_back():
    trees = acker()
    tree = trees.begin(array(7))
    trees.init(tree, edges(0b101 ^ 0b011))
    trees.ack(tree, edges(0b101))
    assert trees.drain().acked.tolist() == []
    trees.ack(tree, edges(0b011))
    assert trees.drain().acked.tolist() == [7]
    assert trees.in_flight == 0


def test_a_tree_without_edges_is_complete_at_once():
    trees = acker()
    trees.init(trees.begin(array(7)), edges(0))
    assert trees.drain().acked.tolist() == [7]


def test_a_failed_tree_never_completes():
    """Promise 4: one failed child fails the tree, and siblings' later acks do not revive it."""
    trees = acker()
    tree = trees.begin(array(7))
    trees.init(tree, edges(5 ^ 9))
    trees.fail(tree)
    trees.ack(tree, edges(5 ^ 9))
    resolved = trees.drain()
    assert resolved.failed.tolist() == [7]
    assert resolved.acked.tolist() == []
    assert trees.statistics().ignored == 1


def test_a_failure_wins_when_the_value_is_zero_before_init_came():
    """Storm's acker acks a failed tree whose value happens to be zero; this one fails it."""
    trees = acker()
    tree = trees.begin(array(7))
    trees.fail(tree)
    trees.init(tree, edges(0))
    resolved = trees.drain()
    assert (resolved.acked.tolist(), resolved.failed.tolist()) == ([], [7])


def test_repeated_acks_of_a_completed_tree_are_counted_and_ignored():
    """Promise 5: a tree resolves exactly once."""
    trees = acker()
    tree = trees.begin(array(7))
    trees.init(tree, edges(5))
    trees.ack(tree, edges(5))
    trees.ack(tree, edges(5))
    trees.fail(tree)
    assert trees.drain().acked.tolist() == [7]
    assert trees.statistics().ignored == 2


def test_a_stale_handle_never_touches_the_slots_next_tree():
    trees = acker(capacity=1)
    old = trees.begin(array(1))
    trees.init(old, edges(5))
    trees.ack(old, edges(5))
    new = trees.begin(array(2))
    trees.init(new, edges(5))
    assert old[0] & 0xFFFFFFFF == new[0] & 0xFFFFFFFF
    trees.ack(old, edges(5))
    trees.fail(old)
    trees.mark(old, 1)
    assert trees.owners(old).tolist() == [-1]
    assert trees.owners(new).tolist() == [2]
    assert trees.in_flight == 1


def test_one_tree_may_stand_in_a_batch_many_times():
    trees = acker()
    two = trees.begin(array(1, 2))
    trees.init(two, edges(1 ^ 2 ^ 4, 8))
    trees.ack(array(two[0], two[1], two[0], two[0]), edges(1, 8, 2, 4))
    assert sorted(trees.drain().acked.tolist()) == [1, 2]


def test_flags_come_back_with_the_ack():
    trees = acker()
    two = trees.begin(array(1, 2))
    trees.mark(two[:1], 2)
    trees.init(two, edges(0, 0), flags=1)
    assert trees.drain().acked_flags.tolist() == [3, 1]


def test_a_tree_expires_after_its_timeout_and_at_most_a_seventh_later():
    """The stated bounds: T to T + T/7, when `expire` is called often enough."""
    for begun in (0.0, 0.5, 3.0, 4.2):
        trees = Acker(timeout_seconds=7)
        trees.expire(0)
        now = begun
        trees.expire(now)
        tree = trees.begin(array(1))
        trees.init(tree, edges(5))
        while not len(trees.drain().expired):
            now += 0.1
            trees.expire(now)
        assert 7 - 0.2 <= now - begun <= 8 + 0.2
        trees.ack(tree, edges(5))
        assert trees.statistics().ignored == 1


def test_an_owner_that_stood_still_expires_nobody_it_resets_before_it_asks():
    trees = Acker(timeout_seconds=7)
    trees.expire(0)
    tree = trees.begin(array(1))
    trees.init(tree, edges(5))
    for now in (1000, 1001, 5000):
        trees.reset_timeout(tree)
        trees.expire(now)
    assert len(trees.drain().expired) == 0


def test_a_reset_keeps_a_slow_tree_alive():
    trees = Acker(timeout_seconds=7)
    trees.expire(0)
    tree = trees.begin(array(1))
    trees.init(tree, edges(5))
    for second in range(100):
        trees.reset_timeout(tree)
        trees.expire(second)
    trees.ack(tree, edges(5))
    assert trees.drain().acked.tolist() == [1]


def test_the_bound_on_trees_in_flight_is_an_error_not_a_leak():
    trees = acker(capacity=2, max_trees=4)
    trees.begin(array(1, 2, 3, 4))
    with pytest.raises(TooManyTrees, match="4 trees"):
        trees.begin(array(5))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_any_order_of_messages_gives_the_same_result(sizes, rng: random.Random):
    """Promise 6: init, acks and fails in any order, also split into batches at random."""
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
