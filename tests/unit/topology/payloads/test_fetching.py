"""Schemas are fetched on a thread of their own, and the owner waits a little, not for ever."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.patience import seconds
from topology.payloads.registry.fetching import AGAIN_SECONDS, FORGET_SECONDS, MOST, Fetching
from topology.payloads.registry.patience import Patience
from topology.record import Reject, Retry

SECONDS = seconds(30.0)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def fetching(clock) -> Iterator[Fetching]:
    made = Fetching("schemas-test", clock)
    made.open()
    yield made
    made.close()


def spent(fetching):
    """Use up what the owner may wait, so that it waits no longer."""
    fetching._patience.spend(1e9)
    return fetching


class Held:
    """A call to the registry that hangs until it is let go."""

    def __init__(self, error=None):
        self.error = error
        self.calls = 0
        self.began = threading.Event()
        self.let_go = threading.Event()

    def __call__(self):
        self.calls += 1
        self.began.set()
        assert self.let_go.wait(SECONDS)
        if self.error is not None:
            raise self.error


def test_what_answers_at_once_is_waited_for_and_done_on_the_thread(fetching):
    where = []
    fetching.fetch("a", lambda: where.append((threading.current_thread().name, fetching.here)))
    assert where == [("schemas-test", True)]
    assert not fetching.here


def test_what_hangs_is_a_retry_and_asked_only_once(fetching):
    held = Held()
    for _ in range(3):
        with pytest.raises(Retry, match="being fetched"):
            spent(fetching).fetch("a", held)
    assert held.began.wait(SECONDS)
    held.let_go.set()
    fetching._errands["a"].done.wait(SECONDS)
    fetching.fetch("a", held)
    assert held.calls == 1


def test_a_failure_is_left_alone_for_a_second_and_then_tried_again(fetching, clock):
    calls = []

    def away():
        calls.append(clock.now)
        raise Retry("away")

    for _ in range(3):
        with pytest.raises(Retry, match="away"):
            fetching.fetch("a", away)
    clock.now += AGAIN_SECONDS
    with pytest.raises(Retry, match="away"):
        fetching.fetch("a", away)
    assert len(calls) == 2


def test_an_unknown_schema_is_believed_to_be_unknown_for_a_minute(fetching, clock):
    calls = []

    def unknown():
        calls.append(clock.now)
        raise Reject("unknown")

    for wait in (0, AGAIN_SECONDS, FORGET_SECONDS - AGAIN_SECONDS - 1):
        clock.now += wait
        with pytest.raises(Reject, match="unknown"):
            fetching.fetch("a", unknown)
    clock.now += 1
    fetching.fetch("a", lambda: None)
    assert len(calls) == 1


def test_a_verdict_that_is_given_a_thousand_times_does_not_grow(fetching):
    def unknown():
        raise Reject("unknown")

    lengths = []
    for _ in range(5):
        with pytest.raises(Reject) as caught:
            fetching.fetch("a", unknown)
        lengths.append(len(list(caught.traceback)))
    assert lengths[1:] == lengths[1:2] * 4


def test_what_is_remembered_is_bounded(fetching):
    def unknown():
        raise Reject("unknown")

    for key in range(MOST + 10):
        with pytest.raises(Reject):
            fetching.fetch(key, unknown)
    assert len(fetching._verdicts) == MOST
    held = Held()
    for key in range(MOST):
        with pytest.raises(Retry, match="being fetched"):
            spent(fetching).fetch(("held", key), held)
    with pytest.raises(Retry, match=f"{MOST} schemas"):
        spent(fetching).fetch("one more", held)
    held.let_go.set()
    for errand in list(fetching._errands.values()):
        assert errand.done.wait(SECONDS)
    fetching._patience = Patience(SECONDS, 1.0)
    fetching.fetch("one more", held)
    assert len(fetching._errands) == 0


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=30),
    st.floats(0, 5),
    st.floats(0, 1),
)
def test_all_waits_together_take_the_burst_and_a_share_of_the_time(steps, burst, share):
    patience, now, waited = Patience(burst, share), 0.0, 0.0
    for pause, wanted in steps:
        now += pause
        left = patience.left(now)
        assert 0 <= left <= burst
        wait = min(left, wanted)
        patience.spend(wait)
        now += wait
        waited += wait
        assert waited <= burst + share * now + 1e-6
