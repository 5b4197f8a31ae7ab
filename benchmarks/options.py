"""What the command line says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """None leaves it to the suite."""

    records: int | None = None
    rounds: int | None = None
    trees: int | None = None
    in_flight: int | None = None
    slow_seconds: float | None = None
    profiled: bool = False
    together: bool = False
