"""Ownership of the transactions of a topic sink, and the committed txids, in a compacted topic.

Kafka fences producers, not partitions of the source, and only the transactions of one producer
are atomic. So a process has one producer for all its lines. It claims a line in a compacted
topic beside the rows' topic:

1. write the claim (line, epoch, my producer),
2. fence every other producer that claims the line, by opening one of its name,
3. read the topic to its end; if another producer claims the line by now, repeat 2,
4. give way if a claim has a higher epoch,
5. withdraw the fenced claims, and renew mine with the highest txid found.

A producer commits nothing on a line after a later owner's step 2. A fenced producer reopens
itself and claims its lines anew: it keeps those that nobody took, and sees the claim on the
others, since step 1 comes before step 2.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple, TypeVar
from uuid import uuid4

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Message as Received
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sinks.kafka.client import Cluster, TransactionalProducer, TransactionFailed
from sinks.kafka.messages import OutgoingMessage
from sinks.shares import check_fences, is_to_commit
from topology.errors import SinkFailed
from topology.sink import Committed, Fence, Scalar, Share

Result = TypeVar("Result")

_MOST_FAILED = 5  # in a row: the broker rejects them, or others keep claiming our lines
_ANSWER_SECONDS = 15.0
_READ_SECONDS = 90.0  # longer than an abandoned transaction stays open
_POLL_SECONDS = 0.5
_SHOWN = 200  # characters of invalid content, in an error


class LineClaim(NamedTuple):
    """One owner's claim on a line; `name` is unique."""

    line: str
    name: str
    producer: str  # its transactional.id
    epoch: int
    txid: int  # the last one it committed


class _Value(msgspec.Struct):
    producer: str
    epoch: int
    txid: int


_decode_key = msgspec.json.Decoder(tuple[str, str, str, str]).decode
_decode_value = msgspec.json.Decoder(_Value).decode


class OwnershipUnread(Exception):
    """The topic of transactions was not read to its end in time."""


class OwnershipLog:
    """The claims on the lines of one sink of one pipeline, in a compacted topic. One thread.

    The key of a claim is (pipeline, sink, line, name). A line's state is the maximum over its
    claims, so neither their order nor compaction changes it.
    """

    def __init__(self, cluster: Cluster, topic: str, pipeline: str, sink: str) -> None:
        self.topic = topic
        self._cluster = cluster
        self._of = (pipeline, sink)
        self._claims: dict[str, dict[str, LineClaim]] = {}  # by line and name
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._position = 0

    def open(self) -> None:
        """Create the topic if it is missing. Raises SinkFailed when it would lose claims."""
        found = self._cluster.partitions(self.topic)
        if not found:
            config = {"cleanup.policy": "compact"}
            self._cluster.create(self.topic, "transactions_topic_created", config)
            return
        policy = self._cluster.setting(self.topic, "cleanup.policy")
        if found != 1 or policy != "compact":
            raise SinkFailed(
                f"topic '{self.topic}' has {found} partitions and cleanup.policy={policy}; one "
                "that keeps transactions must have 1 and 'compact'"
            )

    def read(self, *, pending: bool) -> None:
        """Read what is committed; with `pending`, wait for the transactions that are open now.

        With `pending`, everything sent before the call is read or was aborted when this returns.
        Raises OwnershipUnread, KafkaException, and SinkFailed for a message that is no claim.
        """
        try:
            self._read_to(self._end(pending=pending))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drop the clients; the next read starts at the beginning."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._admin = None
        self._claims.clear()
        self._position = 0

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Apply the topic's next message. Raises SinkFailed if it is no claim."""
        try:
            *of, line, name = _decode_key(key or b"")
            if tuple(of) != self._of:
                return
            claims = self._claims.setdefault(line, {})
            if value is None:
                claims.pop(name, None)
                return
            found = _decode_value(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            message = (
                f"topic '{self.topic}' has a message that is no claim of a sink: "
                f"key {(key or b'')[:_SHOWN]!r}: {str(error)[:_SHOWN]}"
            )
            raise SinkFailed(message) from error
        claims[name] = LineClaim(line, name, found.producer, found.epoch, found.txid)

    def on(self, lines: Iterable[str]) -> list[LineClaim]:
        return [claim for line in lines for claim in self._claims.get(line, {}).values()]

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Return what is committed of each line, and the highest epoch that claims it."""
        found = []
        for line in lines:
            claims = [LineClaim(line, "", "", 0, 0), *self.on([line])]
            epoch = max(claim.epoch for claim in claims)
            found.append(Committed(line, epoch, max(claim.txid for claim in claims)))
        return found

    def written(self, claim: LineClaim) -> OutgoingMessage:
        value = _Value(claim.producer, claim.epoch, claim.txid)
        return self.withdrawn(claim)._replace(value=msgspec.json.encode(value))

    def withdrawn(self, claim: LineClaim) -> OutgoingMessage:
        return OutgoingMessage(
            self.topic, None, msgspec.json.encode((*self._of, claim.line, claim.name))
        )

    def _end(self, *, pending: bool) -> int:
        if self._admin is None:
            self._admin = self._cluster.admin()
        place = TopicPartition(self.topic, 0)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        # A message is below the high watermark before its sender hears of it.
        levels = IsolationLevel
        level = levels.READ_UNCOMMITTED if pending else levels.READ_COMMITTED
        found = self._admin.list_offsets(
            {place: latest}, isolation_level=level, request_timeout=_ANSWER_SECONDS
        )
        return int(found[place].result(_ANSWER_SECONDS).offset)

    def _read_to(self, end: int) -> None:
        """Read committed messages until the outcome of each one below `end` is known."""
        if self._position >= end:
            return
        if self._consumer is None:
            required: dict[str, Scalar] = {
                "group.id": "headrace",  # needed, and not used
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
            }
            self._consumer = Consumer(self._cluster.conf(required=required))
        start = self._position or OFFSET_BEGINNING
        self._consumer.assign([TopicPartition(self.topic, 0, start)])
        ends = time.monotonic() + _READ_SECONDS
        while self._position < end:
            if time.monotonic() > ends:
                message = f"topic '{self.topic}' was read to {self._position}, not to {end}"
                raise OwnershipUnread(message)
            found = self._consumer.poll(_POLL_SECONDS)
            if found is not None:
                self._receive(found)
        self._consumer.unassign()  # or it would fetch what we write

    def _receive(self, message: Received) -> None:
        error = message.error()
        if error is None:
            self.take(message.key(), message.value())
        elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
            raise KafkaException(error)
        # At the end of the partition the offset is the next one to read.
        self._position = (message.offset() or 0) + (error is None)


class ProducerFence:
    """The lines that this process has claimed, and the producer that commits them. One thread.

    `name` is the producer's; no other owner ever has it. `make` makes a producer of a name.
    """

    def __init__(
        self, name: str, claims: OwnershipLog, make: Callable[[str], TransactionalProducer]
    ) -> None:
        self._claims = claims
        self._make = make
        self._producer = make(name)
        self._claimed: dict[str, LineClaim] = {}  # by line; valid while the producer is open

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Claim the lines, then return what is committed of each. Raises SinkFenced."""

        def claim() -> list[Committed]:
            self._claim(fences)
            return self._found([fence.line for fence in fences])

        return self._until_decided(claim)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what is committed, also by a commit whose outcome was unknown."""
        self._reopen()
        self._claims.read(pending=True)
        return self._claims.committed(lines)

    def commit(self, shares: Sequence[Share], messages: Sequence[OutgoingMessage]) -> None:
        def commit() -> None:
            claimed = self._claimed
            new = [s for s in shares if s.line not in claimed or claimed[s.line].epoch < s.epoch]
            if new:
                self._claim([Fence(share.line, share.epoch) for share in new])
            if self._is_to_commit(shares):
                moved = {s.line: self._claimed[s.line]._replace(txid=s.txid) for s in shares}
                self._producer.commit(chain(messages, map(self._claims.written, moved.values())))
                self._claimed |= moved

        self._until_decided(commit)

    def close(self) -> None:
        self._producer.close()
        self._claims.close()
        self._claimed.clear()

    def _until_decided(self, step: Callable[[], Result]) -> Result:
        """Run a step, again after a transaction failed: another owner may have fenced us."""
        for _ in range(_MOST_FAILED):
            self._reopen()
            with suppress(TransactionFailed):
                return step()
        self._reopen()
        return step()

    def _reopen(self) -> None:
        """Open the producer unless it is open. Afterwards, what it sent is decided."""
        if not self._producer.is_open:
            self._claimed.clear()
            self._producer.open()

    def _claim(self, fences: Sequence[Fence]) -> None:
        producer, topic = self._producer, self._claims
        lines = [fence.line for fence in fences]
        topic.read(pending=False)  # an owner that froze amid a transaction is fenced first
        check_fences(fences, topic.committed(lines))
        mine = [
            LineClaim(fence.line, uuid4().hex, producer.name, fence.epoch, 0) for fence in fences
        ]
        producer.commit(map(topic.written, mine))
        fenced = {producer.name}
        while True:
            others = {each.producer for each in topic.on(lines)} - fenced
            for name in sorted(others):
                other = self._make(name)
                other.open()
                other.close()
            fenced |= others
            topic.read(pending=True)
            if {each.producer for each in topic.on(lines)} <= fenced:
                break
        check_fences(fences, topic.committed(lines))
        txids = {line: txid for line, _epoch, txid in topic.committed(lines)}
        found = [claim._replace(txid=txids[claim.line]) for claim in mine]
        names = {claim.name for claim in mine}
        old = [claim for claim in topic.on(lines) if claim.name not in names]
        producer.commit(chain(map(topic.written, found), map(topic.withdrawn, old)))
        self._claimed |= {claim.line: claim for claim in found}

    def _is_to_commit(self, shares: Sequence[Share]) -> bool:
        """See `is_to_commit`; a gap is judged by what is read, not by what is remembered."""
        lines = [share.line for share in shares]
        try:
            return is_to_commit(shares, self._found(lines))
        except SinkFailed:
            self._claims.read(pending=True)
            return is_to_commit(shares, self._claims.committed(lines))

    def _found(self, lines: Sequence[str]) -> list[Committed]:
        claims = [self._claimed[line] for line in lines]
        return [Committed(claim.line, claim.epoch, claim.txid) for claim in claims]
