"""What the simulator itself knows of a try at a record: which of its tuples are still open."""

from dataclasses import dataclass

from tests.simulation.kafka import SimRecord


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at one record: one tree. Complete when no tuple is open and none has failed."""

    owner: int
    record: SimRecord
    number: int  # which try, from 1
    begun_at: float
    tree: int = -1
    open: int = 0  # tuples that are neither durable, nor filtered, nor lettered
    emitted: bool = False  # every first tuple is counted
    failed: bool = False
    resolved: bool = False

    def close(self) -> None:
        """Learn that one of its tuples has come to a good end."""
        self.open -= 1
        self.settle()

    def settle(self) -> None:
        """Mark the record when every tuple has come to a good end."""
        if self.emitted and self.open == 0 and not self.failed:
            self.record.done = True


@dataclass(slots=True, eq=False)
class Tuple:
    """A tuple that travels, anchored to one tree or more under one edge."""

    attempts: list[Attempt]
    edge: int
    closed: bool = False

    def close(self) -> None:
        """Its row or letter is durable, or it was filtered; counted once."""
        if not self.closed:
            self.closed = True
            for attempt in self.attempts:
                attempt.close()
