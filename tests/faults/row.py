"""A row of the fault matrix."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What is done to the service, what is expected, by what it shows, and who plays it.

    `tests` are pytest's node ids, without parameters.
    """

    expected: str
    signal: str
    tests: tuple[str, ...]
