import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.flow_control import Throttle


def test_a_rate_below_one_a_second_lets_one_pass_now_and_then():
    throttle = Throttle(0.25)
    assert throttle.allows(0.0) == 1
    throttle.take(1)
    assert throttle.allows(3.8) == 0
    assert throttle.seconds_left() == pytest.approx(0.1)
    assert throttle.allows(3.9) == 1


def test_a_rate_of_which_little_is_saved_lets_that_pass():
    throttle = Throttle(1000, saved_seconds=0.004)
    assert throttle.allows(0.0) == 5


def test_a_clock_that_goes_back_gives_nothing():
    throttle = Throttle(100)
    throttle.take(throttle.allows(10.0))
    assert throttle.allows(5.0) == 0
    assert throttle.allows(10.0) == 0


@given(
    rate=st.floats(0.1, 1e6),
    pauses=st.lists(st.floats(0, 0.5), max_size=50),
    wanted=st.integers(1, 10_000),
)
def test_rate_is_never_exceeded_by_more_than_a_burst(rate, pauses, wanted):
    throttle = Throttle(rate)
    now, passed_at = 0.0, []
    for pause in pauses:
        now += pause
        count = min(wanted, throttle.allows(now))
        throttle.take(count)
        passed_at.append((now, count))
    for first, (since, _) in enumerate(passed_at):
        total = 0
        for until, count in passed_at[first:]:
            total += count
            assert total <= rate * (until - since + 0.1) + 1 + 1e-3
