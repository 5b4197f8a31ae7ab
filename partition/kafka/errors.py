"""What librdkafka's error codes and texts mean to this room."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Message

from partition.errors import (
    CorruptRecord,
    KafkaError,
    KafkaFailed,
    KafkaUnavailable,
    OffsetOutOfRange,
    PartitionError,
    TopicMissing,
)
from partition.records import Partition

EOF = Code._PARTITION_EOF  # noqa: SLF001
ALL_DOWN = Code._ALL_BROKERS_DOWN  # noqa: SLF001
OUT_OF_RANGE = {
    Code._AUTO_OFFSET_RESET,  # noqa: SLF001
    Code._LOG_TRUNCATION,  # noqa: SLF001
    Code.OFFSET_OUT_OF_RANGE,
}
MISSING = {
    Code.UNKNOWN_TOPIC_OR_PART,
    Code.TOPIC_EXCEPTION,
    Code._UNKNOWN_TOPIC,  # noqa: SLF001
    Code._UNKNOWN_PARTITION,  # noqa: SLF001
}
# librdkafka tells these of a partition, and then reads on behind what it could not read.
UNREADABLE = {
    Code._BAD_MSG,  # noqa: SLF001
    Code._BAD_COMPRESSION,  # noqa: SLF001
    Code._NOT_IMPLEMENTED,  # noqa: SLF001 - a version of the record format
    Code._UNDERFLOW,  # noqa: SLF001
    Code.INVALID_MSG,
    Code.INVALID_MSG_SIZE,
    Code.MSG_SIZE_TOO_LARGE,
}
# That rights on the group are missing is not among them: librdkafka asks for its coordinator, but
# only what is mirrored to it needs one, and nothing depends on that.
REFUSED = {
    Code._AUTHENTICATION,  # noqa: SLF001
    Code._FATAL,  # noqa: SLF001
    Code.SASL_AUTHENTICATION_FAILED,
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.UNSUPPORTED_SASL_MECHANISM,
    Code.ILLEGAL_SASL_STATE,
    Code.UNSUPPORTED_VERSION,
}

# "Partition log truncation detected at offset 100 (leader epoch 0): broker end offset is 60
# (offset leader epoch 0)."; also "No epoch found ...: broker end offset is -1".
_TRUNCATION = re.compile(r"offset (\d+) \(leader epoch -?\d+\): broker end offset is (-?\d+)")
# "t [0]: topic does not exist (Broker: Unknown topic or partition)", of each partition.
_PLACE = re.compile(r"(\S+) \[(\d+)\]: ")


class Truncation(NamedTuple):
    """What librdkafka says of a log that was cut off."""

    offset: int  # the one that was checked
    diverged_at: int | None  # None: the broker does not know the epoch at all


def truncation(text: str) -> Truncation | None:
    """Read an error's text; None if it tells of something else."""
    found = _TRUNCATION.search(text)
    if found is None:
        return None
    end = int(found[2])
    return Truncation(int(found[1]), end if end >= 0 else None)


def place_in(text: str) -> Partition | None:
    """Return the partition that a general error's text begins with."""
    found = _PLACE.match(text)
    return None if found is None else Partition(found[1], int(found[2]))


def is_refused(error: Code) -> bool:
    """Whether trying again cannot help: credentials, rights, a broken client."""
    return error.fatal() or error.code() in REFUSED


def code_of(error: BaseException) -> Code:
    """Return what an exception of confluent_kafka carries."""
    carried = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return carried if isinstance(carried, Code) else Code(Code._FAIL, str(error))  # noqa: SLF001


def asked(what: str, error: Code, topic: str = "") -> PartitionError:
    """Return what a question's failure is here; `what` is what was asked: "for ..."."""
    if topic and error.code() in MISSING:
        return TopicMissing(topic)
    if is_refused(error):
        return KafkaFailed(f"Kafka refuses {what}: {error.str()} ({error.name()})")
    return KafkaUnavailable(what, f"{error.str()} ({error.name()})")


def before_stops(received: list[Message], stops: Mapping[Partition, Message]) -> list[Message]:
    """Return the records, without those that came after what stopped their partition."""
    kept = []
    events = {id(event): partition for partition, event in stops.items()}
    stopped: set[Partition] = set()
    for message in received:
        if message.error() is not None:
            if id(message) in events:
                stopped.add(events[id(message)])
        elif (message.topic(), message.partition()) not in stopped:
            kept.append(message)
    return kept


def failure_of(partition: Partition, offset: int, error: Code) -> KafkaError:
    """Return what stopped a partition that was to be read on at an offset."""
    if error.code() in OUT_OF_RANGE:
        cut = truncation(error.str())
        diverged_at = None if cut is None else cut.diverged_at
        return OffsetOutOfRange(partition, offset, error.str(), diverged_at)
    if error.code() in MISSING:
        return TopicMissing(partition.topic)
    return CorruptRecord(partition, offset, error.str())
