"""Discovery of partitions, and of the ends of logs that are not fetched."""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeAlias

import structlog

from partition.errors import KafkaError, KafkaUnavailable, TopicMissing
from partition.interfaces import Catalogue, LogEnd, Topic
from partition.records import Partition

log = structlog.get_logger()

_ASK_SECONDS = 2.0
_PAUSE = 4  # times as long as the last answer took

TopicName: TypeAlias = str | re.Pattern[str]


class Discovery:
    """Ask the catalogue for the topics of a pipeline; a pattern matches a topic's whole name.

    The owner thread calls everything. What was found once is not forgotten when an answer
    fails or leaves it out: an answer only ever adds.
    """

    def __init__(
        self, catalogue: Catalogue, sources: Sequence[TopicName], interval_seconds: float
    ) -> None:
        self._catalogue = catalogue
        self._names = [source for source in sources if isinstance(source, str)]
        self._patterns = [source for source in sources if not isinstance(source, str)]
        self._interval_seconds = interval_seconds
        self._asked: list[Future[Any]] = []
        self._due = 0.0
        self.is_settled = False  # whether there has been an answer

    def poll(self, now: float) -> list[Topic]:
        """Return the topics of a new answer, if there is one.

        Before the first answer it raises what the catalogue raises: TopicMissing for a name,
        KafkaUnavailable, KafkaFailed. Later only KafkaFailed ends the run.
        """
        if not self._asked:
            if now < self._due:
                return []
            self._due = now + self._interval_seconds
            self._asked = [self._catalogue.topic(name) for name in self._names]
            if self._patterns:
                self._asked.append(self._catalogue.topics())
        if not all(future.done() for future in self._asked):
            return []
        asked, self._asked = self._asked, []
        found: dict[str, Topic] = {}
        for future in asked:
            try:
                found.update(self._wanted(future.result()))
            except (TopicMissing, KafkaUnavailable) as error:
                if not self.is_settled:
                    raise
                log.warning("discovery_failed", error=str(error))
        if not found and not self.is_settled:
            patterns = [pattern.pattern for pattern in self._patterns]
            log.warning("no_topic_matches", patterns=patterns)
        self.is_settled = True
        return list(found.values())

    def _wanted(self, answer: Topic | Mapping[str, Topic]) -> dict[str, Topic]:
        if isinstance(answer, Topic):
            return {answer.name: answer}
        return {
            name: topic
            for name, topic in answer.items()
            if any(pattern.fullmatch(name) for pattern in self._patterns)
        }


class LogEnds:
    """The ends of logs that are not fetched. The owner thread calls everything.

    They are asked for every two seconds: a partition that is stuck is not fetched, and it is then
    that its lag counts. Where an answer takes long (a leader is away), more rarely: other questions
    wait behind it.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._due = 0.0
        self._asked_at = 0.0
        self._asked: Future[Mapping[Partition, LogEnd]] | None = None
        self._ends: Mapping[Partition, LogEnd] = {}

    def poll(self, now: float, unfetched: Iterable[Partition]) -> None:
        """Take an answer, and ask again when it is time: of those of which nothing is fetched."""
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            self._due = max(self._due, now + _PAUSE * (now - self._asked_at))
            with suppress(KafkaError):  # what was known is the best that is known
                self._ends = asked.result()
        if self._asked is not None or now < self._due:
            return
        self._due, self._asked_at = now + _ASK_SECONDS, now
        asked_of = list(unfetched)
        if asked_of:
            self._asked = self._catalogue.ends(asked_of)
        else:
            self._ends = {}

    def later(self, partition: Partition, known: int | None) -> int | None:
        """Return the later of the end that is known by fetching and the one that was asked for."""
        asked = self._ends.get(partition)
        return known if asked is None else max(asked.offset, known or 0)
