"""Where the logs end, as the cluster said last."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import NamedTuple

import structlog

from partition.errors import KafkaError, KafkaFailed, OffsetOutOfRange, TopicMissing
from partition.interfaces import Catalogue, LogEnd, Topic
from partition.records import Partition

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
