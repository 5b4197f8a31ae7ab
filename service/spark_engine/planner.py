"""Plan groups of ranges: log ends, rate limits, and what silent partitions are left out."""

from collections.abc import Callable, Collection, Container, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from partition.consumer import Consumer
from partition.errors import KafkaError, KafkaFailed, OffsetOutOfRange, TopicMissing
from partition.interfaces import Catalogue, LogEnd, Topic
from partition.records import Partition
from topology.steps import Source
from transactions.groups import Member, RangePlanner, TransactionGroups
from transactions.partition_transactions import PartitionTransactions

log = structlog.get_logger()

_SHORT_SECONDS = 5.0  # so long a log may seem to end too early: its leader has just changed


class _Question:
    """One question about some logs, and its answer while it is awaited."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._answer: Future[Mapping[Partition, LogEnd]] | None = None
        self._due = float("-inf")
        self.asked_for: set[Partition] = set()  # those that were not forgotten since

    @property
    def is_answered(self) -> bool:
        """Whether `take` has an answer."""
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
    """Whether a silent partition's topic is there, as it was asked last."""

    at: float
    answer: Future[Topic]

    @property
    def is_missing(self) -> bool:
        """Whether the cluster says that it is not."""
        return self.answer.done() and isinstance(self.answer.exception(), TopicMissing)

    def may_be_asked_again(self, now: float) -> bool:
        """Whether it is time: a topic may be deleted while its partition is silent."""
        return self.answer.done() and not self.is_missing and now - self.at >= _SHORT_SECONDS


class Ends:
    """Asks where logs end, all of them in one question, again and again. The owner calls it.

    Nothing waits: the answer comes by a future, and what was heard before stands until then.
    Seconds are of the owner's clock.
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
        self.catalogue = catalogue
        """Whom it asks. It is open while the reader is."""
        self._make_spare = make_spare
        self._spare: Catalogue | None = None
        self._poll_seconds = poll_seconds
        self._ends: dict[Partition, LogEnd] = {}
        self._short: dict[Partition, float] = {}  # since when a log has been too short
        self._silent: dict[Partition, float] = {}  # since when answers have left it out
        # Of these, those that were silent for long: whether their topics are there.
        self._topics: dict[Partition, _TopicAsked] = {}
        self._question = _Question(catalogue)
        self._of_silent: _Question | None = None  # once there was one
        self._heard: set[Partition] = set()  # whom an answer was about
        self.available = True
        """Whether the last question was answered."""

    def close(self) -> None:
        """Let go of the spare catalogue, in bounded time. Idempotent."""
        self._of_silent = None
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    def of(self, partition: Partition) -> LogEnd | None:
        """Where a log ended when it was heard of last; None: it was not."""
        return self._ends.get(partition)

    def is_heard(self, partition: Partition) -> bool:
        """Whether the cluster was asked of it, even if it could not tell."""
        return partition in self._heard

    def is_silent(self, partition: Partition) -> bool:
        """Whether the last answer left it out: its leader could not be asked."""
        return partition in self._silent

    @property
    def leaderless(self) -> Collection[Partition]:
        """Those whose leaders have not answered for some seconds."""
        return self._topics.keys()

    def poll(self, now: float, partitions: Collection[Partition]) -> bool:
        """Take an answer, and ask again when it is time; True if an answer came.

        It is time at once for a partition that was not asked for. Raises KafkaFailed when asking
        again cannot help.
        """
        answered = self._take(now)
        if self._of_silent is not None:
            answered |= self._take_of_silent(now, self._of_silent)
        elif self._silent and self._make_spare is not None:
            self._spare = self._make_spare()
            self._spare.open()
            self._of_silent = _Question(self._spare)
        if self._of_silent is None:
            self._question.ask(now, partitions, self._poll_seconds)
            return answered
        silent = [each for each in partitions if each in self._silent]
        self._of_silent.ask(now, silent, self._poll_seconds)
        others = [each for each in partitions if each not in self._silent]
        self._question.ask(now, others, self._poll_seconds)
        return answered

    def forget(self, partition: Partition) -> None:
        """Learn that a partition is not read now: its log may be another one later."""
        for question in (self._question, self._of_silent):
            if question is not None:
                question.asked_for.discard(partition)
        self._heard.discard(partition)
        self._ends.pop(partition, None)
        self._short.pop(partition, None)
        self._hear(partition)

    def trouble(self, now: float, partition: Partition, planned_to: int) -> KafkaError | None:
        """Why nothing can be planned from an offset: the log has ended before it for a while.

        Or its topic is gone. Told once; the next time is as long after it.
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

    def _take(self, now: float) -> bool:
        if not self._question.is_answered:
            return False
        try:
            ends = self._question.take()
        except KafkaFailed:
            raise
        except KafkaError as error:
            if self.available:
                log.warning("ends_not_known", error=str(error))
            self.available = False
            return False
        self.available = True
        self._learn(now, self._question, ends)
        return True

    def _take_of_silent(self, now: float, question: _Question) -> bool:
        if not question.is_answered:
            return False
        try:
            ends = question.take()
        except KafkaFailed:
            raise
        except KafkaError:  # none of them can be asked
            ends = {}
        self._learn(now, question, ends)
        return True

    def _learn(self, now: float, question: _Question, ends: Mapping[Partition, LogEnd]) -> None:
        self._heard |= question.asked_for
        self._ends.update((each, end) for each, end in ends.items() if each in question.asked_for)
        for each in question.asked_for:
            if each in ends:
                self._hear(each)
            else:
                self._miss(each, now)

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
        self._topics[partition] = _TopicAsked(now, self.catalogue.topic(partition.topic))


_SAVED_SECONDS = 2.0  # what was left unused is kept for so many groups' time


@dataclass(slots=True)
class _Budget:
    tokens: float
    filled_at: float


class Rates:
    """Shortens what may be planned to what sources with a rate limit allow.

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
        """What may be planned of each place: where it begins, and where it may end by now.

        What a source allows is shared out evenly among those of its partitions that have records.
        """
        allowed: dict[int, tuple[int, int]] = {}
        limited: dict[str, list[int]] = {}
        for place, (first, end) in logs.items():
            source = self._source_of(topic_of[place])
            if source.records_per_second is None:
                allowed[place] = first, end
            elif end > first:
                limited.setdefault(source.label, []).append(place)
                self._fill(source.label, source.records_per_second, now)
        for label, places in limited.items():
            left = max(0, int(self._budgets[label].tokens))
            by_need = sorted(places, key=lambda place: logs[place][1] - logs[place][0])
            for done, place in enumerate(by_need):
                first, end = logs[place]
                count = min(end - first, -(-left // (len(by_need) - done)))
                allowed[place] = first, first + count
                left -= count
        return allowed

    def take(self, topic: str, count: int) -> None:
        """Learn that so many were planned."""
        budget = self._budgets.get(self._source_of(topic).label)
        if budget is not None:
            budget.tokens -= count

    def _fill(self, label: str, rate: float, now: float) -> None:
        part = max(1.0, rate * self._group_seconds)
        budget = self._budgets.setdefault(label, _Budget(part, now))
        gained = (now - budget.filled_at) * rate
        budget.tokens = min(_SAVED_SECONDS * part, budget.tokens + gained)
        budget.filled_at = now


_FIRST_SECONDS = 10.0
# Each try in vain holds the others up, for as long as silence is waited for.
_LONGEST_SECONDS = 900.0
_MOST_PATIENCE = 8


class Silences:
    """Partitions, by place, that were silent and have not been read since.

    Seconds are of the owner's clock, and given. Pure: no thread, no clock, no I/O.
    """

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._again_at: dict[int, float] = {}

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._times)

    def fell(self, place: int, now: float) -> float:
        """Learn that nothing was heard of a partition; return how long it is left out.

        That grows with each time, until it is `heard`.
        """
        times = self._times[place] = self._times.get(place, 0) + 1
        pause = min(_FIRST_SECONDS * 2.0 ** min(times - 1, 16), _LONGEST_SECONDS)
        self._again_at[place] = now + pause
        return pause

    def is_out(self, place: int, now: float, *, is_answered: bool) -> bool:
        """Whether a partition is left out now.

        It is while its leader does not answer where the log ends (not `is_answered`), and comes
        with the first answer then, whatever was left of its pause.
        """
        if not is_answered:
            self._again_at.pop(place, None)
            return True
        return now < self._again_at.get(place, now)

    def patience(self, place: int) -> int:
        """How many times as long as at first nothing may be heard of a partition's next range.

        It may be no silence of its leader's: a client brings nothing of records whose producers
        have aborted them, while it reads a long stretch of these.
        """
        return min(1 << min(self._times.get(place, 0), 16), _MOST_PATIENCE)

    def keep(self, places: Container[int]) -> None:
        """Learn which partitions are read here: nothing will be heard of others."""
        for place in [each for each in self._times if each not in places]:
            self.heard(place)

    def heard(self, place: int) -> None:
        """Learn that a partition was read, or is not read here any more."""
        self._times.pop(place, None)
        self._again_at.pop(place, None)


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
