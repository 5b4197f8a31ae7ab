"""The report: the marked part of a page of Markdown, written anew from a run."""

import os
import platform
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version

from tests.acceptance.replicas import SESSION_SECONDS
from tests.faults import rows
from tests.faults.crash import ACTIONS, POINTS, Case
from tests.faults.judge import Outcome

_BLOCK = re.compile(r"(<!-- faults -->\n).*?(<!-- end -->)", re.DOTALL)
_ACTS = {"kill": "kill -9", "stop": "SIGSTOP", "term": "SIGTERM"}


def written_into(
    page: str,
    cases: Mapping[str, Case],
    outcomes: Mapping[str, Outcome],
    seed: str,
    seconds: float,
    jobs: int,
) -> str:
    """The page with what stands between `<!-- faults -->` and `<!-- end -->` replaced.

    Raises KeyError if there is no such place.
    """
    if not _BLOCK.search(page):
        raise KeyError("the page has no line '<!-- faults -->'")
    text = "\n".join(_part(cases, outcomes, seed, seconds, jobs))
    return _BLOCK.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", page)


def _part(
    cases: Mapping[str, Case], outcomes: Mapping[str, Outcome], seed: str, seconds: float, jobs: int
) -> Iterable[str]:
    yield _conditions(seed, seconds, jobs)
    yield ""
    yield _sum(outcomes)
    yield ""
    hit = {name: each for name, each in outcomes.items() if name in cases}
    if hit:
        yield from _matrix(cases, hit)
        yield ""
    others = {name: each for name, each in outcomes.items() if name not in cases}
    if others:
        yield from _rows(others)
        yield ""


def _conditions(seed: str, seconds: float, jobs: int) -> str:
    clients = ", ".join(f"{name} {version(name)}" for name in ("confluent-kafka", "kazoo"))
    return (
        f"Measured {datetime.now(UTC):%Y-%m-%d} on {os.cpu_count()} processors at a load of "
        f"{os.getloadavg()[1]:.1f}, Linux "
        f"{platform.release()}, Python {platform.python_version()}, {clients}; one broker, one "
        f"ZooKeeper, sessions of {SESSION_SECONDS:g} s; {jobs} cases at a time, "
        f"{seconds / 60:.0f} minutes, seed {seed}."
    )


def _sum(outcomes: Mapping[str, Outcome]) -> str:
    every = outcomes.values()
    return (
        f"{sum(each.is_good for each in every)} of {len(every)} cases as promised, "
        f"{sum(each.lost for each in every)} records lost, "
        f"{sum(each.unexplained_duplicates for each in every)} repeated that must not be, "
        f"{sum(each.duplicates for each in every)} repeated inside the windows."
    )


def _matrix(cases: Mapping[str, Case], outcomes: Mapping[str, Outcome]) -> Iterable[str]:
    """A row for each point and number of replicas, a column for each thing that happens there."""
    yield f"| point | where | replicas | {' | '.join(_ACTS[each] for each in ACTIONS)} |"
    yield f"|{' --- |' * (3 + len(ACTIONS))}"
    for name, point in POINTS.items():
        for replicas in (1, 2):
            ids = [f"{name}:{action}:{replicas}" for action in ACTIONS]
            if any(each in outcomes for each in ids):
                cells = [_cell(cases[each], outcomes.get(each)) for each in ids]
                yield f"| {name} | {point.what} | {replicas} | {' | '.join(cells)} |"


def _cell(case: Case, outcome: Outcome | None) -> str:
    if outcome is None:
        return "not played"
    promise = "≥1" if case.guarantee == "at least once" else "=1"
    store = {"lines": "", "delta": ", Delta", "messages": ", topic"}[case.output]
    seconds = "" if outcome.recovery_seconds is None else f" {outcome.recovery_seconds:.1f} s"
    return (
        f"{'ok' if outcome.is_good else 'FAILED'} {promise}{store}: {outcome.duplicates},{seconds}"
    )


def _rows(outcomes: Mapping[str, Outcome]) -> Iterable[str]:
    every = rows.every_row()
    yield "| row | what is done, and what must come of it | tests | outcome |"
    yield "| --- | --- | ---: | --- |"
    for name, outcome in sorted(outcomes.items()):
        row, word = every[name], "ok" if outcome.is_good else "FAILED"
        yield f"| {name} | {row.expected} | {len(row.tests)} | {word} |"
