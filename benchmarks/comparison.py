"""A comparison: variants that have made the same rows, each held against another one."""

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
    """What was measured. Ratios are of medians, and only of those that are held against one.

    `against` says which one of the others each variant is held against. Raises SystemExit if
    the variants have not made the same rows.
    """

    def __init__(self, runs: Runs, against: Mapping[str, str]) -> None:
        check_rows(runs)
        self._figures = {name: medians(found) for name, found in runs.items()}
        self._against = against
        self.cpu_us = {name: found["cpu_us"] for name, found in self._figures.items()}
        self.batches = {name: round(found["batches"]) for name, found in self._figures.items()}
        self.per_second = {name: found["per_second"] for name, found in self._figures.items()}
        self.ratio = {
            name: self.per_second[name] / self.per_second[other] for name, other in against.items()
        }
        self.cpu_ratio = {
            name: self.cpu_us[name] / self.cpu_us[other] for name, other in against.items()
        }

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
            "cpu_ratio": {name: round(value, 3) for name, value in self.cpu_ratio.items()},
        }

    def table(self, title: str) -> Table:
        """A row for each variant."""
        return Table(
            title,
            ("variant", "records/s", "CPU µs/record", "rate ratio", "CPU ratio", "batches"),
            [
                (
                    name,
                    f"{self.per_second[name]:,.0f}",
                    f"{self.cpu_us[name]:.2f}",
                    f"{self.ratio[name]:.2f}" if name in self._against else "",
                    f"{self.cpu_ratio[name]:.2f}" if name in self._against else "",
                    f"{found['batches']:.0f}",
                )
                for name, found in self._figures.items()
            ],
        )
