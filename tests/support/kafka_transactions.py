"""Kafka's transactions in memory, of which several owners' steps are shuffled by a seed.

Each step of each owner (a request at the broker) waits until it is the owner's turn. What is
modelled is what the claims rely on: epochs of producers, records that are pending until their
transaction is decided, marks that come later than the decision, replies that are lost.
"""

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sinks.kafka.client import (
    Cluster,
    CommitUnknown,
    ProducerFenced,
    RecordMetadata,
    TransactionalProducer,
)
from sinks.kafka.messages import OutgoingMessage
from sinks.kafka.transactions_topic import OwnershipLog
from tests.support.patience import seconds

TOPIC = "transactions"
_NO_CLUSTER = Cluster({}, "simulated", TOPIC)


class Shuffled:
    """Runs functions in threads, one step of one of them at a time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._turns: dict[int, threading.Semaphore] = {}
        self._moved = threading.Semaphore(0)
        self._waiting: set[int] = set()

    def run(self, functions: list[Callable[[], object]]) -> list[Exception | None]:
        """Run all to their ends; gives what each raised."""
        raised: list[Exception | None] = [None] * len(functions)

        def body(number: int) -> None:
            self._turns[threading.get_ident()] = turn = semaphores[number]
            turn.acquire()
            try:
                functions[number]()
            except Exception as error:  # noqa: BLE001 - it is handed back
                raised[number] = error
            running.discard(number)
            self._moved.release()

        semaphores = [threading.Semaphore(0) for _ in functions]
        running = set(range(len(functions)))
        threads = [threading.Thread(target=body, args=(n,)) for n in running]
        for thread in threads:
            thread.start()
        while running:
            semaphores[self.random.choice(sorted(running))].release()
            assert self._moved.acquire(timeout=seconds(30))
        for thread in threads:
            thread.join(seconds(30))
        return raised

    def step(self) -> bool:
        """Let the others have their turns; False: there are none."""
        turn = self._turns.get(threading.get_ident())
        if turn is None:
            return False
        self._moved.release()
        assert turn.acquire(timeout=seconds(30))
        return True


@dataclass
class Sent:
    producer: str
    epoch: int
    decided: bool | None = None  # None: open; else whether it is committed
    is_marked: bool = False  # until then no reader passes its messages


@dataclass
class Broker:
    shuffled: Shuffled
    lost_replies: float = 0.0
    log: list[tuple[Sent, OutgoingMessage]] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)

    def init(self, name: str) -> int:
        """InitProducerId: aborts what is open, waits for what is decided."""
        self.shuffled.step()
        self.epochs[name] = epoch = self.epochs.get(name, 0) + 1
        for sent in self.sent:
            if sent.producer == name:
                sent.decided = bool(sent.decided)
                sent.is_marked = True
        self.shuffled.step()
        return epoch

    def commit(self, name: str, epoch: int, messages: Iterable[OutgoingMessage]) -> None:
        self.shuffled.step()
        self._check(name, epoch)
        sent = Sent(name, epoch)
        self.sent.append(sent)
        self.log += [(sent, message) for message in messages]
        self.shuffled.step()
        self._check(name, epoch)
        sent.decided = True
        self.shuffled.step()
        sent.is_marked = True
        if self.shuffled.random.random() < self.lost_replies:
            raise CommitUnknown("no reply")

    def committed(self) -> list[OutgoingMessage]:
        """What a reader of committed messages gets in the end."""
        return [message for sent, message in self.log if sent.decided]

    def _check(self, name: str, epoch: int) -> None:
        if self.epochs[name] != epoch:
            raise ProducerFenced("fenced")


class SimulatedProducer(TransactionalProducer):
    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(_NO_CLUSTER, name, 0)
        self._broker = broker
        self._epoch = 0

    @property
    def is_open(self) -> bool:
        return self._epoch > 0

    def open(self) -> None:
        self._epoch = self._broker.init(self.name)

    def commit(
        self,
        messages: Iterable[OutgoingMessage],
        then: Callable[[Sequence[RecordMetadata]], Iterable[OutgoingMessage]] | None = None,
    ) -> None:
        assert then is None
        try:
            self._broker.commit(self.name, self._epoch, list(messages))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._epoch = 0


class SimulatedOwnershipLog(OwnershipLog):
    def __init__(self, broker: Broker) -> None:
        super().__init__(_NO_CLUSTER, TOPIC, "pipeline", "sink")
        self._broker = broker

    def read(self, *, pending: bool) -> None:
        self._broker.shuffled.step()
        log = self._broker.log
        end = len(log)
        while self._position < end:
            sent, message = log[self._position]
            if not sent.is_marked:
                if not pending:
                    return
                assert self._broker.shuffled.step(), "nobody will end what it waits for"
                continue
            self._position += 1
            if sent.decided and message.topic == TOPIC:
                assert isinstance(message.key, bytes)
                assert not isinstance(message.value, str)
                self.take(message.key, message.value)
