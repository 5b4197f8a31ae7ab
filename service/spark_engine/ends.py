"""Where the logs end, as the cluster said last."""

from collections.abc import Collection, Mapping
from concurrent.futures import Future

import structlog

from partition.catalogue import Catalogue, LogEnd
from partition.chunk import Partition
from partition.errors import KafkaError, KafkaFailed, OffsetOutOfRange

log = structlog.get_logger()

_SHORT_SECONDS = 5.0  # so long a log may seem to end too early: its leader has just changed


class Ends:
    """Asks where logs end, all of them in one question, again and again. The owner calls it.

    Nothing waits: the answer comes by a future, and what was heard before stands until then.
    Seconds are of the owner's clock.
    """

    def __init__(self, catalogue: Catalogue, poll_seconds: float) -> None:
        self._catalogue = catalogue
        self._poll_seconds = poll_seconds
        self._ends: dict[Partition, LogEnd] = {}
        self._short: dict[Partition, float] = {}  # since when a log has been too short
        self._asked: Future[Mapping[Partition, LogEnd]] | None = None
        self._asked_for: set[Partition] = set()  # those that were not forgotten since
        self._heard: set[Partition] = set()  # of those, whom an answer was about
        self._due = float("-inf")
        self.available = True
        """Whether the last question was answered."""

    def of(self, partition: Partition) -> LogEnd | None:
        """Where a log ended when it was heard of last; None: it was not."""
        return self._ends.get(partition)

    def is_heard(self, partition: Partition) -> bool:
        """Whether the cluster was asked of it, even if it could not tell."""
        return partition in self._heard

    def poll(self, now: float, partitions: Collection[Partition]) -> bool:
        """Take an answer, and ask again when it is time; True if an answer came.

        It is time at once for a partition that was not asked for. Raises KafkaFailed when asking
        again cannot help.
        """
        answered = self._take()
        is_due = now >= self._due or not self._asked_for.issuperset(partitions)
        if self._asked is None and is_due and partitions:
            self._due = now + self._poll_seconds
            self._asked_for = set(partitions)
            self._asked = self._catalogue.ends(self._asked_for.copy())
        return answered

    def forget(self, partition: Partition) -> None:
        """Learn that a partition is not read now: its log may be another one later."""
        self._asked_for.discard(partition)
        self._heard.discard(partition)
        self._ends.pop(partition, None)
        self._short.pop(partition, None)

    def trouble(self, now: float, partition: Partition, planned_to: int) -> KafkaError | None:
        """Why nothing can be planned from an offset: the log has ended before it for a while.

        Told once; the next time is as long after it.
        """
        end = self._ends.get(partition)
        if end is None or end.offset >= planned_to:
            self._short.pop(partition, None)
            return None
        if now - self._short.setdefault(partition, now) < _SHORT_SECONDS:
            return None
        del self._short[partition]
        return OffsetOutOfRange(partition, planned_to, f"its log ends at {end.offset}")

    def _take(self) -> bool:
        if self._asked is None or not self._asked.done():
            return False
        asked, self._asked = self._asked, None
        try:
            ends = asked.result()
        except KafkaFailed:
            raise
        except KafkaError as error:
            if self.available:
                log.warning("ends_not_known", error=str(error))
            self.available = False
            return False
        self.available = True
        self._heard |= self._asked_for
        self._ends.update((each, end) for each, end in ends.items() if each in self._asked_for)
        return True
