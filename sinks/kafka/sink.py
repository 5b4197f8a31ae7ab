"""A Kafka topic as a sink: rows and txids in one transaction of Kafka's."""

# ruff: noqa: PLC0415 - see sinks/__init__

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from sinks.kafka.messages import Headers, as_json, encode, message_of
from topology.errors import SinkFailed
from topology.masking import mask, secrets_in
from topology.sink import (
    BOTH_KINDS,
    Batch,
    Committed,
    Fence,
    Row,
    Scalar,
    Sink,
    SinkContext,
    Staged,
)

if TYPE_CHECKING:  # they import confluent_kafka; see sinks/__init__
    from sinks.kafka.client import PlainProducer
    from sinks.kafka.transactions_topic import ProducerFence

# A batch waits for the broker once; a hundred times this would only wait longer for its rows.
_BATCH_ROWS = 10_000


class KafkaTopicSink(Sink[Row]):
    """Send a message per row to an existing topic.

    `value` and `key` return bytes, str (sent as UTF-8) or None for a row, `headers` pairs of a
    name and such a value. Without `value` the row is sent as JSON, which has neither NaN nor
    infinities. A row is rejected if one of the functions raises, or if its message is larger than
    the topic allows. Rows of a RecordBatch are dictionaries, as are maps in them, and times are
    cut to microseconds. `properties` are librdkafka's and override the service's `[kafka]`.

    At least once uses an idempotent producer. Exactly once, a micro-batch is one Kafka
    transaction, and only consumers with `isolation.level=read_committed` see each row once. The
    txids are in the compacted topic `transactions_topic` ("<topic>.transactions", created if it is
    missing).
    """

    batch_rows = _BATCH_ROWS
    kinds = BOTH_KINDS

    def __init__(
        self,
        topic: str,
        *,
        value: Callable[[Row], str | bytes | None] = as_json,
        key: Callable[[Row], str | bytes | None] | None = None,
        headers: Callable[[Row], Headers] | None = None,
        transactions_topic: str | None = None,
        properties: Mapping[str, Scalar] | None = None,
    ) -> None:
        self.name = topic
        self.topic = topic
        self.transactions_topic = transactions_topic or f"{topic}.transactions"
        self._properties = dict(properties or {})
        self._message = partial(message_of, topic, value, key, headers)
        self._max_bytes = 0
        self._plain: PlainProducer | None = None
        self._owner: ProducerFence | None = None

    def open(self, context: SinkContext) -> None:
        """Check that the topic exists; under exactly-once, the topic of transactions too.

        Raises SinkFailed, naming the topic, when it is missing or the broker does not answer.
        """
        from confluent_kafka import KafkaException

        from sinks.kafka.client import Cluster, PlainProducer, TransactionalProducer
        from sinks.kafka.transactions_topic import OwnershipLog, ProducerFence

        mask.add(secrets_in(self._properties))
        properties = {**context.kafka, **self._properties}
        cluster = Cluster(properties, "topic_broker_error", self.topic)
        claims = OwnershipLog(cluster, self.transactions_topic, context.pipeline, context.sink)
        try:
            if not cluster.partitions(self.topic):
                raise SinkFailed(f"topic '{self.topic}' does not exist; create it first")
            max_bytes = int(cluster.setting(self.topic, "max.message.bytes"))
            if context.exactly_once:
                claims.open()
        except (KafkaException, ValueError) as error:
            raise SinkFailed(
                f"topic '{self.topic}': {cluster.explain(error)}; a broker that answers, and "
                "the right to write the topic and read its settings, are needed"
            ) from error
        self._max_bytes = max_bytes
        self._plain = PlainProducer(cluster, max_bytes)
        if context.exactly_once:
            name = f"headrace.{context.pipeline}.{context.sink}.{uuid4().hex}"
            self._owner = ProducerFence(
                name, claims, lambda name: TransactionalProducer(cluster, name, max_bytes)
            )

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        if not fences:
            return []  # and nobody owns anything
        return self._owned().fence(fences)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        return self._owned().committed(lines)

    def stage(self, batch: Batch) -> Staged:
        encoded = encode(batch.pieces, self._message, self._max_bytes, batch.traces)
        return Staged(
            batch.shares, len(encoded.messages), tuple(encoded.messages), encoded.rejected
        )

    def commit(self, staged: Staged) -> None:
        """Send the messages, with the txids in one transaction; see the contract.

        Without shares, return when all in-sync replicas have them.
        """
        if staged.shares:
            self._owned().commit(staged.shares, staged.parts)
        elif self._plain is None:
            raise SinkFailed(f"topic '{self.topic}' is not open")
        else:
            self._plain.send(staged.parts)

    def close(self) -> None:
        if self._plain is not None:
            self._plain.close()
        if self._owner is not None:
            self._owner.close()
        self._plain = self._owner = None

    def _owned(self) -> "ProducerFence":
        if self._owner is None:
            raise SinkFailed(f"topic '{self.topic}' is not open for transactions")
        return self._owner
