"""What came of one case."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case lost and repeated, as an oracle counted it, and what else was not as promised.

    `unexplained_duplicates` are those outside the window that was not committed, and every one
    of an exactly-once case.
    """

    lost: int = 0
    duplicates: int = 0
    unexplained_duplicates: int = 0
    recovery_seconds: float | None = None
    said: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether the case went as promised."""
        return not (self.lost or self.unexplained_duplicates or self.said)
