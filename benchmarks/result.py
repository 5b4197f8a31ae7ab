"""A result: what a suite has found, as facts for programs and tables for people."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.bench import Runs, medians, opened

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows; the first column names the row, the others hold figures."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def show(self, console: Console) -> None:
        table = RichTable(title=self.title, title_justify="left")
        for place, name in enumerate(self.columns):
            table.add_column(name, justify="right" if place else "left", no_wrap=not place)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def markdown(self) -> Iterable[str]:
        yield f"{self.title}:"
        yield ""
        yield _line(self.columns)
        yield _line(["---", *("---:" for _column in self.columns[1:])])
        yield from (_line(row) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and what it should be: at least `limit`, or with `at_most` no more than it."""

    name: str
    found: float
    limit: float
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the figure is on the right side of the limit."""
        return self.found <= self.limit if self.at_most else self.found >= self.limit


@dataclass(frozen=True, slots=True)
class Result:
    """One suite's figures. `facts` become the JSON object, with the goals."""

    suite: str
    facts: Facts
    tables: list[Table]
    goals: list[Goal] = field(default_factory=list)
    notes: str = ""  # what a reader of the tables must know, in Markdown

    @property
    def json(self) -> Facts:
        goals = {
            goal.name: {
                "found": round(goal.found, 3),
                "at_most" if goal.at_most else "at_least": goal.limit,
                "met": goal.is_met,
            }
            for goal in self.goals
        }
        return {"suite": self.suite, **self.facts, **({"goals": goals} if goals else {})}

    @property
    def all_tables(self) -> list[Table]:
        if not self.goals:
            return self.tables
        rows = [
            (
                goal.name,
                f"{goal.found:.2f}",
                f"{'at most' if goal.at_most else 'at least'} {goal.limit:g}",
                "yes" if goal.is_met else "no",
            )
            for goal in self.goals
        ]
        return [*self.tables, Table("Goals", ("goal", "found", "wanted", "met"), rows)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


SAME = ("rows", "order_ids", "cents")  # found alike in all tables


def check_rows(runs: Runs) -> None:
    """Raise SystemExit if the variants have not made the same rows."""
    made = {
        name: {tuple(run[key] for key in SAME) for run in found} for name, found in runs.items()
    }
    if len(set().union(*made.values())) > 1:
        raise SystemExit(f"the variants do not make the same rows ({', '.join(SAME)}): {made}")


class Comparison:
    """Figures of variants. Ratios are medians over the rounds, each to the same round's other one.

    `against` says which one of the others each variant is held against. Raises SystemExit if
    the variants have not made the same rows.
    """

    def __init__(self, runs: Runs, against: Mapping[str, str]) -> None:
        check_rows(runs)
        self._figures = {name: medians(found) for name, found in runs.items()}
        self._ratios = _ratios(runs, against, "per_second")
        self.cpu_us = {name: found["cpu_us"] for name, found in self._figures.items()}
        self.batches = {name: round(found["batches"]) for name, found in self._figures.items()}
        self.per_second = {name: found["per_second"] for name, found in self._figures.items()}
        self.ratio = {name: statistics.median(found) for name, found in self._ratios.items()}
        self.cpu_ratio = {
            name: statistics.median(found)
            for name, found in _ratios(runs, against, "cpu_us").items()
        }

    @property
    def spread(self) -> dict[str, list[float]]:
        return {name: spread(found) for name, found in self._ratios.items()}

    @property
    def facts(self) -> Facts:
        figures = self._figures
        return {
            "open_seconds": opened(figures),
            "rows": int(next(iter(figures.values()))["rows"]),
            "batches": self.batches,
            "cpu_us": {name: round(value, 3) for name, value in self.cpu_us.items()},
            "per_second": {name: round(value) for name, value in self.per_second.items()},
            "ratio": {name: round(value, 3) for name, value in self.ratio.items()},
            "spread": self.spread,
            "cpu_ratio": {name: round(value, 3) for name, value in self.cpu_ratio.items()},
        }

    def table(self, title: str) -> Table:
        columns = ("records/s", "CPU µs/record", "batches", "rate ratio", "lowest", "highest")
        rows = []
        for name, found in self._figures.items():
            cells = [name, f"{self.per_second[name]:,.0f}", f"{self.cpu_us[name]:.2f}"]
            cells.append(f"{found['batches']:.0f}")
            if name in self.ratio:
                ratios = (self.ratio[name], *self.spread[name], self.cpu_ratio[name])
                cells += [f"{ratio:.2f}" for ratio in ratios]
            rows.append((*cells, *[""] * (len(columns) + 2 - len(cells))))
        return Table(title, ("variant", *columns, "CPU ratio"), rows)


def spread(found: list[float]) -> list[float]:
    return [round(min(found), 3), round(max(found), 3)]


def _ratios(runs: Runs, against: Mapping[str, str], figure: str) -> dict[str, list[float]]:
    return {
        name: [
            mine[figure] / theirs[figure]
            for mine, theirs in zip(runs[name], runs[other], strict=True)
        ]
        for name, other in against.items()
    }
