"""The sink, whose batches become durable whole, and the dead-letter topic; both may be slow."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Write:
    """A batch on its way to the sink. `told` hears of its end: the places that were rejected."""

    rows: list[Any]
    durable: Callable[[Any], None]  # called once for each row that is durable, at that moment
    told: Callable[[frozenset[int]], None]
    tries: int = 0
    rejected: frozenset[int] = frozenset()
    landed: bool = False


@dataclass(slots=True)
class SimSink:
    """Batches of all replicas; a batch goes on being written when its writer has died."""

    seen: Callable[[str], None]
    busy: bool = False
    writes: list[Write] = field(default_factory=list)
    rows: int = 0

    def submit(self, write: Write) -> None:
        """Take a batch."""
        self.writes.append(write)

    def advance(self, which: int, how: int) -> None:
        """Let one batch go a step on: fail, become durable, be told, lose its reply."""
        if not self.writes or self.busy:
            return
        write = self.writes[which % len(self.writes)]
        write.tries += 1
        if not write.landed:
            if how % 8 == 0:
                self.seen("sink_write_failed_and_was_tried_again")
                return
            if how % 8 == 1:
                write.rejected = frozenset({how % len(write.rows)})
            self._land(write)
            return
        if how % 8 == 0:
            self.seen("sink_reply_lost_and_batch_written_again")
            write.landed = False
            return
        self.writes.remove(write)
        write.told(write.rejected)

    def _land(self, write: Write) -> None:
        write.landed = True
        for place, row in enumerate(write.rows):
            if place not in write.rejected:
                write.durable(row)
                self.rows += 1


@dataclass(slots=True, eq=False)
class Letter:
    """A dead letter or a range notice on its way."""

    durable: Callable[[], None]
    told: Callable[..., None]  # (durable=...)


@dataclass(slots=True)
class SimLetters:
    """The dead-letter topic of all replicas."""

    seen: Callable[[str], None]
    away: bool = False
    letters: list[Letter] = field(default_factory=list)
    written: int = 0

    def send(self, letter: Letter) -> None:
        """Take a letter."""
        self.letters.append(letter)

    def advance(self, which: int, how: int) -> None:
        """Make a letter durable and tell so, or refuse it."""
        if not self.letters:
            return
        letter = self.letters.pop(which % len(self.letters))
        if self.away or how % 8 == 0:
            self.seen("dead_letter_refused")
            letter.told(durable=False)
            return
        letter.durable()
        self.written += 1
        letter.told(durable=True)
