"""Chaos hurts most replicas and never all."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.faults.chaos import KINDS, MOST_HURT, NAMES, State, Step, draw

STATES: tuple[State, ...] = ("away", "starting", "up", "frozen", "ending")


@given(st.lists(st.sampled_from(STATES), min_size=5, max_size=5), st.integers())
def test_a_step_is_one_that_the_states_allow(drawn: list[State], seed: int) -> None:
    states = dict(zip(NAMES, drawn, strict=True))
    step = draw(Random(seed), states)
    hurt = sum(state != "up" for state in drawn)
    if step is None:
        assert hurt >= MOST_HURT
        assert {"frozen", "away"}.isdisjoint(drawn)
        return
    if step.kind == "start":
        assert states[step.name] == "away"
    elif states[step.name] == "frozen":
        assert step.kind == "kill"
    elif states[step.name] == "starting":
        assert step.kind == "kill"
        assert hurt < MOST_HURT
    else:
        assert states[step.name] == "up"
        assert hurt < MOST_HURT


def test_every_kind_comes_up() -> None:
    states: dict[str, State] = {"a": "up", "b": "up", "c": "up", "d": "away", "e": "frozen"}
    rng = Random(0)
    steps = {draw(rng, states) for _ in range(300)}
    assert {step.kind for step in steps if step is not None} == set(KINDS)
    assert Step("start", "d") in steps


def test_two_of_the_five_are_left_alone() -> None:
    states: dict[str, State] = dict.fromkeys(NAMES, "up")
    rng = Random(1)
    for _ in range(100):
        step = draw(rng, states)
        if step is not None:
            states[step.name] = "away" if step.kind == "kill" else "ending"
            if step.kind == "start":
                states[step.name] = "starting"
        assert sum(state == "up" for state in states.values()) >= len(NAMES) - MOST_HURT
