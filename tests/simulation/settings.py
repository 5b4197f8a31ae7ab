"""What one seed fixes for a whole run."""

import random
from dataclasses import dataclass
from typing import Literal

from partition.assignment import AssignmentPolicy
from partition.manager import Window
from partition.opening import StartPolicy
from partition.retries import RetryPolicy
from service.reader import ReaderPolicy

TOPICS = ("a", "b")
STEP_SECONDS = 0.01
TIMEOUT_SECONDS = 7.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The shape of a world."""

    seed: int
    replicas: int
    partitions: tuple[int, ...]  # of each topic
    start_from: Literal["earliest", "latest"]
    on_loss: Literal["halt", "skip"]
    on_corrupt: Literal["halt", "skip"]
    max_pending: int
    max_pending_bytes: int
    limit: int
    max_behind: int | None

    @classmethod
    def of(cls, seed: int) -> "Settings":
        """The settings of a seed."""
        rng = random.Random(f"settings {seed}")
        return cls(
            seed=seed,
            replicas=rng.choice([2, 2, 3]),
            partitions=rng.choice([(2,), (3,), (1, 2), (2, 1)]),
            start_from=rng.choice(["earliest", "earliest", "latest"]),
            on_loss=rng.choice(["skip", "skip", "skip", "halt"]),
            on_corrupt=rng.choice(["skip", "skip", "halt"]),
            max_pending=rng.choice([3, 5, 8, 16]),
            max_pending_bytes=rng.choice([40, 1000, 1000]),
            limit=rng.choice([1, 2, 3]),
            max_behind=rng.choice([None, None, None, 12]),
        )

    def policy(self, *, heal: bool = False) -> ReaderPolicy:
        """The reader's policy; when all is to heal, the operator has looked into every loss."""
        return ReaderPolicy(
            assignment=AssignmentPolicy(
                start=StartPolicy(
                    start_from=self.start_from,
                    max_offset_behind=self.max_behind,
                    on_data_loss="skip" if heal else self.on_loss,
                    on_corrupt_record="skip" if heal else self.on_corrupt,
                ),
                window=Window(self.max_pending, self.max_pending_bytes),
                retries=RetryPolicy(
                    limit=self.limit, initial_seconds=0.2, multiplier=2.0, max_seconds=1.0
                ),
                discover_interval_seconds=2.0,
            ),
            commit_interval_seconds=0.1,
            fetch_records=20,
            chunk_records=4,
        )
