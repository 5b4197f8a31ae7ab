"""The account: where every record that was read is now."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PartitionAccount:
    """One partition's part: offsets are the next to read."""

    committed: int
    frontier: int
    log_end: int
    goal: int | None = None  # where the log ended when a finite run began

    @property
    def lag(self) -> int:
        """Offsets between what is committed and the log's end."""
        return self.log_end - self.committed

    @property
    def missing(self) -> int:
        """Offsets that a finite run should have committed, and did not."""
        return max(0, (self.log_end if self.goal is None else self.goal) - self.committed)


@dataclass(frozen=True, slots=True)
class Account:
    """Where every record is. It closes when nothing is missing and nothing is open."""

    read: int
    sunk: int
    rows: int
    filtered: int
    retried: int
    dead_lettered: int
    unresolved: int
    given_up: int  # in flight when their partitions went to other replicas, which read them again
    lost: int  # offsets the source has lost, or that were skipped by policy
    seconds: float
    partitions: dict[str, PartitionAccount]
    halted: dict[str, str]  # partitions of which nothing more is read, and why
    table: str | None
    dead_letters: str | None
    caught_up: bool  # False: the run was stopped, or had no end

    @property
    def records_per_second(self) -> float:
        """Records read per second of the run."""
        return self.read / self.seconds if self.seconds > 0 else 0.0

    def losses(self) -> list[str]:
        """What contradicts the promise, in words: records that are nowhere. Always empty."""
        resolved = self.sunk + self.filtered + self.dead_lettered
        placed = resolved + self.unresolved + self.given_up
        if placed == self.read:
            return []
        return [f"{self.read} records were read but {placed} are accounted for"]

    def gaps(self) -> list[str]:
        """What keeps the account of a finite run from closing; empty when it closes."""
        gaps = self.losses()
        if self.unresolved:
            gaps.append(f"{self.unresolved} records are unresolved")
        gaps += [
            f"{name}: committed {part.committed}, {part.missing} short of where the log ended"
            for name, part in self.partitions.items()
            if part.missing
        ]
        return gaps + [f"{name} is halted: {why}" for name, why in self.halted.items()]

    def as_json(self) -> dict[str, Any]:
        """The account as JSON takes it."""
        facts = asdict(self)
        facts["records_per_second"] = round(self.records_per_second, 1)
        facts["seconds"] = round(self.seconds, 3)
        return facts
