"""What can go wrong in the partition room.

PartitionError
├── KafkaError             reading Kafka
│   ├── TopicMissing       the topic does not exist
│   ├── CountsDiffer       topics that are joined have not as many partitions each
│   ├── KafkaUnavailable   no broker answers now; trying again can help
│   ├── KafkaFailed        trying again cannot help: credentials, rights
│   │   └── KafkaMisconfigured   a property is wrong
│   ├── OffsetOutOfRange   the log does not hold the offset to read next
│   ├── SourceLost         records were lost before they were read, and policy says halt
│   └── CorruptRecord      a record's checksum is wrong
├── TransactionError       what is stored of open transactions, the sinks' word, and the log differ
│   ├── ReplayDiffers      the log does not give the records of an open transaction again
│   ├── SinkAhead          a sink has transactions that were never recorded here
│   ├── StoreBehind        a sink knows a later epoch than the offset store
│   ├── SinkStateLost      a sink has lost transactions that were committed
│   └── KindChanged        transactions of another kind are open
└── StoreError             storing offsets; as itself: refused for good (rights, size)
    ├── StoreUnavailable   no answer now; trying again can help
    ├── StoreCorrupt       what is stored is no offset
    ├── StoreMissing       an offset was stored once and is gone
    ├── StoreForeign       another topology's offset is stored there
    ├── StoreConflict      there is something already where a first offset was to be stored
    ├── Fenced             someone else took over a partition that was ours
    ├── OwnershipLost      the session that held the partition has ended
    ├── OffsetWouldMoveBack
    ├── StormUnreadable    Storm's nodes do not say where it stopped
    └── ReplicaReplaced    another process runs under our replica's name
"""

from collections.abc import Mapping


class PartitionError(Exception):
    """Something is wrong in reading a partition, or in storing its offset."""


class KafkaError(PartitionError):
    """Kafka could not be read."""


class TopicMissing(KafkaError):
    """The topic does not exist."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic '{topic}' does not exist; create it, or correct its name")
        self.topic = topic


class CountsDiffer(KafkaError):
    """Topics that meet in a step that keeps records have not as many partitions each."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        found = ", ".join(f"'{topic}' with {count}" for topic, count in sorted(counts.items()))
        super().__init__(
            "topics that meet in an advanced bolt, or in a step by key, have different numbers of "
            f"partitions: found {found}, expected the same number for each. Add partitions to "
            "those with fewer, or give each its own step"
        )
        self.counts = dict(counts)


class KafkaUnavailable(KafkaError):
    """No broker answered in time; it may answer later."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"Kafka does not answer {what}: {reason}")
        self.what = what
        self.reason = reason


class KafkaFailed(KafkaError):
    """Kafka refuses, or the client cannot go on; trying again cannot help."""


class KafkaMisconfigured(KafkaFailed):
    """A property of Kafka's client is unknown, of a wrong value, or not the user's to set."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"kafka: {reason}; allowed: librdkafka's properties of a consumer")
        self.reason = reason


class OffsetOutOfRange(KafkaError):
    """The log does not hold the offset that is to be read next (deleted, or cut off)."""

    def __init__(
        self, partition: object, offset: int, reason: str = "", diverged_at: int | None = None
    ) -> None:
        super().__init__(
            f"{partition} does not hold offset {offset}, the next to read"
            + (f": {reason}" if reason else "")
        )
        self.partition = partition
        self.offset = offset
        self.reason = reason
        self.diverged_at = diverged_at  # the log was cut off here and written anew


class SourceLost(KafkaError):
    """Records are gone that were never read, or the log is another one than it was."""

    def __init__(self, partition: object, reason: str, offset: int, found: str) -> None:
        super().__init__(
            f"{partition} lost records ({reason}): offset {offset} was to be read next, {found}; "
            'look into it, then set on_data_loss = "skip" to go on, or move the offset'
        )
        self.partition = partition
        self.reason = reason
        self.offset = offset
        self.found = found


class CorruptRecord(KafkaError):
    """A record at or after an offset does not match its checksum."""

    def __init__(self, partition: object, offset: int, reason: str = "") -> None:
        super().__init__(
            f"{partition} has a corrupt record at or after offset {offset}"
            + (f": {reason}" if reason else "")
        )
        self.partition = partition
        self.offset = offset
        self.reason = reason


class TransactionError(PartitionError):
    """Open transactions, the sinks, and the log do not fit together."""


class ReplayDiffers(TransactionError):
    """The log does not give the records of an open transaction again."""

    def __init__(self, partition: object, txid: int, expected: str, found: str) -> None:
        super().__init__(
            f"{partition} transaction {txid} was of {expected}, but {found}; "
            "see docs/how-to/when-a-replay-differs.md"
        )
        self.partition = partition
        self.txid = txid
        self.expected = expected
        self.found = found


class SinkAhead(TransactionError):
    """A sink has committed a transaction that is not recorded in the offset store."""

    def __init__(self, partition: object, sink: str, found: int, recorded: int) -> None:
        super().__init__(
            f"{partition}: sink '{sink}' has transaction {found}, the offset store knows up to "
            f"{recorded}; offsets were put back or removed, or two pipelines share a name"
        )
        self.partition = partition
        self.sink = sink
        self.found = found
        self.recorded = recorded


class StoreBehind(TransactionError):
    """A sink knows a later epoch of a partition than the offset store, where nobody raised it."""

    def __init__(self, partition: object, epoch: int, reason: str) -> None:
        super().__init__(
            f"{partition}: epoch {epoch} is the newest in the offset store, but a sink knows a "
            f"later one ({reason}); offsets were put back or removed, or two pipelines share a "
            "name; see docs/how-to/when-a-replay-differs.md"
        )
        self.partition = partition
        self.epoch = epoch
        self.reason = reason


class SinkStateLost(TransactionError):
    """A sink does not know of transactions that were committed in it."""

    def __init__(self, partition: object, sink: str, found: int, committed: int) -> None:
        super().__init__(
            f"{partition}: sink '{sink}' has transactions up to {found}, but {committed} were "
            "committed in it; its table was removed or put back, or its step is new or renamed"
        )
        self.partition = partition
        self.sink = sink
        self.found = found
        self.committed = committed


class KindChanged(TransactionError):
    """Transactions of another kind than the topology's are open."""

    def __init__(self, partition: object, stored: str, asked: str) -> None:
        super().__init__(
            f"{partition} has open transactions that are {stored}, the topology is {asked}; "
            f"run it as {stored} until it is drained, then change it"
        )
        self.partition = partition
        self.stored = stored
        self.asked = asked


class StoreError(PartitionError):
    """An offset could not be stored or read, and trying again cannot help."""


class StoreUnavailable(StoreError):
    """The offset store did not answer; whether there is an offset is not known."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"the offset store does not answer {what}: {reason}")
        self.what = what
        self.reason = reason


class StoreCorrupt(StoreError):
    """What is stored is no offset."""

    def __init__(
        self,
        path: str,
        found: str,
        needed: str = 'a JSON object with a string "topology"."id" and an integer "offset" from 0',
    ) -> None:
        super().__init__(f"{path} cannot be read: {found}; {needed} is needed")
        self.path = path
        self.found = found


class StoreMissing(StoreError):
    """An offset was stored once, and its node is gone."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is missing, but an offset was stored there; restore or move it")
        self.path = path


class StoreForeign(StoreError):
    """Another topology stored the offset."""

    def __init__(self, path: str, found: str, ours: str) -> None:
        super().__init__(
            f"{path} holds an offset of topology '{found}', not of '{ours}'; "
            "use another pipeline name or root, or ignore_stored_offsets"
        )
        self.path = path
        self.found = found
        self.ours = ours


class OwnershipLost(StoreError):
    """The session in which a partition was claimed has ended; it must be claimed again."""

    def __init__(self, partition: object) -> None:
        super().__init__(f"the session that held {partition} has ended; claim it again")
        self.partition = partition


class GivenUp(StoreError):
    """A partition is not this replica's any more: the plan gives it to another."""

    def __init__(self, partition: object, why: str) -> None:
        super().__init__(f"{partition} is given up: {why}")
        self.partition = partition


class StoreConflict(StoreError):
    """An offset is stored already where the first one was to be stored."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(f"{path} exists already and holds {found}; load it instead")
        self.path = path
        self.found = found


class Fenced(StoreError):
    """Someone else stored an offset for a partition since this process did.

    This process no longer owns the partition and must not emit or commit anything of it.
    """

    def __init__(self, partition: object, found: str) -> None:
        super().__init__(f"{partition} has been taken over: {found}")
        self.partition = partition
        self.found = found


class OffsetWouldMoveBack(StoreError):
    """A commit below the stored offset was refused."""

    def __init__(self, partition: object, stored: int, offset: int) -> None:
        super().__init__(f"{partition} is stored at offset {stored}; {offset} would move it back")
        self.partition = partition
        self.stored = stored
        self.offset = offset


class ReplicaReplaced(StoreError):
    """Another process has registered under our replica's name since we did.

    This process has nothing to do any more: what was its own is the other's.
    """

    def __init__(self, name: str, other: str) -> None:
        super().__init__(
            f"another process, {other}, runs as replica '{name}'; this one ends. "
            "Give each replica that runs at the same time a name of its own"
        )
        self.name = name
        self.other = other


class StormUnreadable(StoreError):
    """A node of Storm's does not say where it stopped reading."""

    def __init__(self, path: str, found: str, needed: str) -> None:
        super().__init__(f"{path}: found {found}; needed: {needed}")
        self.path = path
        self.found = found
        self.needed = needed
