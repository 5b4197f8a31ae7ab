"""The topic of transactions, read to its end whenever that is asked."""

import time
from typing import TYPE_CHECKING

from sinks.topic.claims import Claims
from sinks.topic.cluster import Cluster

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

_ANSWER_SECONDS = 15.0
_READ_SECONDS = 90.0  # longer than a transaction that nobody ends stays open
_POLL_SECONDS = 0.5


class ClaimsUnread(Exception):
    """The topic of transactions was not read to its end in time."""


class ClaimsTopic:
    """Keeps `claims` as the topic has them. One thread."""

    def __init__(self, cluster: Cluster, topic: str, pipeline: str, sink: str) -> None:
        self.topic = topic
        self._cluster = cluster
        self._of = (pipeline, sink)
        self.claims = Claims(*self._of)
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._position = 0

    def read(self, *, pending: bool) -> None:
        """Read what is committed; with `pending`, first wait for transactions that are open.

        With `pending`, all that was sent before the call has been read afterwards, or was
        aborted. Raises ClaimsUnread, KafkaException, and SinkFailed for what is no claim.
        """
        try:
            self._read_to(self._end(pending=pending))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the clients; the next read begins anew."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._admin = None
        self.claims = Claims(*self._of)
        self._position = 0

    def _end(self, *, pending: bool) -> int:
        from confluent_kafka import IsolationLevel, TopicPartition  # noqa: PLC0415
        from confluent_kafka import admin as administration  # noqa: PLC0415

        if self._admin is None:
            self._admin = administration.AdminClient(self._cluster.conf())
        place = TopicPartition(self.topic, 0)
        latest = administration.OffsetSpec.latest()  # type: ignore[attr-defined, no-untyped-call]
        # What is sent stands below the high watermark before its sender hears of it.
        levels = IsolationLevel
        level = levels.READ_UNCOMMITTED if pending else levels.READ_COMMITTED
        found = self._admin.list_offsets(
            {place: latest}, isolation_level=level, request_timeout=_ANSWER_SECONDS
        )
        return int(found[place].result(_ANSWER_SECONDS).offset)

    def _read_to(self, end: int) -> None:
        """Read committed messages until those below `end` are all decided."""
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition  # noqa: PLC0415

        if self._position >= end:
            return
        consumer = self._consumer or self._begin()
        start = self._position or OFFSET_BEGINNING
        consumer.assign([TopicPartition(self.topic, 0, start)])
        ends = time.monotonic() + _READ_SECONDS
        while self._position < end:
            if time.monotonic() > ends:
                message = f"topic '{self.topic}' was read to {self._position}, not to {end}"
                raise ClaimsUnread(message)
            found = consumer.poll(_POLL_SECONDS)
            if found is not None:
                self._take(found)
        consumer.unassign()  # or it would go on fetching what we write

    def _take(self, message: "Message") -> None:
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415

        error = message.error()
        if error is None:
            self.claims.take(message.key(), message.value())
        elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
            raise KafkaException(error)
        # The end of the partition is told with the place behind all that is decided.
        self._position = (message.offset() or 0) + (error is None)

    def _begin(self) -> "Consumer":
        from confluent_kafka import Consumer  # noqa: PLC0415

        self._consumer = Consumer(
            self._cluster.conf(
                group_id="headrace",  # asked for, and not used
                isolation_level="read_committed",
                enable_auto_commit=False,
                enable_partition_eof=True,
                auto_offset_reset="error",
                fetch_wait_max_ms=50,
            )
        )
        return self._consumer
