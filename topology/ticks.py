"""Ticks: which bolts are to be ticked when, and which ticks failed."""

import threading
from collections.abc import Iterable

from topology.complaints import Complaints
from topology.steps import BoltStep


class Ticks:
    """The bolts of a topology that have `tick_seconds`.

    Pure; ticks that were missed are not made up for.
    """

    def __init__(self, steps: Iterable[BoltStep]) -> None:
        self._seconds = {
            step: step.bolt.tick_seconds for step in steps if step.bolt.tick_seconds is not None
        }
        self._due: dict[BoltStep, float] = {}

    def start(self, now: float) -> None:
        """Count from now: the first ticks come one interval later."""
        self._due = {step: now + seconds for step, seconds in self._seconds.items()}

    def next_due(self) -> float | None:
        """When the next tick comes, or None."""
        return min(self._due.values(), default=None)

    def due(self, now: float) -> list[BoltStep]:
        """Those whose time has come, each once however long it is ago."""
        steps = [step for step, due in self._due.items() if due <= now]
        for step in steps:
            self._due[step] = now + self._seconds[step]
        return steps


class TickFailures:
    """Counts the ticks that raised or took too long, and complains of them. Any thread."""

    def __init__(self, steps: Iterable[BoltStep], complaints: Complaints) -> None:
        self._complaints = complaints
        self._lock = threading.Lock()
        self._counts = {step.name: 0 for step in steps if step.bolt.tick_seconds is not None}

    def add(self, step: str, error: BaseException) -> None:
        """Count a tick of a step that failed. The bolt is ticked again next time."""
        with self._lock:
            self._counts[step] = self._counts.get(step, 0) + 1
        self._complaints.hear("tick_failed", step, error)

    def counts(self) -> dict[str, int]:
        """How many failed so far, by step."""
        with self._lock:
            return dict(self._counts)
