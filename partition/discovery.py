"""Which topics and partitions there are to read, asked again and again while running."""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

import structlog

from partition.catalogue import Catalogue, Topic
from partition.errors import KafkaUnavailable, TopicMissing

log = structlog.get_logger()

TopicName: TypeAlias = str | re.Pattern[str]


class Discovery:
    """Asks the catalogue for the topics of a pipeline; a pattern matches a topic's whole name.

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
        """The topics that an answer holds, if there is a new one.

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
