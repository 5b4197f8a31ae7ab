"""The sampler counts each function of a stack once, and its own figures are shares."""

import sys
import threading
import time

import pytest

from benchmarks.sampling import Sampler, cpu_of_threads


def outer(sampler):
    return inner(sampler, 2)


def inner(sampler, depth):
    if depth:
        return inner(sampler, depth - 1)
    sampler.take(sys._getframe())
    return sampler.profile()


def test_a_function_that_calls_itself_counts_once_with_its_callees():
    profile = outer(Sampler())
    assert profile["samples"] == 1
    ((name, own, with_callees),) = profile["functions"]
    assert name.endswith(":inner")
    assert (own, with_callees) == (100, 100)


def test_what_was_before_or_after_the_measured_span_is_left_out():
    sampler = Sampler()
    outer(sampler)
    between = time.monotonic()
    sampler.take(sys._getframe())
    for span, name in (((between,), "test_what"), ((0.0, between), "inner")):
        profile = sampler.profile(*span)
        assert profile["samples"] == 1
        assert f":{name}" in profile["functions"][0][0]


def test_the_main_thread_is_sampled_until_the_block_ends():
    with Sampler() as sampler:
        while not sampler.profile()["functions"]:
            sum(range(10_000))
    profile = sampler.profile()
    assert profile["samples"] > 0
    assert "sampler" not in {thread.name for thread in threading.enumerate()}
    if profile["threads"]:
        assert sum(share for _name, share in profile["threads"]) == pytest.approx(100)


def test_the_owner_is_among_the_threads_where_the_kernel_tells_them():
    if sys.platform == "linux":
        assert "owner" in {name for name, _seconds in cpu_of_threads().values()}
