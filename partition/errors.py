"""Errors of the partition package. A class's `text` is its message, filled from its fields.

A partition with a TransactionError or StoreError is lost: nothing more of it is emitted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import dataclass_transform

_PUT_BACK = "offsets were put back or removed, or two pipelines share a name"
_REPLAY_GUIDE = "see docs/how-to/when-a-replay-differs.md"


class PartitionError(Exception):
    """Reading a partition, or storing its offset, failed."""


@dataclass_transform()
class _Facts(PartitionError):
    """An error with fields, which its `text` names; `{why}` is its reason, if it has one."""

    text = ""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __str__(self) -> str:
        facts = vars(self)
        why = f": {facts['reason']}" if facts.get("reason") else ""
        return self.text.format_map({**facts, "why": why})


# Reading Kafka


class KafkaError(PartitionError):
    """A partition cannot be read on. What was read of it is still committed."""


class TopicMissing(_Facts, KafkaError):
    topic: str
    text = "topic '{topic}' does not exist; create it, or correct its name"


class CountsDiffer(_Facts, KafkaError):
    counts: Mapping[str, int]

    def __str__(self) -> str:
        counts = sorted(self.counts.items())
        found = ", ".join(f"'{topic}' with {count}" for topic, count in counts)
        return (
            "topics that meet in an advanced bolt, or in a step by key, have different numbers of "
            f"partitions: found {found}, expected the same number for each. Add partitions to "
            "those with fewer, or give each its own step"
        )


class KafkaUnavailable(_Facts, KafkaError):
    """No broker answered in time; it may answer later."""

    what: str
    reason: str
    text = "Kafka does not answer {what}: {reason}"


class KafkaFailed(KafkaError):
    """Kafka refuses, or the client cannot go on; trying again cannot help."""


class KafkaMisconfigured(_Facts, KafkaFailed):
    """A property of Kafka's client is unknown, of a wrong value, or not the user's to set."""

    reason: str
    text = "kafka: {reason}, expected librdkafka's properties of a consumer"


class OffsetOutOfRange(_Facts, KafkaError):
    partition: object
    offset: int
    reason: str = ""
    diverged_at: int | None = None  # the log was cut off here and written anew
    text = "{partition} does not hold offset {offset}, the next to read{why}"


class SourceLost(_Facts, KafkaError):
    partition: object
    reason: str
    offset: int
    found: str
    text = (
        "{partition} lost records ({reason}): offset {offset} was to be read next, {found}; "
        'look into it, then set on_data_loss = "skip" to go on, or move the offset'
    )


class CorruptRecord(_Facts, KafkaError):
    partition: object
    offset: int
    reason: str = ""
    text = "{partition} has a corrupt record at or after offset {offset}{why}"


# Transactions


class TransactionError(PartitionError):
    """Open transactions differ between the store, the sinks and the log."""


class ReplayDiffers(_Facts, TransactionError):
    partition: object
    txid: int
    expected: str
    found: str
    text = "{partition} transaction {txid} was of {expected}, but {found}; " + _REPLAY_GUIDE


class SinkAhead(_Facts, TransactionError):
    partition: object
    sink: str
    found: int
    recorded: int
    text = (
        "{partition}: sink '{sink}' has transaction {found}, the offset store knows up to "
        "{recorded}; " + _PUT_BACK
    )


class StoreBehind(_Facts, TransactionError):
    """A sink knows a later epoch of a partition than the offset store, where nobody raised it."""

    partition: object
    epoch: int
    reason: str
    text = (
        "{partition}: epoch {epoch} is the newest in the offset store, but a sink knows a "
        "later one ({reason}); " + f"{_PUT_BACK}; {_REPLAY_GUIDE}"
    )


class SinkStateLost(_Facts, TransactionError):
    partition: object
    sink: str
    found: int
    committed: int
    text = (
        "{partition}: sink '{sink}' has transactions up to {found}, but {committed} were "
        "committed in it; its table was removed or put back, or its step is new or renamed"
    )


class KindChanged(_Facts, TransactionError):
    partition: object
    stored: str
    asked: str
    text = (
        "{partition} has open transactions that are {stored}, the topology is {asked}; "
        "run it as {stored} until it is drained, then change it"
    )


# Storing offsets


class StoreError(PartitionError):
    """An offset could not be stored or read, and trying again cannot help (rights, size)."""


class StoreUnavailable(_Facts, StoreError):
    """The offset store did not answer; whether there is an offset is not known."""

    what: str
    reason: str
    text = "the offset store does not answer {what}: {reason}"


class StoreHostsUnknown(StoreUnavailable):
    """No name among the store's hosts has an address; most likely they are wrong."""

    text = "zookeeper.hosts: found {what}: {reason}, expected host:port,host:port"


class StoreCorrupt(_Facts, StoreError):
    path: str
    found: str
    needed: str = 'a JSON object with a string "topology"."id" and an integer "offset" from 0'
    text = "{path} cannot be read: {found}; {needed} is needed"


class StoreMissing(_Facts, StoreError):
    path: str
    text = "{path} is missing, but an offset was stored there; restore or move it"


class StoreForeign(_Facts, StoreError):
    path: str
    found: str
    ours: str
    text = (
        "{path} holds an offset of topology '{found}', not of '{ours}'; "
        "use another pipeline name or root, or ignore_stored_offsets"
    )


class StoreConflict(_Facts, StoreError):
    path: str
    found: str
    text = "{path} exists already and holds {found}; load it instead"


class Fenced(_Facts, StoreError):
    """Someone else stored an offset for a partition since this process did.

    This process no longer owns the partition and must not emit or commit anything of it.
    """

    partition: object
    found: str
    text = "{partition} has been taken over: {found}"


class OwnershipLost(_Facts, StoreError):
    partition: object
    text = "the session that held {partition} has ended; claim it again"


class GivenUp(_Facts, StoreError):
    partition: object
    reason: str
    text = "{partition} is given up{why}"


class OffsetWouldMoveBack(_Facts, StoreError):
    partition: object
    stored: int
    offset: int
    text = "{partition} is stored at offset {stored}; {offset} would move it back"


class ReplicaReplaced(_Facts, StoreError):
    """Another process has registered under our replica's name: what was ours is the other's."""

    name: str
    other: str
    text = (
        "another process, {other}, runs as replica '{name}'; this one ends. "
        "Give each replica that runs at the same time a name of its own"
    )


class StormUnreadable(_Facts, StoreError):
    path: str
    found: str
    needed: str
    text = "{path}: found {found}; needed: {needed}"
