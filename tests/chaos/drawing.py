"""Which step comes next: any that the state of the replicas allows. Pure."""

from collections.abc import Mapping
from random import Random
from typing import Literal, NamedTuple, TypeAlias

State: TypeAlias = Literal["away", "starting", "up", "frozen", "ending"]
Kind: TypeAlias = Literal["start", "kill", "term", "nap", "freeze"]

NAMES = ("a", "b", "c", "d", "e")
MOST_HURT = 3  # of the five, 60 %: so many may be anything but up
KINDS: tuple[Kind, ...] = ("start", "kill", "term", "nap", "freeze")


class Step(NamedTuple):
    """What is done to whom; a nap is within the session, to freeze is past it."""

    kind: Kind
    name: str


def draw(rng: Random, states: Mapping[str, State]) -> Step | None:
    """A step, or None when no one may be hurt more, and those who are start or end."""
    of_kind: dict[Kind, list[str]] = {kind: [] for kind in KINDS}
    of_kind["start"] = [name for name, state in states.items() if state == "away"]
    if sum(state != "up" for state in states.values()) < MOST_HURT:
        up = [name for name, state in states.items() if state == "up"]
        starting = [name for name, state in states.items() if state == "starting"]
        of_kind |= {"kill": up + starting, "term": up, "nap": up, "freeze": up}
    else:
        of_kind["kill"] = [name for name, state in states.items() if state == "frozen"]
    kinds = [kind for kind, names in of_kind.items() if names]
    if not kinds:
        return None
    kind = rng.choice(kinds)
    return Step(kind, rng.choice(of_kind[kind]))
