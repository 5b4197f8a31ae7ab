"""Ticks that failed."""

import threading
from collections.abc import Iterable

from topology.complaints import Complaints
from topology.steps import BoltStep


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
