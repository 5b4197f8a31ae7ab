"""Ranges of Kafka's partitions as a DataFrame, read by executors with Spark's own Kafka source."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sinks.spark.settings import java_text
from topology.errors import SinkFailed
from topology.sink import Scalar
from topology.spark_step import KAFKA_COLUMNS

_DEFAULTS = {
    # By the group executors know their consumers again, and with it what these have prefetched.
    "group.id": "headrace",
    "max.poll.records": "20000",  # three times as fast as with 500, Kafka's own
    "isolation.level": "read_committed",  # as librdkafka has it
}
_SILENT_MS = "30000"  # so long nothing may come of a range; four tasks in vain fail the job
_SAME = frozenset(
    {
        "bootstrap.servers", "security.protocol", "client.id", "client.rack", "client.dns.lookup",
        "group.id", "isolation.level", "check.crcs", "socket.connection.setup.timeout.ms",
        "fetch.min.bytes", "fetch.max.bytes",
        "max.partition.fetch.bytes", "metadata.max.age.ms", "connections.max.idle.ms",
        "reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms",
        "retry.backoff.max.ms", "sasl.mechanism", "sasl.kerberos.service.name",
        "ssl.endpoint.identification.algorithm", "ssl.key.password",
    }
)  # fmt: skip
_NAMED = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
}
_WORDS = {("ssl.endpoint.identification.algorithm", "none"): ""}  # where Java says it otherwise
_FILES = {  # librdkafka wants a file; its text can be sent to executors that lack the file
    "ssl.ca.location": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}
_TEXTS = {
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
# They only tune librdkafka's queues and threads.
_WITHOUT_EFFECT = (
    "queued.", "fetch.queue.", "fetch.message.max.bytes", "fetch.error.",
    "statistics.interval.ms", "log", "debug", "session.timeout.ms", "heartbeat.interval.ms",
    "max.poll.interval.ms", "partition.assignment.strategy", "topic.metadata.",
    "socket.keepalive.enable", "socket.timeout.ms", "socket.nagle.disable", "socket.send.",
    "socket.receive.", "socket.max.fails", "broker.address.", "api.version.", "broker.version.",
    "message.max.bytes", "receive.message.max.bytes", "client.software.", "enable.metrics.push",
)  # fmt: skip
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class KafkaRange(NamedTuple):
    """Offsets of one partition, from `first` to before `end`."""

    topic: str
    partition: int
    first: int
    end: int


def read_ranges(
    session: Any,
    properties: Mapping[str, Scalar],
    ranges: Iterable[KafkaRange],
    *,
    tasks: int | None = None,
) -> Any:
    """A DataFrame of the records in these ranges, at least one, in KAFKA_COLUMNS; nothing is read.

    `properties` are librdkafka's. With `tasks`, so many tasks read at least, and the records of
    a range are then not in order of their tasks. A job fails if a log does not hold all of a
    range. Raises as `java_properties`.
    """
    first: dict[str, dict[str, int]] = {}
    end: dict[str, dict[str, int]] = {}
    for each in ranges:
        first.setdefault(each.topic, {})[str(each.partition)] = each.first
        end.setdefault(each.topic, {})[str(each.partition)] = each.end
    options = {f"kafka.{name}": value for name, value in java_properties(properties).items()}
    reader = session.read.format("kafka").options(
        assign=json.dumps({topic: sorted(map(int, parts)) for topic, parts in first.items()}),
        startingOffsets=json.dumps(first),
        endingOffsets=json.dumps(end),
        failOnDataLoss="true",
        includeHeaders="true",
        **options,
        **{"kafkaConsumer.pollTimeoutMs": _SILENT_MS},
    )
    if tasks is not None:
        reader = reader.option("minPartitions", tasks)
    return reader.load().select(*KAFKA_COLUMNS.names)


def java_properties(properties: Mapping[str, Scalar]) -> dict[str, str]:
    """The properties of librdkafka under the names of Java's client.

    What only tunes librdkafka is left out. Raises SinkFailed, naming it, for a property that has
    no counterpart, and for a file that cannot be read.
    """
    found = dict(_DEFAULTS)
    for name, value in properties.items():
        text = java_text(value)
        if name in _SAME:
            found[name] = _WORDS.get((name, text), text)
        elif name in _NAMED:
            found[_NAMED[name]] = text
        elif name in _TEXTS:
            found[_TEXTS[name]] = text
        elif name in _FILES:
            found[_FILES[name]] = _read(name, text)
        elif name not in ("sasl.username", "sasl.password") and not name.startswith(
            _WITHOUT_EFFECT
        ):
            raise SinkFailed(
                f"[kafka] '{name}': Spark's Kafka source has no such property; put a bolt before "
                'the Spark step, or choose engine = "local": then librdkafka reads the topics'
            )
    if "ssl.truststore.certificates" in found:
        found["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.key" in found:
        found["ssl.keystore.type"] = "PEM"
    if "sasl.username" in properties:
        found["sasl.jaas.config"] = _login(found.get("sasl.mechanism", "GSSAPI"), properties)
    return found


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SinkFailed(
            f"[kafka] '{name}': found {path}, which cannot be read ({error}); with Spark's Kafka "
            "source allowed is a PEM file"
        ) from error


def _login(mechanism: str, properties: Mapping[str, Scalar]) -> str:
    module = _LOGIN.get(mechanism)
    if module is None:
        raise SinkFailed(
            f"[kafka] 'sasl.mechanism': found {mechanism}; with Spark's Kafka source allowed are "
            f"{', '.join(_LOGIN)}"
        )
    name, password = (
        str(properties.get(f"sasl.{each}", "")).replace("\\", "\\\\").replace('"', '\\"')
        for each in ("username", "password")
    )
    return f'{module} required username="{name}" password="{password}";'
