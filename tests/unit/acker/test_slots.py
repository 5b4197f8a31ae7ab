"""Slots: what a tree costs, and that no handle outlives its tree."""

import numpy as np
import pytest

from acker.acker import Acker
from benchmarks.acker import bytes_per_tree

PLACE = 3 << 48


def array(*numbers):
    return np.array(numbers, np.int64)


def edges(*numbers):
    return np.array(numbers, np.uint64)


@pytest.mark.parametrize("in_flight", [200_000, 1_000_000])
def test_a_tree_in_flight_takes_at_most_twenty_bytes(in_flight):
    assert bytes_per_tree(in_flight) <= 20


def test_the_stack_of_free_slots_is_small_while_they_are_used_and_grows_when_they_are_not():
    trees = Acker(timeout_seconds=30)
    for _turn in range(3):
        handles = trees.begin(np.arange(100_000))
        assert trees.statistics().bytes_held < 20 * trees.statistics().capacity
        trees.init(handles, np.zeros(100_000, np.uint64))
        assert trees.statistics().bytes_held <= 23 * trees.statistics().capacity
        assert sorted(trees.drain().acked.tolist()) == list(range(100_000))


@pytest.mark.parametrize("owner", [0, 1, 2**23, 2**48 - 1, PLACE + 77, 2**62, 2**63 - 1])
def test_an_owner_of_63_bits_comes_back_as_it_was(owner):
    trees = Acker(timeout_seconds=30)
    tree = trees.begin(array(owner))
    assert tree[0] >= 0
    assert trees.owners(tree).tolist() == [owner]
    trees.init(tree, edges(0))
    assert trees.drain().acked.tolist() == [owner]


@pytest.mark.parametrize("reuses", [*range(1, 256), 256, 512])
def test_a_stale_handle_never_touches_the_slots_next_tree(reuses):
    """The generation tells 1 to 255 reuses from each other, the owner's bits the 256th."""
    trees = Acker(timeout_seconds=30, capacity=1)
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
def test_a_stale_handle_of_a_free_slot_is_ignored_whoever_it_belonged_to(reuses):
    """Also after 256 reuses by the same record: a slot that is free has no live handle."""
    trees = Acker(timeout_seconds=30, capacity=1)
    old = trees.begin(array(PLACE))
    trees.init(old, edges(0))
    for _reuse in range(reuses):
        trees.init(trees.begin(array(PLACE)), edges(0))
    trees.drain()
    trees.ack(old, edges(0))
    assert len(trees.drain().acked) == 0
    assert trees.statistics().ignored == 1


def test_a_stale_handle_is_mistaken_only_after_256_reuses_by_the_same_23_bits_of_owner():
    """The stated bound: the slot, the generation and 23 bits of the owner are all the same."""
    trees = Acker(timeout_seconds=30, capacity=1)
    old = trees.begin(array(PLACE))
    trees.init(old, edges(0))
    for _reuse in range(255):
        trees.init(trees.begin(array(PLACE)), edges(0))
    assert trees.begin(array((5 << 48) + 2**23)).tolist() == old.tolist()
    assert trees.begin(array(PLACE)).tolist() != old.tolist()
