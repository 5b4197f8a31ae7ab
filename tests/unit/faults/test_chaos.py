from random import Random

from tests.faults.chaos import KINDS, MOST_HURT, NAMES, draw

ALLOWED = {
    "start": {"away"}, "kill": {"up", "starting", "frozen"}, "term": {"up"}, "nap": {"up"},
    "freeze": {"up"},
}  # fmt: skip
NEXT = {"start": "starting", "kill": "away", "term": "ending"}


def test_steps_fit_the_states_and_leave_two_replicas_alone():
    rng, kinds = Random(1), set()
    states = dict.fromkeys(NAMES, "up")
    for _ in range(2_000):
        name = rng.choice(NAMES)  # what was begun ends
        if states[name] in ("starting", "frozen", "ending"):
            states[name] = "away" if states[name] == "ending" else "up"
        step = draw(rng, states)
        if step is None:
            assert {"frozen", "away"}.isdisjoint(states.values())
            continue
        kinds.add(step.kind)
        assert states[step.name] in ALLOWED[step.kind]
        states[step.name] = NEXT.get(step.kind, "frozen")
        assert sum(state == "up" for state in states.values()) >= len(NAMES) - MOST_HURT
    assert kinds == set(KINDS)
