"""Time-outs: the stated bounds for the moment at which a tree expires."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker.acker import Acker, Wheel

SLACK = 1e-6  # of float sums


def array(*numbers):
    return np.array(numbers, np.int64)


def edges(*numbers):
    return np.array(numbers, np.uint64)


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


@given(timeouts, st.floats(1, 300))
def test_tick_is_an_eighth_of_the_timeout_or_longer(timeout, factor):
    wheel = Wheel(timeout, timeout * factor)
    assert wheel.tick_seconds >= timeout / 8 * (1 - 1e-9)
    assert wheel.tick_seconds * 254 >= timeout * factor * (1 - 1e-9)
    assert wheel.tick_seconds <= max(timeout / 8, 2 * timeout * factor / 254) * (1 + 1e-9)
    assert wheel.advances(timeout * factor) <= 255


def test_timeout_above_the_longest_is_an_error():
    trees = Acker(timeout_seconds=7, longest_seconds=20)
    tree = trees.begin(array(1))
    trees.reset_timeout(tree, 20)
    with pytest.raises(ValueError, match=r"20\.5 s; at most 20"):
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


def test_quick_calls_after_a_pause_end_one_tick():
    trees = Acker(timeout_seconds=8)
    trees.expire(0)
    trees.begin(array(1))
    for call in range(100):
        trees.expire(1000 + call / 100)
    assert trees.in_flight == 1


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


def test_failed_tree_without_init_expires():
    """Storm 46: whatever is missing, an entry is gone after its time."""
    trees = Acker(timeout_seconds=8)
    trees.expire(0)
    two = trees.begin(array(1, 2))
    trees.fail(two[:1])
    trees.ack(two[1:], edges(9))
    for second in range(12):
        trees.expire(second)
    assert sorted(trees.drain().expired.tolist()) == [1, 2]
    assert trees.in_flight == trees._table.waiting == trees._table.doomed == 0
    later = trees.begin(array(4))
    trees.init(later, edges(5))
    trees.ack(later, edges(5))
    assert trees.drain().acked.tolist() == [4]
