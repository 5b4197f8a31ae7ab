"""The XOR acker: trees complete, fail and expire once, whatever the order of the messages."""

import random
from functools import reduce
from itertools import permutations
from operator import xor

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


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_messages_in_any_order_give_the_same_result(sizes, rng: random.Random):
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


def test_owner_is_held_until_its_outcome_is_drained():
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


# Slots


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


@pytest.mark.parametrize("reuses", [0, 255, 256])
def test_stale_handle_of_a_free_slot_is_ignored(reuses):
    """Also after 256 reuses by the same record: a slot that is free has no live handle."""
    trees = acker(capacity=1)
    old = trees.begin(array(PLACE))
    trees.init(old, edges(0))
    for _reuse in range(reuses):
        trees.init(trees.begin(array(PLACE)), edges(0))
    trees.drain()
    trees.ack(old, edges(0))
    assert len(trees.drain().acked) == 0
    assert trees.statistics().ignored == 1


def test_stale_handle_is_mistaken_after_256_reuses_only():
    """The stated bound: the slot, the generation and 23 bits of the owner are all the same."""
    trees = acker(capacity=1)
    old = trees.begin(array(PLACE))
    trees.init(old, edges(0))
    for _reuse in range(255):
        trees.init(trees.begin(array(PLACE)), edges(0))
    assert trees.begin(array((5 << 48) + 2**23)).tolist() == old.tolist()
    assert trees.begin(array(PLACE)).tolist() != old.tolist()


# A tuple under several trees


A, B, JOINED_IN_A, JOINED_IN_B = 1, 2, 4, 8


def message(trees, handles, name):
    """One message of a bolt that joins the tuples of two records into one."""
    first, second = handles[:1], handles[1:]
    if name == "init a":
        trees.init(first, edges(A))
    elif name == "init b":
        trees.init(second, edges(B))
    elif name == "anchor":
        trees.ack(handles, edges(JOINED_IN_A, JOINED_IN_B))
    elif name == "ack a":
        trees.ack(first, edges(A))
    elif name == "ack b":
        trees.ack(second, edges(B))
    elif name == "ack joined":
        trees.ack(handles, edges(JOINED_IN_A, JOINED_IN_B))
    elif name == "fail joined":
        trees.fail(handles)


def orders(*names):
    """Every order in which the join is anchored before its inputs are acked."""
    for order in permutations(names):
        anchored = order.index("anchor")
        if all(order.index(name) > anchored for name in ("ack a", "ack b") if name in order):
            yield order


def begun():
    trees = acker()
    return trees, trees.begin(array(10, 20))


def test_joined_records_complete_with_their_join():
    """Promise 6: in every order of the messages."""
    for order in orders("init a", "init b", "anchor", "ack a", "ack b", "ack joined"):
        trees, handles = begun()
        acked = []
        for place, name in enumerate(order):
            message(trees, handles, name)
            acked += trees.drain().acked.tolist()
            if "ack joined" not in order[: place + 1]:
                assert acked == [], order
        assert sorted(acked) == [10, 20], order
        assert trees.statistics().ignored == 0, order


def test_failed_join_fails_both_records():
    """Promise 4: in every order, and whatever else of them is acked."""
    for order in orders("init a", "init b", "anchor", "ack a", "ack b", "fail joined"):
        trees, handles = begun()
        for name in order:
            message(trees, handles, name)
        resolved = trees.drain()
        assert sorted(resolved.failed.tolist()) == [10, 20], order
        assert resolved.acked.tolist() == [], order
