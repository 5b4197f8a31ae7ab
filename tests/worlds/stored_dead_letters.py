"""Messages of a dead-letter topic, as `KafkaDeadLetters` writes them."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.dead_letters.messages import StoredDeadLetter, read_message
from sinks.kafka.dead_letters import Header


@dataclass(frozen=True)
class StoredMessage:
    """A message as it is read from a topic."""

    own: Sequence[Header] | None
    content: bytes | None = b"{broken"
    at: int = 17
    number: int = 2

    def value(self) -> bytes | None:
        return self.content

    def key(self) -> bytes | None:
        return b"AA"

    def topic(self) -> str:
        return "orders.dead"

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_123

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return None if self.own is None else list(self.own)


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
    """Return a dead letter as it is read."""
    found = read_message(StoredMessage([*own, *facts(**more)], at=at, number=number))
    assert isinstance(found, StoredDeadLetter), found
    return found
