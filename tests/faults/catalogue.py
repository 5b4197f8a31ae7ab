"""Every case of `make faults` by its id: the crash matrix, and the rows of the fault matrix."""

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from tests.faults import crash, rows
from tests.faults.judge import Outcome
from tests.faults.servers import Servers


class Play(NamedTuple):
    what: str
    run: Callable[[Servers], Outcome]


def catalogue(seed: str) -> dict[str, Play]:
    """Every case; the seed says how often a place is passed before it is hit."""
    plays = {}
    for name, case in crash.crash_cases().items():
        what = f"{crash.POINTS[case.point].what}; {case.guarantee}, {case.output}"
        plays[name] = Play(what, partial(crash.play, case, seed))
    for name, row in rows.every_row().items():
        plays[name] = Play(row.expected, partial(rows.play, name, row))
    return plays


def plays_of(asked: str, seed: str, _minutes: float) -> dict[str, Play]:
    """The cases that a text names; all if it is empty. Raises ArgumentTypeError."""
    every = catalogue(seed)
    return {name: every[name] for name in chosen(asked, every)} if asked else every


def chosen(asked: str, known: Iterable[str]) -> list[str]:
    """The ids that a text names, each by its whole or by its beginning up to a colon.

    Raises ArgumentTypeError.
    """
    every = list(known)
    found: dict[str, None] = {}
    for text in asked.split(","):
        those = [each for each in every if each == text or each.startswith(f"{text}:")]
        if not those:
            allowed = ", ".join(sorted({each.split(":")[0] for each in every}))
            raise argparse.ArgumentTypeError(f"case: found '{text}', expected one of {allowed}")
        found |= dict.fromkeys(those)
    return list(found)
