"""A comparison: variants that have made the same rows, each held against another one."""

import statistics
from collections.abc import Mapping

from benchmarks.bench import Runs, medians, opened
from benchmarks.result import Facts, Table

SAME = ("rows", "order_ids", "cents")  # found alike in all tables


def check_rows(runs: Runs) -> None:
    """Raise SystemExit if the variants have not made the same rows."""
    made = {
        name: {tuple(run[key] for key in SAME) for run in found} for name, found in runs.items()
    }
    if len(set().union(*made.values())) > 1:
        raise SystemExit(f"the variants do not make the same rows ({', '.join(SAME)}): {made}")


class Comparison:
    """What was measured. Ratios are medians over the rounds, each to the same round's other one.

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
        """The lowest and the highest ratio of each variant."""
        return {name: spread(found) for name, found in self._ratios.items()}

    @property
    def facts(self) -> Facts:
        """Everything, by variant."""
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
        """A row for each variant."""
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
    """The lowest and the highest."""
    return [round(min(found), 3), round(max(found), 3)]


def _ratios(runs: Runs, against: Mapping[str, str], figure: str) -> dict[str, list[float]]:
    return {
        name: [
            mine[figure] / theirs[figure]
            for mine, theirs in zip(runs[name], runs[other], strict=True)
        ]
        for name, other in against.items()
    }
