"""The properties of librdkafka with which records are read."""

from collections.abc import Mapping
from typing import TypeAlias

from partition.errors import KafkaMisconfigured

Scalar: TypeAlias = str | int | float | bool

# What the promises rest on: an offset is committed by the offset store only, nothing is
# skipped silently, and the log's end is told with its offset.
FORCED: Mapping[str, Scalar] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
DEFAULTS: Mapping[str, Scalar] = {
    "group.id": "headrace",  # librdkafka demands one; only the mirror commits under it
    "session.timeout.ms": 6_000,  # there is no session: how long a mirrored commit may wait
    "check.crcs": True,  # without it a flipped bit on the broker's disk is delivered
    "queued.min.messages": 20_000,  # of all partitions; below that more are fetched
    "queued.max.messages.kbytes": 16_384,  # bounds the prefetch, over all partitions
    "max.partition.fetch.bytes": 262_144,  # of each partition, beyond that bound
    "fetch.queue.backoff.ms": 5,  # a drained queue is filled again at once
}
# librdkafka warns of each of these in a client that is no consumer.
_CONSUMERS = (
    "group.",
    "enable.auto.",
    "auto.",
    "enable.partition.eof",
    "queued.",
    "fetch.",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "partition.assignment.strategy",
    "coordinator.query.interval.ms",
    "isolation.level",
    "check.crcs",
    "consume.",
    "offset.store.",
    "statistics.interval.ms",
)


def consumer_properties(properties: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the user's properties, over DEFAULTS, with FORCED.

    Raises KafkaMisconfigured for one that is forced.
    """
    for key, value in FORCED.items():
        if key in properties:
            raise KafkaMisconfigured(f"'{key}' is always {str(value).lower()} here; remove it")
    return {**DEFAULTS, **properties, **FORCED}


def admin_properties(properties: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return those of the user's properties that are not a consumer's alone.

    Raises KafkaMisconfigured for one that is forced for the consumer.
    """
    consumer_properties(properties)
    return {key: value for key, value in properties.items() if not key.startswith(_CONSUMERS)}
