"""What the next group of ranges is: what was found open, or what the logs have come to."""

from collections.abc import Mapping

from partition.consumer import Consumer
from partition.interfaces import LogEnd
from service.spark_engine.ends import Ends
from service.spark_engine.rates import Rates
from transactions.groups import Member, RangePlanner, TransactionGroups
from transactions.partition_transactions import PartitionTransactions

_TOGETHER_SECONDS = 2.0  # so long the first partitions that are open wait for the others


class RangePlans:
    """Plans groups of ranges of the partitions that are ours. The owner thread calls everything.

    What was found open comes before anything new of its line. At first all partitions are waited
    for, for a while, so that what is open of many is run together.
    """

    def __init__(
        self,
        reader: Consumer,
        groups: TransactionGroups,
        ends: Ends,
        planner: RangePlanner,
        rates: Rates,
    ) -> None:
        self._reader = reader
        self._groups = groups
        self._ends = ends
        self._planner = planner
        self._rates = rates
        self._since: float | None = None  # when the first partition was open

    def plan(self, now: float, lines: Mapping[int, PartitionTransactions], *, flush: bool) -> bool:
        """Plan what is to be planned of these lines, by place; True if it was anything.

        With `flush` nothing waits for more to come.
        """
        if not self._may_start(now, lines):
            return False
        topics = {place: line.partition.topic for place, line in lines.items()}
        ends = {
            place: end
            for place, line in lines.items()
            if line.may_begin and not line.ungrouped and (end := self._ends.of(line.partition))
        }
        logs = {place: (lines[place].planned_to, end.offset) for place, end in ends.items()}
        logs = self._rates.allowed(now, logs, topics)
        if not self._groups.may_plan:
            self._planner.look(now, logs)
            return False
        members = [
            Member(place, line, line.ungrouped[0].txid)
            for place, line in lines.items()
            if line.ungrouped and line.replay_error(log_moved=False) is None
        ]
        if not members and all(self._ends.is_heard(line.partition) for line in lines.values()):
            planned = self._planner.plan(now, logs, flush=flush) or {}
            for place, to in planned.items():
                self._rates.take(topics[place], to - logs[place][0])
            members = [
                Member(place, lines[place], _begun(lines[place], to, ends[place]))
                for place, to in planned.items()
            ]
        if members:
            self._groups.plan(members)
        return bool(members)

    def _may_start(self, now: float, lines: Mapping[int, PartitionTransactions]) -> bool:
        if not lines:
            return False
        if self._since is None:
            self._since = now
        return self._reader.assignment.is_settled or now - self._since >= _TOGETHER_SECONDS


def _begun(line: PartitionTransactions, end: int, log: LogEnd) -> int:
    return line.begin(end, log.leader_epoch).txid
