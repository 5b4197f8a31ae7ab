"""Dead letters as they are read, and a topic of them in memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from partition.interfaces import Log
from service.dead_letters.stored import (
    RecordContent,
    StoredDeadLetter,
    collect_marks,
    read_message,
)
from service.dead_letters.topic_reader import DeadLetterTopic
from sinks.kafka.client import NotAccepted, RecordMetadata
from sinks.kafka.dead_letter_sink import Header
from topology.record import HeldMessage


def stored_message(
    own: Sequence[Header] | None, content: bytes | None = b"{broken", at: int = 17, number: int = 2
) -> HeldMessage:
    headers = None if own is None else list(own)
    return HeldMessage(content, b"AA", "orders.dead", number, at, (1, 1_700_000_000_123), headers)


def facts(**more: object) -> list[Header]:
    """Return the headers that the sink appends to the record's own."""
    said: dict[str, object] = {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1_700_000_000_000,
        "reason": "not JSON",
        "step": "parse",
        "attempts": 3,
        "error_class": "ValueError",
        "failed_at_ms": 1_700_000_009_999,
        "pipeline": "orders",
    }
    return [(f"headrace.{name}", str(each).encode()) for name, each in (said | more).items()]


def dead_letter(
    own: Sequence[Header] = (), at: int = 17, number: int = 2, **more: object
) -> StoredDeadLetter:
    found = read_message(stored_message([*own, *facts(**more)], at=at, number=number))
    assert isinstance(found, StoredDeadLetter), found
    return found


class MemoryTopic(DeadLetterTopic):
    """Messages of partition 2, and a producer that appends to them or fails as told."""

    def __init__(self, *messages: HeldMessage, sources: dict[str, tuple[int, ...]]) -> None:
        self.name, self.pipeline = "orders.dead", "orders"
        self.messages = list(messages)
        self.sources = sources
        self.records: dict[int, RecordContent] = {}
        self.errors: list[Exception | None] = []  # of commits
        self.rejects = ""  # why no record is taken
        self.sent: list[list[str]] = []
        self.opened: Callable[[], object] = lambda: None
        self.refresh()

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def refresh(self, after=None):
        self._ends = {2: Log(0, 2_000)}
        self.marks = collect_marks(self.messages)

    def partitions(self, name):
        return self.sources.get(name, ())

    def _record(self, origin):
        return self.records.get(origin.offset, "it has expired")

    def _messages(self, extent):
        for each in self.messages:
            log = extent.get(each.partition())
            if log is not None and log.start <= each.offset() < log.end:
                yield each

    @contextmanager
    def producer(self) -> Iterator["MemoryTopic"]:
        self.opened()
        yield self

    def commit(self, messages, then) -> None:
        if messages and self.rejects:
            raise NotAccepted(self.rejects)
        stored = [RecordMetadata(each.partition or 0, 100 + i) for i, each in enumerate(messages)]
        marks = then(stored)
        self.sent.append([f"{each.topic}:{each.partition}" for each in messages])
        if self.errors and (error := self.errors.pop(0)):
            raise error
        self.messages += [stored_message(each.headers, each.value, 1000) for each in marks]


def topic_of(*letters: HeldMessage) -> MemoryTopic:
    return MemoryTopic(*letters, sources={"orders": (0, 1, 2, 3), "small": (0, 1), "new": (0,)})


def stored(at: int = 1, offset: int = 42, own: Sequence[Header] = (), **more) -> HeldMessage:
    return stored_message([*own, *facts(offset=offset, **more)], at=at)
