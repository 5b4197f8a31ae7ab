"""What the simulator itself knows of a try at a record: which of its tuples are still open."""

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.kafka import SimRecord


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at one record: one tree. Complete when no tuple is open and none has failed."""

    record_id: int
    record: SimRecord
    number: int  # which try, from 1
    begun_at: float
    tree: int = -1
    open: int = 0  # tuples that are neither durable, nor filtered, nor lettered
    emitted: bool = False  # every first tuple is counted
    failed: bool = False
    resolved: bool = False
    complete: bool = False  # every tuple has come to a good end
    is_durable: bool = True  # at that end; else its record is done with its transaction
    flight: Any = None  # the oracle's account of its partition
    letter: "Attempt | None" = None  # that told that a part of it could not be done
    rows: list[Any] = field(default_factory=list)  # that go to tables, exactly once

    def close(self) -> None:
        """Learn that one of its tuples has come to a good end."""
        self.open -= 1
        self.settle()

    def settle(self) -> None:
        """Mark the record when every tuple has come to a good end."""
        if self.emitted and self.open == 0 and not self.failed:
            self.complete = True
            if self.is_durable:
                self.record.done = True


@dataclass(slots=True, eq=False)
class Tuple:
    """A tuple that travels, anchored to one tree or more under one edge."""

    attempts: list[Attempt]
    edge: int
    closed: bool = False
    tables: frozenset[int] = frozenset()  # that get a row of it, exactly once

    def close(self) -> None:
        """Its row or letter is durable, or it was filtered; counted once."""
        if not self.closed:
            self.closed = True
            for attempt in self.attempts:
                attempt.close()
