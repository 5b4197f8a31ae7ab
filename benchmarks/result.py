"""A result: what a suite has found, as facts for programs and tables for people."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.bench import Runs, medians
from benchmarks.child import Figures

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


def divide(
    figures: Mapping[str, Figures], ratio: str, key: str, against: Mapping[str, str]
) -> None:
    """Add a figure to variants: the ratio of another one to that of the variant held against."""
    for name, other in against.items():
        figures[name][ratio] = figures[name][key] / figures[other][key]


def table(title: str, figures: Mapping[str, Figures], columns: Mapping[str, str]) -> Table:
    """A row for each variant. A column is a format of its figures; empty if one is missing."""

    def cell(form: str, found: Figures) -> str:
        try:
            return form.format(**found)
        except KeyError:
            return ""

    rows = [(name, *(cell(c, found) for c in columns.values())) for name, found in figures.items()]
    return Table(title, ("variant", *columns), rows)


def facts(figures: Mapping[str, Figures], **digits: int | None) -> Facts:
    """By figure: what the variants that have it found, rounded to so many digits."""
    return {
        key: {name: round(found[key], n) for name, found in figures.items() if key in found}
        for key, n in digits.items()
    }


def goals(
    figures: Mapping[str, Figures],
    key: str,
    limits: Mapping[str, float],
    what: str = "",
    *,
    at_most: bool = False,
) -> list[Goal]:
    """A goal for a figure of each of these variants."""
    return [
        Goal(f"{name}: {what or key}", figures[name][key], limit, at_most)
        for name, limit in limits.items()
    ]


SAME = ("rows", "order_ids", "cents")  # found alike in all tables
COMPARED = {
    "records/s": "{per_second:,.0f}", "CPU µs/record": "{cpu_us:.2f}", "batches": "{batches:.0f}",
    "rate ratio": "{ratio:.2f}", "lowest": "{spread[0]:.2f}", "highest": "{spread[1]:.2f}",
    "CPU ratio": "{cpu_ratio:.2f}",
}  # fmt: skip


def check_rows(runs: Runs) -> None:
    """Raise SystemExit if the variants have not made the same rows."""
    made = {
        name: {tuple(run[key] for key in SAME) for run in found} for name, found in runs.items()
    }
    if len(set().union(*made.values())) > 1:
        raise SystemExit(f"the variants do not make the same rows ({', '.join(SAME)}): {made}")


def compared(runs: Runs, against: Mapping[str, str]) -> dict[str, Figures]:
    """Medians, with ratios of variants: medians over the rounds, each to the same round's other.

    `against` says which one of the others each variant is held against. Raises SystemExit if
    the variants have not made the same rows.
    """
    check_rows(runs)
    figures = medians(runs)
    for name, other in against.items():
        pairs = list(zip(runs[name], runs[other], strict=True))
        rates, cpu = (
            [mine[key] / theirs[key] for mine, theirs in pairs] for key in ("per_second", "cpu_us")
        )
        ratios = {"ratio": statistics.median(rates), "cpu_ratio": statistics.median(cpu)}
        figures[name] |= {**ratios, "spread": spread(rates)}
    return figures


def compared_facts(figures: Mapping[str, Figures]) -> Facts:
    first = next(iter(figures.values()))
    spreads = {name: found["spread"] for name, found in figures.items() if "spread" in found}
    rounded = facts(
        figures, open_seconds=3, batches=None, cpu_us=3, per_second=None, ratio=3, cpu_ratio=3
    )
    return {"rows": int(first["rows"]), **rounded, "spread": spreads}


def spread(found: list[float]) -> list[float]:
    return [round(min(found), 3), round(max(found), 3)]
