"""Two replicas under a steady load, one of which is killed again and again: is memory flat?"""

import statistics
import time
from dataclasses import dataclass, field

from tests.acceptance.harness import Run
from tests.acceptance.replicas import Replicas
from tests.chaos.memory import resident_mb
from tests.faults.judge import Outcome, found_of, judge

MOST_GROWTH = 1.05  # the last third to the one before
_EVERY_SECONDS = 2.0
_KILL_EVERY_SECONDS = 60.0
_STAYS, _DIES = "a", "b"
_FEWEST = 30  # samples, of which each third says something


@dataclass
class Soak:
    """One pipeline for a long time. `memory` are megabytes of the replica that stays."""

    replicas: Replicas
    seconds: float
    memory: list[float] = field(default_factory=list)
    kills: int = 0

    def play(self) -> Outcome:
        """Play it, end it in order, and judge what was written and how memory went."""
        replicas = self.replicas
        replicas.feed.start()
        replicas.start(_STAYS, _DIES)
        replicas.settle(_STAYS, _DIES)
        ends = time.monotonic() + self.seconds
        kill_at = time.monotonic() + _KILL_EVERY_SECONDS
        while time.monotonic() < ends:
            time.sleep(_EVERY_SECONDS)
            self.memory.append(resident_mb(replicas.runs[_STAYS].pid))
            if time.monotonic() > kill_at:
                replicas.lose(_DIES, Run.kill)
                self.kills += 1
                replicas.goes_on()
                replicas.start(_DIES)
                replicas.settle(_STAYS, _DIES)
                kill_at = time.monotonic() + _KILL_EVERY_SECONDS
        is_lines = replicas.output == "lines"
        ends = replicas.end()  # before it is asked what is there
        return judge(
            found_of(replicas),
            ends,
            replicas.breaks,
            "at least once" if is_lines else "exactly once",
            [*replicas.nodes.wrong, *self._grown()],
        )

    @property
    def growth(self) -> float:
        """The median of the last third of the samples to that of the third before; 0: too few."""
        third = len(self.memory) // 3
        if len(self.memory) < _FEWEST:
            return 0.0
        middle, last = self.memory[third : 2 * third], self.memory[-third:]
        return statistics.median(last) / statistics.median(middle)

    def _grown(self) -> list[str]:
        if self.growth > MOST_GROWTH:
            return [f"memory has grown to {self.growth:.3f} of what it was"]
        return []

    def figures(self) -> dict[str, object]:
        """What was measured."""
        third = len(self.memory) // 3
        parts = (self.memory[:third], self.memory[third : 2 * third], self.memory[-third:])
        return {
            "kills": self.kills,
            "records": sum(self.replicas.feed.ends().values()),
            "memory_mb": [round(statistics.median(part), 1) for part in parts if part],
            "growth": round(self.growth, 4),
        }
