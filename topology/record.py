"""One Kafka record, as a bolt sees it."""

from typing import Any, Protocol

import msgspec


class Message(Protocol):
    """What a record asks of the message it stands for (`confluent_kafka.Message` has it all)."""

    def value(self) -> bytes | None:
        """The payload, or None (a tombstone)."""
        ...

    def key(self) -> bytes | None:
        """The key, or None."""
        ...

    def topic(self) -> str:
        """Its topic."""
        ...

    def partition(self) -> int:
        """Its partition's number."""
        ...

    def offset(self) -> int:
        """Its place in the partition."""
        ...

    def timestamp(self) -> tuple[int, int]:
        """The kind of time stamp, and milliseconds since the epoch."""
        ...

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Its headers in order, or None."""
        ...


class Record(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One Kafka message: topic, partition, offset, timestamp, key, value, headers.

    Only `value` is stored; the rest is read from the message when asked for, because
    most bolts never ask and the hot loop builds one record per message.
    """

    value: bytes | None
    message: Any  # a Message; Any, because a protocol would be checked per record

    @property
    def key(self) -> bytes | None:
        """The record's key, or None."""
        key: bytes | None = self.message.key()
        return key

    @property
    def topic(self) -> str:
        """The topic it was read from."""
        topic: str = self.message.topic()
        return topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        partition: int = self.message.partition()
        return partition

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        offset: int = self.message.offset()
        return offset

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since the epoch, as the broker or the producer set them."""
        _kind, milliseconds = self.message.timestamp()
        return int(milliseconds)

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers in order; a name may occur twice."""
        return tuple(self.message.headers() or ())

    def __reduce__(self) -> Any:
        """What is pickled: all of it, as the client's own messages cannot be."""
        message = self.message
        kept = KeptMessage(
            message.value(),
            message.key(),
            message.topic(),
            message.partition(),
            message.offset(),
            message.timestamp(),
            message.headers(),
        )
        return Record, (self.value, kept)


class KeptMessage(msgspec.Struct, frozen=True, gc=False):
    """A Message that holds what it tells: one that has come from another process."""

    value_: bytes | None
    key_: bytes | None
    topic_: str
    partition_: int
    offset_: int
    timestamp_: tuple[int, int]
    headers_: list[tuple[str, bytes | None]] | None

    def value(self) -> bytes | None:
        """See Message."""
        return self.value_

    def key(self) -> bytes | None:
        """See Message."""
        return self.key_

    def topic(self) -> str:
        """See Message."""
        return self.topic_

    def partition(self) -> int:
        """See Message."""
        return self.partition_

    def offset(self) -> int:
        """See Message."""
        return self.offset_

    def timestamp(self) -> tuple[int, int]:
        """See Message."""
        return self.timestamp_

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """See Message."""
        return self.headers_

    def __len__(self) -> int:
        """The payload's bytes."""
        return len(self.value_ or b"")
