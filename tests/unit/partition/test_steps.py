"""A chain of requests that nobody waits for."""

from concurrent.futures import Future

import pytest

from partition.recovery import Steps


def test_a_chain_goes_on_when_what_it_waits_for_is_there():
    one, two = Future(), Future()

    def chain():
        first = yield one
        second = yield two
        return first + second

    steps = Steps(chain())
    assert steps.poll() is None
    two.set_result(5)
    assert steps.poll() is None
    one.set_result(2)
    assert steps.poll().value == 7


def test_a_failed_request_is_raised_in_the_chain_which_may_go_on():
    failed, other = Future(), Future()
    failed.set_exception(KeyError("k"))

    def chain():
        try:
            yield failed
        except KeyError:
            yield other
        raise ValueError("in the end")

    steps = Steps(chain())
    assert steps.poll() is None
    other.set_result(None)
    with pytest.raises(ValueError, match="in the end"):
        steps.poll()


def test_a_chain_that_asks_for_another_turn_gets_one_turn_per_call():
    turns = []

    def chain():
        for turn in range(3):
            turns.append(turn)
            yield None

    steps = Steps(chain())
    for count in (1, 2, 3):
        assert steps.poll() is None
        assert len(turns) == count
    assert steps.poll().value is None
