"""Plan groups of ranges: where logs end, which partitions are silent, what rate limits allow."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from partition.errors import KafkaError, KafkaFailed, OffsetOutOfRange, TopicMissing
from partition.interfaces import Catalogue, LogEnd, Topic
from partition.records import Partition, Position
from topology.steps import Source
from transactions.groups import GroupMember, RangePlanner, TransactionGroups
from transactions.partition_transactions import PartitionTransactions

log = structlog.get_logger()

_SHORT_SECONDS = 5.0  # so long a log may seem to end too early: its leader has just changed
_SAVED_SECONDS = 2.0  # a rate's unused records are kept for so many groups' time
_FIRST_SECONDS = 10.0  # the pause after a first silence
# Each attempt in vain holds the others up, for as long as silence is waited for.
_LONGEST_SECONDS = 900.0
_MOST_PATIENCE = 8
_TOGETHER_SECONDS = 2.0  # so long the first partitions that are open wait for the others


class _Question:
    """One question about some logs, and its answer while it is awaited."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._answer: Future[Mapping[Partition, LogEnd]] | None = None
        self._due = float("-inf")
        self.asked_for: set[Partition] = set()  # without those that were removed since

    @property
    def is_answered(self) -> bool:
        return self._answer is not None and self._answer.done()

    def take(self) -> Mapping[Partition, LogEnd]:
        """The answer, once. Raises KafkaError."""
        answer, self._answer = self._answer, None
        return {} if answer is None else answer.result()

    def ask(self, now: float, partitions: Collection[Partition], poll_seconds: float) -> None:
        """Ask again, if no answer is awaited and it is time."""
        is_due = now >= self._due or not self.asked_for.issuperset(partitions)
        if self._answer is None and is_due and partitions:
            self._due = now + poll_seconds
            self.asked_for = set(partitions)
            self._answer = self._catalogue.ends(self.asked_for.copy())


class _TopicAsked(NamedTuple):
    """A question of a silent partition's topic."""

    at: float
    answer: Future[Topic]

    @property
    def is_missing(self) -> bool:
        return self.answer.done() and isinstance(self.answer.exception(), TopicMissing)

    def may_be_asked_again(self, now: float) -> bool:
        """Whether it is time: a topic may be deleted while its partition is silent."""
        return self.answer.done() and not self.is_missing and now - self.at >= _SHORT_SECONDS


class LogEndTracker:
    """Asks where logs end, all of them in one question, again and again. The owner calls it.

    Nothing waits: the answer comes by a future, and what was known before stands until then.
    Seconds are of the owner's clock. `Assignment` asks it in place of a fetcher.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        poll_seconds: float,
        make_spare: Callable[[], Catalogue] | None = None,
    ) -> None:
        """A spare one is asked of silent partitions: an answer about these takes seconds to come.

        It is made when it is first needed. Without it they stay in the one question.
        """
        self._catalogue = catalogue
        self._make_spare = make_spare
        self._spare: Catalogue | None = None
        self._poll_seconds = poll_seconds
        self._ends: dict[Partition, LogEnd] = {}
        self._short: dict[Partition, float] = {}  # since when a log has been too short
        self._silent: dict[Partition, float] = {}  # since when answers have left it out
        # Of these, those that were silent for long: whether their topics are there.
        self._topics: dict[Partition, _TopicAsked] = {}
        self._questions = [_Question(catalogue)]  # and the spare's, once there was one
        self._answered: set[Partition] = set()
        self.available = True
        """Whether the last question was answered."""

    def close(self) -> None:
        """Close the spare catalogue, in bounded time. Idempotent."""
        del self._questions[1:]
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    def add(self, positions: Mapping[Partition, Position]) -> None:
        """Do nothing: what is planned says where executors read."""

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions: their logs may be others later."""
        for partition in partitions:
            for question in self._questions:
                question.asked_for.discard(partition)
            self._answered.discard(partition)
            self._ends.pop(partition, None)
            self._short.pop(partition, None)
            self._hear(partition)

    def log_range(self, partition: Partition) -> tuple[int | None, int] | None:
        """The end of a log; its start is not asked for."""
        end = self._ends.get(partition)
        return None if end is None else (None, end.offset)

    def end_of(self, partition: Partition) -> LogEnd | None:
        """The newest known end of a log."""
        return self._ends.get(partition)

    def is_answered(self, partition: Partition) -> bool:
        """Whether the cluster was asked of it, even if it could not tell."""
        return partition in self._answered

    def is_silent(self, partition: Partition) -> bool:
        """Whether the last answer left it out: its leader could not be asked."""
        return partition in self._silent

    @property
    def leaderless(self) -> Collection[Partition]:
        """Those whose leaders have not answered for some seconds."""
        return self._topics.keys()

    def poll(self, now: float, partitions: Collection[Partition]) -> bool:
        """Take answers, and ask again when it is time; True if an answer came.

        It is time at once for a partition that was not asked for. Raises KafkaFailed when asking
        again cannot help.
        """
        taken = [self._take(now, question) for question in self._questions]
        if self._silent and self._make_spare is not None and len(self._questions) == 1:
            self._spare = self._make_spare()
            self._spare.open()
            self._questions.append(_Question(self._spare))
        silent = {each for each in partitions if each in self._silent}
        apart = silent if len(self._questions) > 1 else set()
        others = [each for each in partitions if each not in apart]
        for question, asked in zip(self._questions, (others, apart), strict=False):
            question.ask(now, asked, self._poll_seconds)
        return any(taken)

    def trouble(self, now: float, partition: Partition, planned_to: int) -> KafkaError | None:
        """The reason why nothing can be planned from an offset, told once in a while.

        The log has ended before it for a while, or the topic is gone.
        """
        asked = self._topics.get(partition)
        if asked is not None and asked.is_missing:
            self._hear(partition)
            return TopicMissing(partition.topic)
        end = self._ends.get(partition)
        if end is None or end.offset >= planned_to:
            self._short.pop(partition, None)
            return None
        if now - self._short.setdefault(partition, now) < _SHORT_SECONDS:
            return None
        del self._short[partition]
        return OffsetOutOfRange(partition, planned_to, f"its log ends at {end.offset}")

    def _take(self, now: float, question: _Question) -> bool:
        if not question.is_answered:
            return False
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
        self.available |= not is_spare
        self._answered |= question.asked_for
        for each in question.asked_for:
            if each in ends:
                self._ends[each] = ends[each]
                self._hear(each)
            else:
                self._miss(each, now)
        return True

    def _hear(self, partition: Partition) -> None:
        self._silent.pop(partition, None)
        self._topics.pop(partition, None)

    def _miss(self, partition: Partition, now: float) -> None:
        since = self._silent.setdefault(partition, now)
        if now - since < _SHORT_SECONDS:
            return
        if partition not in self._topics:
            log.warning("end_not_known", partition=str(partition))
        elif not self._topics[partition].may_be_asked_again(now):
            return
        self._topics[partition] = _TopicAsked(now, self._catalogue.topic(partition.topic))


class Silences:
    """Partitions, by index, that were silent and have not been read since. Pure.

    Each is left out of groups for a pause that grows. Seconds are of the owner's clock.
    """

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._again_at: dict[int, float] = {}

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._times)

    def fell(self, index: int, now: float) -> float:
        """Note that nothing was heard of a partition; return how long it is left out."""
        times = self._times[index] = self._times.get(index, 0) + 1
        pause = min(_FIRST_SECONDS * 2.0 ** min(times - 1, 16), _LONGEST_SECONDS)
        self._again_at[index] = now + pause
        return pause

    def is_out(self, index: int, now: float, *, is_answered: bool) -> bool:
        """Whether a partition is left out now.

        While its leader does not answer where the log ends (not `is_answered`) it is. It comes
        back with the first answer then, whatever is left of its pause.
        """
        if not is_answered:
            self._again_at.pop(index, None)
            return True
        return now < self._again_at.get(index, now)

    def patience(self, index: int) -> int:
        """How many times as long as at first nothing may be heard of a partition's next range.

        It may be no silence of its leader's: a client brings nothing of records whose producers
        have aborted them, while it reads a long stretch of these.
        """
        return min(1 << min(self._times.get(index, 0), 16), _MOST_PATIENCE)

    def keep(self, indexes: Container[int]) -> None:
        """Forget all other partitions: they are not read here."""
        for index in [each for each in self._times if each not in indexes]:
            self.heard(index)

    def heard(self, index: int) -> None:
        """Note that a partition was read, or is not read here any more."""
        self._times.pop(index, None)
        self._again_at.pop(index, None)


@dataclass(slots=True)
class _Budget:
    tokens: float
    filled_at: float


class Rates:
    """Shortens what may be planned to what sources with a rate limit allow. Pure.

    All partitions of all topics of a source share its limit. Records are counted as offsets.
    Seconds are of one monotonic clock.
    """

    def __init__(self, source_of: Callable[[str], Source], group_seconds: float) -> None:
        """`group_seconds` is for how long a group gathers records."""
        self._source_of = source_of
        self._group_seconds = group_seconds
        self._budgets: dict[str, _Budget] = {}

    def allowed(
        self, now: float, logs: Mapping[int, tuple[int, int]], topic_of: Mapping[int, str]
    ) -> dict[int, tuple[int, int]]:
        """Where the next range of each partition begins, and where it may end by now.

        What a source allows is shared out evenly among those of its partitions that have records.
        """
        allowed: dict[int, tuple[int, int]] = {}
        limited: dict[str, list[int]] = {}
        for index, (first, end) in logs.items():
            source = self._source_of(topic_of[index])
            if source.records_per_second is None:
                allowed[index] = first, end
            elif end > first:
                limited.setdefault(source.label, []).append(index)
                self._fill(source.label, source.records_per_second, now)
        for label, indexes in limited.items():
            left = max(0, int(self._budgets[label].tokens))
            by_need = sorted(indexes, key=lambda index: logs[index][1] - logs[index][0])
            for done, index in enumerate(by_need):
                first, end = logs[index]
                count = min(end - first, -(-left // (len(by_need) - done)))
                allowed[index] = first, first + count
                left -= count
        return allowed

    def take(self, topic: str, count: int) -> None:
        """Note that so many were planned."""
        budget = self._budgets.get(self._source_of(topic).label)
        if budget is not None:
            budget.tokens -= count

    def _fill(self, label: str, rate: float, now: float) -> None:
        part = max(1.0, rate * self._group_seconds)
        budget = self._budgets.setdefault(label, _Budget(part, now))
        gained = (now - budget.filled_at) * rate
        budget.tokens = min(_SAVED_SECONDS * part, budget.tokens + gained)
        budget.filled_at = now


class RangePlans:
    """Plans groups of ranges of the partitions that are ours. The owner thread calls everything.

    What was found open comes before anything new of its line. At first all partitions are waited
    for, for a while, so that what is open of many is run together.
    """

    def __init__(
        self, groups: TransactionGroups, ends: LogEndTracker, planner: RangePlanner, rates: Rates
    ) -> None:
        self._groups = groups
        self._ends = ends
        self._planner = planner
        self._rates = rates
        self._since: float | None = None  # when the first partition was open

    def plan(
        self,
        now: float,
        lines: Mapping[int, PartitionTransactions],
        *,
        is_settled: bool,
        flush: bool,
    ) -> bool:
        """Plan the next ranges of these lines, by partition index; True if there were any.

        `is_settled`: every partition is open. With `flush` nothing waits for more to come.
        """
        if not lines:
            return False
        if self._since is None:
            self._since = now
        if not is_settled and now - self._since < _TOGETHER_SECONDS:
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
