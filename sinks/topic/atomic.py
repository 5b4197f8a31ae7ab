"""Messages to several topics and a word about them, in one transaction: all are there, or none."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sinks.letter_headers import Header
from sinks.topic.cluster import Cluster, said
from sinks.topic.producer import let_go, patiently, sending
from topology.errors import SinkFailed

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka import Message as Report

_BY_KEY = -1  # librdkafka's name for: the partitioner decides
_LARGEST = 100_000_000  # bytes: the broker, which knows the topic's limit, judges
_BATCH_BYTES = 65_536  # so a batch is too large for the topic only if a single message is
_INIT_SECONDS = 60.0
_FLUSH_SECONDS = 15.0
_ABORT_SECONDS = 10.0
_ROOM_SECONDS = 0.1
# Who reads a topic waits behind a transaction that is open in it. One that a process has left
# open when it died is aborted by the broker after this long.
_OPEN_SECONDS = 20


class Copy(NamedTuple):
    """What is sent, and where to. Without a partition, the key decides."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


class Stands(NamedTuple):
    """Where a message stands now."""

    partition: int
    offset: int


class NotTaken(Exception):
    """The broker refused a message. Nothing of its transaction is there; another may follow."""


class Superseded(Exception):
    """Another producer of the same name was opened. Nothing of the transaction is there."""


class OutcomeUnclear(Exception):
    """No answer. The transaction is there or not; a producer of the same name finds out."""


class AtomicProducer:
    """Sends in transactions under one name. One thread.

    Opening it fences every other one of its name: what that was committing has ended, and what it
    had not committed is aborted (KIP-98). So what is read after `open` stays true until `publish`
    has succeeded, or nothing was published.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._producer: Producer | None = None

    def open(self) -> None:
        """Fence the others and be ready. Raises SinkFailed."""
        from confluent_kafka import KafkaException, Producer  # noqa: PLC0415 - see sinks/__init__

        conf = sending(self._cluster, _LARGEST)
        conf |= {
            "transactional.id": self.name,
            "transaction.timeout.ms": _OPEN_SECONDS * 1000,
            "message.timeout.ms": _OPEN_SECONDS * 1000,
            "batch.size": _BATCH_BYTES,
            "linger.ms": 5,
        }
        self._producer = Producer(conf)
        try:
            self._producer.init_transactions(_INIT_SECONDS)
        except KafkaException as error:
            self.close()
            raise SinkFailed(
                f"Kafka begins no transactions of '{self.name}': {said(error)}; a broker that "
                "answers, and the right to write under that transactional.id, are needed"
            ) from error

    def publish(
        self,
        copies: Sequence[Copy],
        word: Callable[[Sequence[Stands]], Sequence[Copy]] = lambda _: (),
    ) -> list[Stands]:
        """Send copies, and what is to be said once it is known where each of them stands.

        Raises NotTaken, Superseded, OutcomeUnclear, and SinkFailed if nothing was published and
        nothing more can be.
        """
        from confluent_kafka import KafkaException  # noqa: PLC0415

        producer = self._open
        committing = False
        try:
            producer.begin_transaction()
            stand = self._send(producer, copies)
            self._send(producer, word(stand))
            committing = True
            patiently(producer.commit_transaction)
        except KafkaException as error:
            code = error.args[0]
            if _is_fenced(code):
                self.close()
                raise Superseded(said(error)) from error
            if code.txn_requires_abort():
                self._abort(producer)
                raise NotTaken(said(error)) from error
            self.close()
            if committing:
                raise OutcomeUnclear(said(error)) from error
            raise SinkFailed(f"'{self.name}': {said(error)}; nothing of it was sent") from error
        except BaseException:
            self._abort(producer)
            raise
        return stand

    def close(self) -> None:
        """Let go of the producer. Idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            let_go(producer)

    @property
    def _open(self) -> "Producer":
        if self._producer is None:
            raise OutcomeUnclear(f"producer '{self.name}' is not open")
        return self._producer

    def _send(self, producer: "Producer", copies: Sequence[Copy]) -> list[Stands]:
        """Send messages of the open transaction, and wait until the broker has all of them."""
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415

        stand: dict[int, Stands] = {}
        errors: list[KafkaError] = []

        def told(index: int) -> "Callable[[KafkaError | None, Report], None]":
            def tell(error: "KafkaError | None", report: "Report") -> None:
                if error is None:
                    stand[index] = Stands(report.partition() or 0, report.offset() or 0)
                else:
                    errors.append(error)

            return tell

        for index, copy in enumerate(copies):
            _produce(producer, copy, told(index))
        left = producer.flush(_FLUSH_SECONDS)
        if not errors and not left:
            return [stand[index] for index in range(len(copies))]
        if not errors:
            errors.append(KafkaError(KafkaError._TIMED_OUT, f"{left} messages without an answer"))  # noqa: SLF001
        if _is_fenced(errors[0]):
            raise KafkaException(errors[0])
        raise NotTaken(errors[0].str())

    def _abort(self, producer: "Producer") -> None:
        """End the transaction without a trace; give the producer up if that cannot be."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        producer.purge()
        try:
            producer.abort_transaction(_ABORT_SECONDS)
        except KafkaException:
            self.close()


def _produce(producer: "Producer", copy: Copy, on_delivery: "Callable[..., None]") -> None:
    from confluent_kafka import KafkaException  # noqa: PLC0415

    while True:
        try:
            producer.produce(
                copy.topic,
                value=copy.value,
                key=copy.key,
                partition=_BY_KEY if copy.partition is None else copy.partition,
                headers=list(copy.headers),
                on_delivery=on_delivery,
            )
        except BufferError:
            producer.poll(_ROOM_SECONDS)
        except KafkaException as error:
            if _is_fenced(error.args[0]):
                raise
            raise NotTaken(said(error)) from error
        else:
            return


def _is_fenced(error: "KafkaError") -> bool:
    """Whether an error tells that another producer has our name now, or that ours is of no use."""
    from confluent_kafka import KafkaError  # noqa: PLC0415

    ended = {
        KafkaError._FENCED,  # noqa: SLF001 - its public name
        KafkaError._FATAL,  # noqa: SLF001
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
    return error.fatal() or error.code() in ended
