"""Requests of Kafka's admin client, waited for in bounded time."""

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeAlias, TypeVar

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka import KafkaError as Code
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]

from partition.interfaces import Topic
from partition.kafka.errors import code_of
from partition.records import Partition

Key = TypeVar("Key")
Offset: TypeAlias = tuple[int, int | None] | Code  # with its leader's epoch
Spec: TypeAlias = Any  # an OffsetSpec; its type is not public

_STEP_SECONDS = 0.1
_NO_ID = str(Uuid(0, 0))


class Cluster:
    """One admin client, on the thread that made it. `ended` tells it to stop waiting.

    Nothing raises: what could not be learnt is an error code in its place.
    """

    def __init__(
        self, client: AdminClient, isolation: IsolationLevel, ended: Callable[[], bool]
    ) -> None:
        self._client = client
        self._isolation = isolation
        self._ended = ended

    def poll(self) -> None:
        """Let the client call back: errors, tokens."""
        self._client.poll(0)

    def names(self, seconds: float) -> list[str] | Code:
        """List the topics."""
        end = time.monotonic() + seconds
        while True:
            left = max(_STEP_SECONDS, min(1.0, end - time.monotonic()))
            try:
                return sorted(self._client.list_topics(timeout=left).topics)
            except KafkaException as error:
                self.poll()
                if self._ended() or time.monotonic() >= end:
                    return code_of(error)

    def topics(
        self, names: Collection[str], seconds: float, *, internal: bool
    ) -> dict[str, Topic | Code]:
        """Describe topics; Kafka's own ones are left out unless `internal`."""
        if not names:
            return {}
        collection = TopicCollection(list(names))
        asked = self._client.describe_topics(collection, request_timeout=seconds)
        found: dict[str, Topic | Code] = {}
        for name, answer in self._answers(asked, seconds).items():
            if isinstance(answer, Code):
                found[name] = answer
            elif internal or not answer.is_internal:
                numbers = tuple(sorted(each.id for each in answer.partitions))
                topic_id = str(answer.topic_id)
                found[name] = Topic(name, None if topic_id == _NO_ID else topic_id, numbers)
        return found

    def offsets(
        self, partitions: Collection[Partition], spec: Spec, seconds: float
    ) -> dict[Partition, Offset]:
        """Ask partitions' leaders for an offset each; -1: there is none."""
        if not partitions:
            return {}
        asked = self._client.list_offsets(
            {TopicPartition(each.topic, each.number): spec for each in partitions},
            request_timeout=seconds,
            isolation_level=self._isolation,
        )
        return {
            Partition(at.topic, at.partition): answer
            if isinstance(answer, Code)
            else _found(answer)
            for at, answer in self._answers(asked, seconds).items()
        }

    def _answers(self, asked: Mapping[Key, Future[Any]], seconds: float) -> dict[Key, Any]:
        end = time.monotonic() + seconds + _STEP_SECONDS
        waiting: set[Future[Any]] = set(asked.values())
        while waiting and time.monotonic() < end and not self._ended():
            _, waiting = wait(waiting, _STEP_SECONDS)
            self.poll()
        return {key: _outcome(answer, seconds) for key, answer in asked.items()}


def _found(answer: Any) -> tuple[int, int | None]:
    epoch = answer.leader_epoch
    return answer.offset, None if epoch is None or epoch < 0 else epoch


def _outcome(answer: Future[Any], seconds: float) -> Any:
    if not answer.done():
        return Code(Code._TIMED_OUT, f"no answer in {seconds:g} seconds")  # noqa: SLF001
    error = answer.exception()
    return answer.result() if error is None else code_of(error)


EARLIEST: Spec = _OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Spec = _OffsetSpec.latest()  # type: ignore[no-untyped-call]


def at_timestamp(timestamp_ms: int) -> Spec:
    """Ask for the first record with this time stamp or a later one."""
    return _OffsetSpec.for_timestamp(timestamp_ms)
