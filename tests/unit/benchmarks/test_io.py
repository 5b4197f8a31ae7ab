"""What suite io is measured by: the ideal, where the slow records are, and what was committed."""

import pytest

from benchmarks.io_variants import FAST_SECONDS, SLOW_ONE_IN, ideal_seconds, is_slow
from benchmarks.watch import Look, passed, stood_at


def test_the_ideal_of_equal_calls_is_their_number_by_the_workers():
    assert ideal_seconds(iter([FAST_SECONDS] * 1_001), 100) == pytest.approx(0.1)


def test_the_ideal_lets_the_other_workers_go_on_beside_a_slow_call():
    calls = [10.0, *[1.0] * 8, 1.0]
    assert ideal_seconds(iter(calls), 2) == pytest.approx(8.0)
    assert ideal_seconds(iter(calls), 1) == pytest.approx(18.0)


def test_one_record_in_each_thousand_is_slow_and_no_partition_is_spared():
    slow = [number for number in range(40 * SLOW_ONE_IN) if is_slow(number)]
    assert [number // SLOW_ONE_IN for number in slow] == list(range(40))
    counts = [sum(number % 4 == partition for number in slow) for partition in range(4)]
    assert counts == [10, 10, 10, 10]


def test_an_offset_that_passes_a_record_before_it_has_ended_is_found():
    ended = [(0, 5, 20.0), (0, 9, 30.0), (1, 5, 20.0)]
    looks = [
        Look(0, 5, 10.0),  # the next to read is the slow one itself
        Look(1, 7, 19.0),  # past it, one second too early
        Look(0, 6, 21.0),
        Look(0, 9, 29.0),
    ]
    assert passed(looks, ended) == [(1, 5, 20.0)]
    assert stood_at(looks, ended) == 2
    assert passed(looks[:1] + looks[2:], ended) == []
