"""Time-outs: the stated bounds for the moment at which a tree expires."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker.acker import Acker

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
