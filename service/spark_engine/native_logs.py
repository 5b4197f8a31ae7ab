"""Whether what Spark has read is what the logs hold: its Kafka source knows offsets alone."""

import time
from collections.abc import Callable, Mapping, Sequence

from partition.catalogue import Catalogue, Log, LogEnd
from partition.chunk import Partition
from partition.errors import KafkaError, KafkaUnavailable, OffsetOutOfRange, TopicMissing
from partition.fetcher import Fetcher
from service.spark_engine.task import TaskFailed, TaskRange

_ASKS_SECONDS = 30.0


class LeaderChanged(KafkaError):
    """A log got another leader while Spark read it: what was read may be of both."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(f"{partition} got another leader while Spark read it; it is read again")


class NativeLogs:
    """Looks at the logs of ranges before and after Spark reads them. Any thread.

    Bolts read by a client that asks for a place by its leader epoch, and hears if the log was cut
    off below it, or the topic made anew. Spark's does not, and this makes up for it.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        make_fetcher: Callable[[], Fetcher],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The fetcher is made only where leaders have changed since the ranges were planned."""
        self._catalogue = catalogue
        self._make_fetcher = make_fetcher
        self._clock = clock

    def before(self, ranges: Sequence[TaskRange]) -> Mapping[Partition, LogEnd]:
        """What `trouble` needs of the time before the reading.

        Waits. Raises KafkaError, also where a leader does not answer: Spark would wait for it for
        minutes.
        """
        ends = self._catalogue.ends({each.partition for each in ranges}).result()
        for each in ranges:
            if each.partition not in ends:
                raise KafkaUnavailable(f"for {each.partition}", "its leader does not")
        return ends

    def trouble(
        self, ranges: Sequence[TaskRange], before: Mapping[Partition, LogEnd]
    ) -> TaskFailed | None:
        """Why what was read of a range is not to be used; None: all of it may.

        Waits. Raises LeaderChanged, and KafkaError where the cluster does not say it: then the
        ranges are to be read again.
        """
        asked = [(each, self._catalogue.log(each.partition)) for each in ranges]
        to_check = []
        for each, answer in asked:
            try:
                found = answer.result()
            except TopicMissing as missing:
                return _failed(each.partition, missing)
            change = change_of(each, before[each.partition], found)
            if change is not None:
                return _failed(each.partition, change)
            if _has_other_leader(each, found):
                to_check.append(each)
        return self._diverged(to_check) if to_check else None

    def _diverged(self, ranges: Sequence[TaskRange]) -> TaskFailed | None:
        """Have a client ask whether each range's place is in the log as it was.

        Raises LeaderChanged if that is not known in time.
        """
        deadline = self._clock() + _ASKS_SECONDS
        fetcher = self._make_fetcher()
        fetcher.open()
        try:
            waiting = {each.partition: each.position for each in ranges}
            fetcher.add(waiting)
            while waiting:
                fetched = fetcher.fetch(1, 0.1)
                for partition, error in fetched.failures.items():
                    if isinstance(error, OffsetOutOfRange | TopicMissing):
                        return _failed(partition, error)
                heard = {*fetched.ends, *fetched.failures, *(c.partition for c in fetched.chunks)}
                fetcher.remove(heard)
                waiting = {each: at for each, at in waiting.items() if each not in heard}
                if waiting and self._clock() >= deadline:
                    raise LeaderChanged(next(iter(waiting)))
        finally:
            fetcher.close()
        return None


def change_of(each: TaskRange, before: LogEnd, now: Log) -> KafkaError | None:
    """Why a range that was read is not in its log any more, as far as that can be seen. Pure.

    Raises LeaderChanged if nobody can say which log was read.
    """
    partition, position = each.partition, each.position
    if position.topic_id and now.topic_id and position.topic_id != now.topic_id:
        return OffsetOutOfRange(partition, position.offset, "its topic was deleted and made anew")
    if now.leader_epoch != before.leader_epoch:
        raise LeaderChanged(partition)
    if now.end < each.end:
        return OffsetOutOfRange(partition, position.offset, f"its log ends at {now.end}")
    return None


def _has_other_leader(each: TaskRange, now: Log) -> bool:
    """Whether a log may have been cut off below a range: it has another leader than it had."""
    was = each.position.leader_epoch
    return was is not None and now.leader_epoch is not None and now.leader_epoch != was


def _failed(partition: Partition, error: KafkaError) -> TaskFailed:
    cut = error.diverged_at if isinstance(error, OffsetOutOfRange) else None
    return TaskFailed(str(error), type(error).__name__, partition, cut)
