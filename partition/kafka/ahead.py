"""Takes the next records from the client while the owner works on the last ones."""

import threading
from collections.abc import Iterable

from confluent_kafka import Consumer, Message

from partition.chunk import Partition


class Ahead:
    """One `consume` at most, on a thread of its own, with nothing else calling the client.

    Half of `consume`'s time is librdkafka's, without Python's lock, and so is the time of bolts
    that work on columns: they run beside each other. The owner thread calls everything, and
    touches the client itself only after `settle`. What the client calls back while it consumes
    runs on this thread.
    """

    def __init__(self) -> None:
        self._asked = threading.Semaphore(0)
        self._answered = threading.Semaphore(0)
        self._request: tuple[Consumer, int] | None = None
        self._error: BaseException | None = None
        self._fresh: list[Message] = []  # the thread's, until it has answered
        self._taken: list[Message] = []
        self._withheld: dict[Partition, list[Message]] = {}
        self._thread: threading.Thread | None = None
        self._is_under_way = False

    def start(self, client: Consumer, max_messages: int) -> None:
        """Take what is there, while the caller does something else."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kafka-ahead", daemon=True)
            self._thread.start()
        self._is_under_way = True
        self._request = (client, max_messages)
        self._asked.release()

    def settle(self) -> None:
        """Wait until nothing is under way: a moment, because `consume` is given no time."""
        if not self._is_under_way:
            return
        self._answered.acquire()
        self._is_under_way = False
        self._taken += self._fresh
        self._fresh = []

    def take(self) -> list[Message]:
        """What was taken by the last `start`; nothing may be under way.

        Raises what `consume` raised.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        taken, self._taken = self._taken, []
        return taken

    def withhold(self, partition: Partition) -> None:
        """Keep back what was taken of a partition: the client will not deliver it again."""
        own = [message for message in self._taken if _partition_of(message) == partition]
        if own:
            self._withheld[partition] = self._withheld.get(partition, []) + own
            self._taken = [each for each in self._taken if _partition_of(each) != partition]

    def give_back(self, partition: Partition) -> None:
        """Have what was withheld taken next."""
        self._taken = self._withheld.pop(partition, []) + self._taken

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget what was taken of partitions."""
        gone = set(partitions)
        for partition in gone:
            self._withheld.pop(partition, None)
        if self._taken and gone:
            self._taken = [each for each in self._taken if _partition_of(each) not in gone]

    def close(self) -> None:
        """End the thread, once nothing is under way."""
        thread, self._thread = self._thread, None
        self._taken = []
        self._withheld.clear()
        if thread is not None:
            self._request = None
            self._asked.release()
            thread.join()

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            request, self._request = self._request, None
            if request is None:
                return
            client, max_messages = request
            del request
            try:
                self._fresh = client.consume(max_messages, 0)
            except BaseException as error:  # noqa: BLE001 - it is the owner's
                self._error = error
            del client
            self._answered.release()


def _partition_of(message: Message) -> Partition:
    return Partition(message.topic() or "", message.partition() or 0)
