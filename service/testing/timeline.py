"""The timeline: what happened to each record, and when. Pure: time is an argument."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from partition.records import Partition

What: TypeAlias = Literal["read", "failed", "retried", "written", "rejected", "resolved"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to one record.

    `what` is one of
    read: it was given to the bolts for the first time;
    failed: a try failed in `step` for `reason`, and a retry or a dead letter follows;
    retried: it was given to the bolts again, for the `attempt`-th time;
    written: rows of it alone, no joined ones, became durable in the sink `step`;
    rejected: its dead letter was sent, because of `step` and `reason`;
    resolved: its offset may pass.
    """

    seconds: float  # of the test kit's time
    what: What
    topic: str
    partition: int
    offset: int
    attempt: int
    step: str | None = None
    reason: str | None = None

    def __str__(self) -> str:
        place = f"{self.topic}[{self.partition}]@{self.offset}"
        where = f" in {self.step}" if self.step else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.seconds:g} s {place} {self.what}{where} (attempt {self.attempt}){why}"


class Timeline:
    """Collects events. One that belongs to no record that was read is left out."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._attempts: dict[tuple[Partition, int], int] = {}

    def emitted(self, now: float, partition: Partition, offsets: Iterable[int]) -> None:
        """Note that records were given to the bolts."""
        for offset in offsets:
            attempt = self._attempts.get((partition, offset), 0) + 1
            self._attempts[partition, offset] = attempt
            self.note(now, "read" if attempt == 1 else "retried", partition, offset)

    def note(
        self,
        now: float,
        what: What,
        partition: Partition,
        offset: int,
        step: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Note what happened to a record."""
        attempt = self._attempts.get((partition, offset))
        if attempt is not None:
            topic, number = partition.topic, partition.number
            self.events.append(Event(now, what, topic, number, offset, attempt, step, reason))

    def of(self, partition: Partition, offset: int) -> list[Event]:
        """The events of one record, in order."""
        place = (partition.topic, partition.number, offset)
        return [e for e in self.events if (e.topic, e.partition, e.offset) == place]
