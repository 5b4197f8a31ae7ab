"""Whether what Spark has read is what the logs hold: its Kafka source knows offsets alone."""

import time
from collections.abc import Callable, Mapping, Sequence

from partition.catalogue import Catalogue, Log, LogEnd
from partition.chunk import Partition
from partition.errors import KafkaError, KafkaUnavailable, OffsetOutOfRange, TopicMissing
from partition.fetcher import Fetcher
from partition.position import Position
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
        catalogue: Callable[[], Catalogue],
        make_fetcher: Callable[[], Fetcher],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`catalogue` gives one that is open; an answer of a leader that is away takes it seconds.

        A fetcher is made only where leaders have changed since the ranges were planned.
        """
        self._catalogue = catalogue
        self._make_fetcher = make_fetcher
        self._clock = clock

    def before(self, ranges: Sequence[TaskRange]) -> Mapping[Partition, LogEnd]:
        """What `after` needs of the time before the reading.

        Waits. Raises KafkaError, also where a leader does not answer: Spark would wait for it for
        minutes.
        """
        ends = self._catalogue().ends({each.partition for each in ranges}).result()
        for each in ranges:
            if each.partition not in ends:
                raise KafkaUnavailable(f"for {each.partition}", "its leader does not")
        return ends

    def after(
        self, ranges: Sequence[TaskRange], before: Mapping[Partition, LogEnd]
    ) -> TaskFailed | Mapping[Partition, int]:
        """Why what was read of a range is not to be used; or all of it may, and who wrote it.

        That is, by partition, the epoch of who leads the log now, where records of a range may be
        of a later leader than the range knows of: of the others, none is. Waits. Raises
        LeaderChanged, and KafkaError where the cluster does not say it: then the ranges are to be
        read again.
        """
        asked = [(each, self._catalogue().log(each.partition)) for each in ranges]
        leaders: dict[Partition, int | None] = {}
        for each, answer in asked:
            change: KafkaError | None
            try:
                now = answer.result()
                change = change_of(each, before[each.partition], now)
            except TopicMissing as missing:
                change = missing
            if change is not None:
                return _failed(each.partition, change)
            leaders[each.partition] = now.leader_epoch
        for partition, error in self._lost(places_of(ranges, leaders)).items():
            return _failed(partition, error)
        rewritten: list[Partition] = []
        for partition, error in self._lost(ends_of(ranges, leaders)).items():
            if isinstance(error, TopicMissing):
                return _failed(partition, error)
            if isinstance(error, OffsetOutOfRange) and error.diverged_at is not None:
                rewritten.append(partition)  # else its end has expired since it was read
        unknown = {each.partition for each in ranges if each.leader_epoch is None}
        told = {each: leaders[each] for each in (*rewritten, *unknown)}
        return {each: epoch for each, epoch in told.items() if epoch is not None}

    def _lost(self, places: Mapping[Partition, Position]) -> Mapping[Partition, KafkaError]:
        """Have a client ask whether places are in the logs as they were; why some are not.

        Raises KafkaUnavailable if that is not known in time.
        """
        lost: dict[Partition, KafkaError] = {}
        if not places:
            return lost
        deadline = self._clock() + _ASKS_SECONDS
        fetcher = self._make_fetcher()
        fetcher.open()
        try:
            waiting = set(places)
            fetcher.add(places)
            while waiting:
                fetched = fetcher.fetch(1, 0.1)
                lost |= {
                    partition: error
                    for partition, error in fetched.failures.items()
                    if isinstance(error, OffsetOutOfRange | TopicMissing)
                }
                heard = {*fetched.ends, *fetched.failures, *(c.partition for c in fetched.chunks)}
                fetcher.remove(heard)
                waiting -= heard
                if waiting and self._clock() >= deadline:
                    what = f"whether {next(iter(waiting))} was cut off"
                    raise KafkaUnavailable(what, f"nobody did within {_ASKS_SECONDS:g} seconds")
        finally:
            fetcher.close()
        return lost


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


def places_of(
    ranges: Sequence[TaskRange], leaders: Mapping[Partition, int | None]
) -> dict[Partition, Position]:
    """Where ranges begin whose logs may have been cut off below: another leads them now. Pure."""
    return {
        each.partition: each.position
        for each in ranges
        if _differ(each.position.leader_epoch, leaders[each.partition])
    }


def ends_of(
    ranges: Sequence[TaskRange], leaders: Mapping[Partition, int | None]
) -> dict[Partition, Position]:
    """Where ranges end that another leader may have written since they were planned. Pure."""
    return {
        each.partition: Position(each.end, each.leader_epoch, each.position.topic_id)
        for each in ranges
        if _differ(each.leader_epoch, leaders[each.partition])
    }


def _differ(epoch: int | None, other: int | None) -> bool:
    """Whether two leader epochs are known, and not the same."""
    return epoch is not None and other is not None and epoch != other


def _failed(partition: Partition, error: KafkaError) -> TaskFailed:
    cut = error.diverged_at if isinstance(error, OffsetOutOfRange) else None
    return TaskFailed(str(error), type(error).__name__, partition, cut)
