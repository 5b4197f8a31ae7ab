"""The driver's partitions: owned here, their logs' ends tracked, their next ranges planned."""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import structlog

from partition.consumer import ConsumerPolicy, PartitionOwner, SourceHealth
from partition.errors import KafkaError, KafkaFailed, OffsetOutOfRange, TopicMissing
from partition.flow_control import Throttle
from partition.interfaces import Catalogue, Fetcher, LogEnd, Topic, TopicName
from partition.records import Partition, Position
from partition.recovery import Ways
from topology.steps import Source
from transactions.groups import GroupMember, RangePlanner, RangePolicy, TransactionGroups, divide
from transactions.partition_transactions import PartitionTransactions

log = structlog.get_logger()

_SHORT_SECONDS = 5.0  # so long a log may seem to end too early: its leader has just changed
_SAVED_GROUPS = 2.0  # a rate's unused records are kept for the time of so many groups
_FIRST_SECONDS = 10.0  # the pause after a first silence
# Each attempt in vain holds the others up, for as long as silence is waited for.
_LONGEST_SECONDS = 900.0
_MOST_PATIENCE = 8
_TOGETHER_SECONDS = 2.0  # so long the first partitions that are open wait for the others


class _Question:
    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._answer: Future[Mapping[Partition, LogEnd]] | None = None
        self._due = float("-inf")
        self.asked_for: set[Partition] = set()  # without those that were removed since

    def take(self) -> Mapping[Partition, LogEnd] | None:
        """Return the answer, once; None if none has come. Raises KafkaError."""
        if self._answer is None or not self._answer.done():
            return None
        answer, self._answer = self._answer, None
        return answer.result()

    def ask(self, now: float, partitions: Collection[Partition], poll_seconds: float) -> None:
        is_due = now >= self._due or not self.asked_for.issuperset(partitions)
        if self._answer is None and is_due and partitions:
            self._due = now + poll_seconds
            self.asked_for = set(partitions)
            self._answer = self.catalogue.ends(self.asked_for.copy())


@dataclass(slots=True)
class _Log:
    end: LogEnd | None = None
    short_since: float | None = None  # since when it has ended too early
    unreachable_since: float | None = None  # since when answers have left it out
    topic: Future[Topic] | None = None  # asked for while it is silent for long: a topic may go
    topic_asked_at: float = 0.0
    times_silent: int = 0  # to tasks, since one has read it last
    out_until: float = 0.0  # left out of groups until then

    def mark_reachable(self) -> None:
        self.unreachable_since = self.topic = None

    @property
    def is_topic_missing(self) -> bool:
        topic = self.topic
        if topic is None or not topic.done():
            return False
        return isinstance(topic.exception(), TopicMissing)


class LogEndTracker:
    """Asks where logs end, again and again, in place of a fetcher. The owner calls everything.

    Nothing waits: the answer comes by a future, and what was known before stands until then. It
    also keeps which logs tasks could not read: each is left out of groups for a pause that grows.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        poll_seconds: float,
        make_spare: Callable[[], Catalogue] | None = None,
    ) -> None:
        """`make_spare` makes a catalogue for silent partitions, whose answers take seconds."""
        self._catalogue = catalogue
        self._make_spare = make_spare
        self._poll_seconds = poll_seconds
        self._logs: dict[Partition, _Log] = {}
        self._questions = [_Question(catalogue)]  # and the spare's, once there was one
        self.available = True
        """Whether the last question was answered."""

    def close(self) -> None:
        while len(self._questions) > 1:
            self._questions.pop().catalogue.close()

    def add(self, positions: Mapping[Partition, Position]) -> None:
        """Do nothing: plans say where executors read."""

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions: they are not read here, or their logs may be others later."""
        for partition in partitions:
            self._logs.pop(partition, None)
            for question in self._questions:
                question.asked_for.discard(partition)

    def log_range(self, partition: Partition) -> tuple[int | None, int] | None:
        end = self.end_of(partition)
        return None if end is None else (None, end.offset)

    def end_of(self, partition: Partition) -> LogEnd | None:
        return self._log(partition).end

    def is_answered(self, partition: Partition) -> bool:
        """Whether the cluster was asked of it, even if it could not tell."""
        found = self._log(partition)
        return found.end is not None or found.unreachable_since is not None

    def is_unreachable(self, partition: Partition) -> bool:
        return self._log(partition).unreachable_since is not None

    @property
    def leaderless(self) -> set[Partition]:
        """Those whose leaders have not answered for some seconds."""
        return {partition for partition, each in self._logs.items() if each.topic is not None}

    @property
    def has_unreachable(self) -> bool:
        """Whether a task heard nothing of a log, and none has read it since."""
        return any(each.times_silent for each in self._logs.values())

    def became_unreachable(self, partition: Partition, now: float) -> float:
        """Note that a task heard nothing of a log; return for how long it is left out."""
        found = self._log(partition)
        pause = min(_FIRST_SECONDS * 2.0 ** min(found.times_silent, 16), _LONGEST_SECONDS)
        found.times_silent += 1
        found.out_until = now + pause
        return pause

    def heard(self, partition: Partition) -> None:
        found = self._log(partition)
        found.times_silent, found.out_until = 0, 0.0

    def is_out(self, partition: Partition, now: float) -> bool:
        """Whether a partition is left out of groups now: while its leader does not answer, too."""
        found = self._log(partition)
        if found.unreachable_since is not None:
            found.out_until = 0.0
        return found.unreachable_since is not None or now < found.out_until

    def patience(self, partition: Partition) -> int:
        """Return the factor on the seconds for which a partition's next range may be silent.

        It may be no silence of its leader's: a client brings nothing of records whose producers
        have aborted them, while it reads a long stretch of these.
        """
        return min(1 << min(self._log(partition).times_silent, 16), _MOST_PATIENCE)

    def _log(self, partition: Partition) -> _Log:
        return self._logs.get(partition) or _Log()

    def poll(self, now: float, partitions: Collection[Partition]) -> bool:
        """Take answers, and ask again when it is time; True if an answer came.

        It is time at once for a partition that was not asked for. Raises KafkaFailed when asking
        again cannot help.
        """
        for partition in partitions:
            self._logs.setdefault(partition, _Log())
        taken = [self._take(now, question) for question in self._questions]
        silent = {each for each in partitions if self.is_unreachable(each)}
        if silent and self._make_spare is not None and len(self._questions) == 1:
            spare = self._make_spare()
            spare.open()
            self._questions.append(_Question(spare))
        apart = silent if len(self._questions) > 1 else set()
        others = [each for each in partitions if each not in apart]
        for question, asked in zip(self._questions, (others, apart), strict=False):
            question.ask(now, asked, self._poll_seconds)
        return any(taken)

    def error_of(self, now: float, partition: Partition, planned_to: int) -> KafkaError | None:
        """Return why nothing can be planned from an offset, told once in a while.

        The log has ended before it for a while, or the topic is gone.
        """
        found = self._log(partition)
        if found.is_topic_missing:
            found.mark_reachable()
            return TopicMissing(partition.topic)
        end, since = found.end, found.short_since
        is_short = end is not None and end.offset < planned_to
        found.short_since = (now if since is None else since) if is_short else None
        if end is None or found.short_since is None or now - found.short_since < _SHORT_SECONDS:
            return None
        found.short_since = None
        return OffsetOutOfRange(partition, planned_to, f"its log ends at {end.offset}")

    def _take(self, now: float, question: _Question) -> bool:
        is_spare = question is not self._questions[0]
        try:
            ends = question.take()
        except KafkaFailed:
            raise
        except KafkaError as error:
            if not is_spare:
                if self.available:
                    log.warning("ends_not_known", error=str(error))
                self.available = False
                return False
            ends = {}  # none of the silent ones can be asked
        if ends is None:
            return False
        self.available |= not is_spare
        for partition in question.asked_for:
            found = self._logs[partition]
            if partition in ends:
                found.end = ends[partition]
                found.mark_reachable()
            else:
                self._miss(partition, found, now)
        return True

    def _miss(self, partition: Partition, missed: _Log, now: float) -> None:
        if missed.unreachable_since is None:
            missed.unreachable_since = now
        if now - missed.unreachable_since < _SHORT_SECONDS:
            return
        if missed.topic is None:
            log.warning("end_not_known", partition=str(partition))
        elif (
            not missed.topic.done()
            or missed.is_topic_missing
            or now - missed.topic_asked_at < _SHORT_SECONDS
        ):
            return
        missed.topic_asked_at, missed.topic = now, self._catalogue.topic(partition.topic)


class RangeOwner(PartitionOwner):
    """Stands where `Consumer` does on the local engine; `ends` takes the place of a fetcher."""

    def __init__(
        self,
        client: Fetcher,
        ways: Ways,
        ends: LogEndTracker,
        sources: Sequence[TopicName],
        policy: ConsumerPolicy,
        rng: random.Random,
    ) -> None:
        super().__init__(ends, client, ways, sources, policy, rng)
        self.ends = ends
        self._mirrors = policy.mirror

    @property
    def has_emitted_goals(self) -> bool:
        """Whether all partitions are open: then what was there at the start is there to plan."""
        return self.assignment.is_settled

    def open(self) -> None:
        super().open()
        if not self._mirrors:  # it was opened so that wrong properties are found
            self._client.close()

    def close(self) -> None:
        self.ends.close()
        super().close()

    def commit(self, now: float, *, force: bool = False) -> None:
        if self._mirrors:
            self._client.fetch(1, 0.0)  # it hears what became of commits to the group
        for _index, manager in self.assignment.owned():
            self.offsets.note(manager)  # what is planned is stored at once
        self.offsets.commit(now, force=force)

    def health(self, now: float) -> SourceHealth:
        return super().health(now)._replace(kafka_available=self.ends.available)

    def _log_statistics(self, partition: Partition) -> dict[str, Any]:
        end = self.ends.end_of(partition)
        return {"log_end": None if end is None else end.offset}


class Rates:
    """Shortens what may be planned to what sources with a rate limit allow. Pure.

    All partitions of all topics of a source share its limit. Records are counted as offsets.
    """

    def __init__(self, source_of: Callable[[str], Source], group_seconds: float) -> None:
        self._source_of = source_of
        self._group_seconds = group_seconds
        self._throttles: dict[str, Throttle] = {}  # by the label of a source
        self._turns: dict[str, int] = {}

    def allowed(
        self, now: float, logs: Mapping[int, tuple[int, int]], topic_of: Mapping[int, str]
    ) -> dict[int, tuple[int, int]]:
        """Return the offsets that may be planned of each partition: first, and end.

        What a source allows is shared out evenly among those of its partitions that have records.
        """
        limited: dict[str, dict[int, int]] = {}
        for index, (first, end) in logs.items():
            source = self._source_of(topic_of[index])
            rate = source.records_per_second
            if rate is None:
                continue
            limited.setdefault(source.label, {})[index] = max(0, end - first)
            if source.label not in self._throttles:
                of_group = max(1.0, rate * self._group_seconds)
                throttle = Throttle(rate, (_SAVED_GROUPS * of_group - 1.0) / rate)
                throttle.take((_SAVED_GROUPS - 1.0) * of_group)
                self._throttles[source.label] = throttle
        allowed = dict(logs)
        for label, waiting in limited.items():
            most, turn = self._throttles[label].allows(now), self._turns.get(label, 0)
            counts, self._turns[label] = divide(waiting, most, turn)
            allowed |= {i: (logs[i][0], logs[i][0] + counts.get(i, 0)) for i in waiting}
        return allowed

    def take(self, topic: str, count: int) -> None:
        throttle = self._throttles.get(self._source_of(topic).label)
        if throttle is not None:
            throttle.take(count)


class RangePlans:
    """Plans groups of ranges of the partitions that are ours. The owner thread calls everything.

    What was found open comes before anything new of its line. At first all partitions are waited
    for, for a while, so that what is open of many is run together.
    """

    def __init__(
        self,
        groups: TransactionGroups,
        owner: RangeOwner,
        policy: RangePolicy,
        source_of: Callable[[str], Source],
    ) -> None:
        self._groups = groups
        self._assignment = owner.assignment
        self._ends = owner.ends
        self._planner = RangePlanner(policy)
        self._rates = Rates(source_of, policy.seconds)
        self._since: float | None = None  # when the first partition was open

    def poll_ends(self, now: float, lines: Mapping[int, PartitionTransactions]) -> list[int]:
        """Ask where logs end; return the partitions, by index, that have to be recovered."""
        failed: list[int] = []
        if not self._ends.poll(now, [line.partition for line in lines.values()]):
            return failed
        for index, line in lines.items():
            end = self._ends.end_of(line.partition)
            trouble = self._ends.error_of(now, line.partition, line.planned_to)
            if isinstance(trouble, OffsetOutOfRange) and self._asks_a_task(index, line):
                continue
            if trouble is not None:
                self._assignment.fail(line.partition, trouble)
                failed.append(index)
            elif end is not None and end.offset >= line.planned_to:
                self._assignment.log_end(self._assignment.at(index), end.offset, is_read=False)
        return failed

    def _asks_a_task(self, index: int, line: PartitionTransactions) -> bool:
        """Ask where a log was cut off that ends before what was planned; False: nobody knows.

        It may have been cut off lower, and written anew up to its end. The broker tells only a
        reader under the epoch of the last record, so a range is planned where one begins.
        """
        manager = self._assignment.at(index).manager
        if manager is None or manager.position.leader_epoch is None:
            return False
        if line.may_begin and not manager.open_transactions and self._groups.may_plan:
            self._groups.plan([GroupMember(index, line, line.begin(line.planned_to + 1).txid)])
        return True

    def plan(self, now: float, lines: Mapping[int, PartitionTransactions], *, flush: bool) -> bool:
        """Plan the next ranges of these lines, by partition index; True if there were any.

        With `flush` nothing waits for more to come.
        """
        lines = {
            index: line
            for index, line in lines.items()
            if not self._ends.is_out(line.partition, now)
        }
        if not lines:
            return False
        if self._since is None:
            self._since = now
        if not self._assignment.is_settled and now - self._since < _TOGETHER_SECONDS:
            return False
        topics = {index: line.partition.topic for index, line in lines.items()}
        ends = {
            index: end
            for index, line in lines.items()
            if line.may_begin and not line.ungrouped and (end := self._ends.end_of(line.partition))
        }
        logs = {index: (lines[index].planned_to, end.offset) for index, end in ends.items()}
        logs = self._rates.allowed(now, logs, topics)
        if not self._groups.may_plan:
            self._planner.look(now, logs)
            return False
        members = [
            GroupMember(index, line, line.ungrouped[0].txid)
            for index, line in lines.items()
            if line.ungrouped and line.replay_error(log_moved=False) is None
        ]
        if not members and all(self._ends.is_answered(line.partition) for line in lines.values()):
            for index, to in (self._planner.plan(now, logs, flush=flush) or {}).items():
                self._rates.take(topics[index], to - logs[index][0])
                begun = lines[index].begin(to, ends[index].leader_epoch)
                members.append(GroupMember(index, lines[index], begun.txid))
        if members:
            self._groups.plan(members)
        return bool(members)
