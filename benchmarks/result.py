"""A result: what a suite has found, as facts for programs and tables for people."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows; the first column names the row, the others hold figures."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def show(self, console: Console) -> None:
        """Print it to a terminal."""
        table = RichTable(title=self.title, title_justify="left")
        for place, name in enumerate(self.columns):
            table.add_column(name, justify="right" if place else "left", no_wrap=not place)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def markdown(self) -> Iterable[str]:
        """Its lines in Markdown, the title first."""
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
        """The JSON object."""
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
        """The tables, that of the goals at the end."""
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
