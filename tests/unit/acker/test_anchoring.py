"""Multi-anchoring: one tuple under several trees."""

from itertools import permutations

import numpy as np

from acker.acker import Acker

A, B, JOINED_IN_A, JOINED_IN_B = 1, 2, 4, 8


def array(*numbers):
    return np.array(numbers, np.int64)


def edges(*numbers):
    return np.array(numbers, np.uint64)


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
    trees = Acker(timeout_seconds=30)
    return trees, trees.begin(array(10, 20))


def test_two_records_complete_only_when_what_was_joined_from_them_is_acked():
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


def test_what_was_joined_fails_both_records():
    """Promise 4: in every order, and whatever else of them is acked."""
    for order in orders("init a", "init b", "anchor", "ack a", "ack b", "fail joined"):
        trees, handles = begun()
        for name in order:
            message(trees, handles, name)
        resolved = trees.drain()
        assert sorted(resolved.failed.tolist()) == [10, 20], order
        assert resolved.acked.tolist() == [], order
