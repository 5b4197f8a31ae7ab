"""Every case of `make faults` by its id: the crash matrix, and the rows of the fault matrix."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from tests.acceptance.replicas import Output
from tests.faults import rows
from tests.faults.crash import ACTIONS, Case, play
from tests.faults.judge import Outcome
from tests.faults.points import POINTS, Guarantee
from tests.faults.servers import Servers

Play: TypeAlias = Callable[[Servers], Outcome]

IN_DELTA = frozenset(
    {"C03:kill:2", "C09:term:1", "C10:kill:1", "C11:kill:1", "C11:stop:2", "C12:stop:2"}
)
"""Those that are played into a Delta table."""


def crash_cases() -> dict[str, Case]:
    """The crash matrix. The guarantees take turns; some points are of one alone."""
    found = {}
    for number, (name, point) in enumerate(POINTS.items()):
        variants = [(action, replicas) for action in ACTIONS for replicas in (1, 2)]
        for turn, (action, replicas) in enumerate(variants):
            is_odd = (number + turn + turn // 2) % 2  # so that no action has one guarantee alone
            guarantee: Guarantee = "at least once" if is_odd else "exactly once"
            if guarantee not in point.places or f"{name}:{action}:{replicas}" in IN_DELTA:
                guarantee = "exactly once"
            output: Output = "lines" if guarantee == "at least once" else "messages"
            case = Case(name, action, replicas, guarantee, output)
            if case.id in IN_DELTA:
                case = Case(name, action, replicas, guarantee, "delta")
            found[case.id] = case
    return found


def catalogue(seed: str) -> dict[str, Play]:
    """What plays each case; the seed says how often a place is passed before it is hit."""
    plays: dict[str, Play] = {each.id: partial(play, each, seed) for each in crash_cases().values()}
    for name, row in rows.every_row().items():
        plays[name] = partial(rows.play, name, row)
    return plays


def chosen(asked: str, known: Iterable[str]) -> list[str]:
    """The ids that a text names, each by its whole or by its beginning up to a colon.

    Raises ArgumentTypeError.
    """
    every = list(known)
    found: dict[str, None] = {}
    for text in asked.split(","):
        those = [each for each in every if each == text or each.startswith(f"{text}:")]
        if not those:
            raise argparse.ArgumentTypeError(
                f"case '{text}'; allowed are {', '.join(sorted({e.split(':')[0] for e in every}))}"
            )
        found |= dict.fromkeys(those)
    return list(found)


def what_of(names: Mapping[str, Case], name: str) -> str:
    """What a case is about, for people."""
    if name not in names:
        return rows.every_row()[name].expected
    case = names[name]
    return f"{POINTS[case.point].what}; {case.guarantee}, {case.output}"
