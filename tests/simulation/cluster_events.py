"""What happens to the topics and their logs while they are read."""

from typing import TYPE_CHECKING

from tests.simulation.kafka import Cluster, SimLog
from tests.simulation.settings import TOPICS, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.life import Life
    from tests.simulation.oracle import Oracle

_MAX_LOG = 400  # records of a partition that are not read: the producers wait


class ClusterEvents:
    """The half of a world that is its cluster."""

    settings: Settings
    cluster: Cluster
    oracle: "Oracle"
    lives: "list[Life]"
    seen: "Callable[[str], None]"

    def _a_log(self, which: int) -> SimLog | None:
        logs = self.cluster.live_logs()
        return logs[which % len(logs)] if logs else None

    def do_produce(self, which: int, dice: int) -> None:
        """Records are written."""
        log = self._a_log(which)
        if log is None or len(log.records) > _MAX_LOG or self.cluster.away:
            return
        for place in range(1 + dice % 5):
            log.append(1 + (dice >> place) % 9)

    def do_gap(self, which: int, dice: int) -> None:
        """Transaction markers and aborted records use up offsets."""
        if log := self._a_log(which):
            log.append_gap(1 + dice % 3)

    def do_compact(self, which: int, dice: int) -> None:
        """A record is compacted away."""
        if log := self._a_log(which):
            log.compact(-1 - dice % 8 if dice % 16 > 3 else dice)

    def do_retention(self, which: int, dice: int) -> None:
        """The log's beginning is deleted."""
        if log := self._a_log(which):
            log.delete_before(log.end - dice % 12)

    def do_truncate(self, which: int, dice: int) -> None:
        """A leader is elected that lacks the end of the log.

        A jump for being too far behind comes before the broker can tell of a cut below it.
        """
        if self.settings.max_behind is not None:
            return
        if log := self._a_log(which):
            if self._is_in_flight(log):
                self.seen("truncation_while_in_flight")
            log.truncate(log.end - 1 - dice % 6)
            for size in range(dice // 8 % 12):
                log.append(size + 1)

    def do_elect(self, which: int, _dice: int) -> None:
        """A leader is elected that has everything."""
        if log := self._a_log(which):
            log.elect()

    def do_recreate(self, which: int, dice: int) -> None:
        """A topic is deleted and created again; perhaps it soon has more records than before."""
        topic = TOPICS[which % len(self.settings.partitions)]
        count = max(len(self.cluster.partitions(topic)), 1)
        self.cluster.delete(topic)
        self.cluster.create(topic, count)
        for log in self.cluster.live_logs():
            if log.partition.topic != topic:
                continue
            for size in range(dice % 40):
                log.append(1 + size % 9)
            log.added_late = log.partition in self.oracle.stored.begun
            now = self.oracle.stored.now.get(log.partition)
            if now is not None and now.offset < log.end:
                self.seen("topic_created_again_larger_than_the_offset")

    def do_add_partition(self, which: int, dice: int) -> None:
        """A topic gets one more partition."""
        topic = TOPICS[which % len(self.settings.partitions)]
        if topic not in self.cluster.topics or len(self.cluster.partitions(topic)) > 3:
            return
        late = any(partition.topic == topic for partition in self.oracle.stored.begun)
        partition = self.cluster.add_partition(topic, late=late)
        log = self.cluster.log(partition)
        for _ in range(dice % 4):
            if log is not None:
                log.append(2)
        if late:
            self.seen("partition_added_while_running")

    def do_corrupt(self, which: int, dice: int) -> None:
        """A record's bytes rot; or they are read well again."""
        log = self._a_log(which)
        if log is None or not log.records:
            return
        if dice % 3 == 0:
            self._mend(log)
        else:
            record = log.records[-1 - dice % min(len(log.records), 6)]
            record.corrupt = record.rotten = True
            self.seen("corrupt_record")

    def do_away(self, _which: int, _dice: int) -> None:
        """The cluster stops answering."""
        self.cluster.away = True

    def _mend(self, log: SimLog) -> None:
        for record in log.records:
            record.corrupt = False

    def _is_in_flight(self, log: SimLog) -> bool:
        return any(
            not attempt.resolved and attempt.record.partition == log.partition
            for life in self.lives
            for attempt in life.attempts.values()
        )
