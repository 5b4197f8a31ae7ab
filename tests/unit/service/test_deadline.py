"""One deadline for all the steps of a shutdown."""

from service.wiring import Deadline


def test_each_step_takes_what_is_left_and_never_less_than_nothing():
    now = 100.0
    deadline = Deadline(10, clock=lambda: now)
    assert (deadline.left, deadline.is_over) == (10, False)
    now = 107.5
    assert (deadline.left, deadline.is_over) == (2.5, False)
    now = 110.0
    assert (deadline.left, deadline.is_over) == (0, True)
    now = 200.0
    assert (deadline.left, deadline.is_over) == (0, True)


def test_no_time_at_all_is_over_at_once():
    assert Deadline(0, clock=lambda: 5.0).is_over
