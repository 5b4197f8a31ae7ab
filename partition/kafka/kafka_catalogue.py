"""Questions about a Kafka cluster, asked on a thread of their own.

Questions that come together are asked together: a start with hundreds of partitions costs
a few requests per broker.
"""

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka import KafkaError as Code
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]

from partition.errors import KafkaFailed, KafkaUnavailable, PartitionError, TopicMissing
from partition.interfaces import Log, LogEnd, Topic
from partition.kafka.librdkafka import (
    MISSING,
    KafkaLog,
    Scalar,
    asked,
    code_of,
    consumer_properties,
    is_refused,
    open_client,
)
from partition.records import Partition

Key = TypeVar("Key")
Offset: TypeAlias = tuple[int, int | None] | Code  # with its leader's epoch
Spec: TypeAlias = Any  # an OffsetSpec; its type is not public
_Questions: TypeAlias = "queue.SimpleQueue[_Question | None]"

ASK_SECONDS = 10.0
_NEW_SECONDS = 3.0  # brokers hear of a new topic one after the other
_RETRY_SECONDS = 0.1
_LEAST_SECONDS = 0.5  # a request is given this long, also when its question has less
_IDLE_SECONDS = 1.0
_CLOSE_SECONDS = 5.0
_STEP_SECONDS = 0.1
_NO_ID = str(Uuid(0, 0))
_EARLIEST: Spec = _OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Spec = _OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(slots=True, eq=False)
class _Question:
    what: str  # "for ..."
    topic: str = ""  # "": all of them
    partition: Partition | None = None
    timestamp_ms: int | None = None
    ends_of: frozenset[Partition] | None = None  # where these logs end, and nothing else
    asked_at: float = field(default_factory=time.monotonic)
    answer: Future[Any] = field(default_factory=Future)


class _Facts(NamedTuple):
    topics: Mapping[str, Topic | Code]
    listing: Mapping[str, Topic] | Code
    starts: Mapping[Partition, Offset]
    ends: Mapping[Partition, Offset]
    stamps: Mapping[int, Mapping[Partition, Offset]]


class KafkaCatalogue:
    """A `Catalogue` of Kafka. `properties` are the fetcher's.

    A question is repeated for `ask_seconds` while that can help; a topic that is missing, for 3
    seconds. The end of a log is the one that readers see, by `isolation.level`.
    """

    def __init__(
        self, properties: Mapping[str, Scalar], *, ask_seconds: float = ASK_SECONDS
    ) -> None:
        self._properties = dict(properties)
        self._ask_seconds = ask_seconds
        self._log = KafkaLog()
        self._questions: _Questions = queue.SimpleQueue()
        self._lock = threading.Lock()  # of `_thread` and of putting a question
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._refusal: Code | None = None  # told since something was answered
        self._refused_now = False  # told since the round began

    def open(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            properties = {**consumer_properties(self._properties), "error_cb": self._on_error}
            client = open_client(AdminClient, properties, self._log)
            level = IsolationLevel[str(properties.get("isolation.level", "read_committed")).upper()]
            self._ended = ended = threading.Event()
            self._questions = queue.SimpleQueue()
            cluster = _Cluster(client, level, lambda: ended.is_set() or self._refused_now)
            args = cluster, self._questions, ended
            self._thread = threading.Thread(
                target=self._run, args=args, name="kafka-catalogue", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ended.set()
        self._questions.put(None)
        thread.join(_CLOSE_SECONDS)  # a listing may hold it for a second

    def topics(self) -> Future[Mapping[str, Topic]]:
        return self._ask(_Question("for the topics"))

    def topic(self, name: str) -> Future[Topic]:
        return self._ask(_Question(f"for topic '{name}'", name))

    def log(self, partition: Partition, timestamp_ms: int | None = None) -> Future[Log]:
        what = f"for the offsets of {partition}"
        return self._ask(_Question(what, partition.topic, partition, timestamp_ms))

    def ends(self, partitions: Collection[Partition]) -> Future[Mapping[Partition, LogEnd]]:
        return self._ask(_Question("for the ends of the logs", ends_of=frozenset(partitions)))

    def _ask(self, question: _Question) -> Future[Any]:
        question.answer.set_running_or_notify_cancel()  # nobody can cancel it
        with self._lock:
            if self._thread is None:
                question.answer.set_exception(KafkaFailed("the catalogue is not open"))
            else:
                self._questions.put(question)
        return question.answer

    def _on_error(self, error: Code) -> None:
        if is_refused(error):
            self._refusal, self._refused_now = error, True
        self._log.error(error)

    def _run(self, cluster: "_Cluster", questions: _Questions, ended: threading.Event) -> None:
        open_questions: list[_Question] = []
        while not ended.is_set():
            wait_seconds = _RETRY_SECONDS if open_questions else _IDLE_SECONDS
            open_questions += _next_round(questions, wait_seconds)
            cluster.poll()
            if open_questions and not ended.is_set():
                open_questions = self._round(cluster, open_questions)
        for question in [*open_questions, *_next_round(questions, 0)]:
            closed = KafkaUnavailable(question.what, "the catalogue was closed")
            question.answer.set_exception(closed)

    def _round(self, cluster: "_Cluster", questions: list[_Question]) -> list[_Question]:
        # librdkafka reports a refusal again only half a minute later.
        seconds = 0.0 if self._refusal else self._ask_seconds
        cluster.end = min(each.asked_at for each in questions) + seconds
        self._refused_now = False
        try:
            facts = self._facts(cluster, questions)
            outcomes = [self._outcome(cluster, each, facts) for each in questions]
        except Exception as error:  # noqa: BLE001 - a thread that died would leave all waiting
            outcomes = [KafkaFailed(f"the catalogue failed: {error!r}")] * len(questions)
        cluster.poll()  # for the client's errors
        again = []
        for question, outcome in zip(questions, outcomes, strict=True):
            seconds = 0.0
            if isinstance(outcome, TopicMissing):
                seconds = min(_NEW_SECONDS, self._ask_seconds)
            elif isinstance(outcome, KafkaUnavailable):
                seconds = self._ask_seconds
                if self._log.last:  # why no broker may have answered: a certificate, say
                    outcome.reason += f" ({self._log.last})"
            if not isinstance(outcome, PartitionError):
                self._log.last = ""
                question.answer.set_result(outcome)
            elif time.monotonic() - question.asked_at < seconds:
                again.append(question)
            else:
                question.answer.set_exception(outcome)
        return again

    def _facts(self, cluster: "_Cluster", questions: Sequence[_Question]) -> _Facts:
        topics = cluster.topics({each.topic for each in questions if each.topic})
        listing: Mapping[str, Topic] | Code = {}
        is_listed = any(not each.topic and each.ends_of is None for each in questions)
        if is_listed and not self._refused_now:
            listing = cluster.listing()
        logs: set[Partition] = set()
        stamped: dict[int, set[Partition]] = {}
        for each in questions:
            topic = topics.get(each.topic)
            if each.partition is None or not isinstance(topic, Topic):
                continue
            if each.partition.number in topic.partitions:
                logs.add(each.partition)
                if each.timestamp_ms is not None:
                    stamped.setdefault(each.timestamp_ms, set()).add(each.partition)
        starts = cluster.offsets(logs, _EARLIEST)
        ends = cluster.offsets(logs.union(*(each.ends_of or () for each in questions)), _LATEST)
        stamps = {
            timestamp_ms: cluster.offsets(partitions, _OffsetSpec.for_timestamp(timestamp_ms))
            for timestamp_ms, partitions in stamped.items()
        }
        return _Facts(topics, listing, starts, ends, stamps)

    def _outcome(self, cluster: "_Cluster", question: _Question, facts: _Facts) -> Any:
        partition = question.partition
        if question.ends_of is not None:
            return self._ends(cluster, question, facts.ends)
        topic = facts.topics.get(question.topic) if question.topic else facts.listing
        if not isinstance(topic, Code | None):
            self._refusal = None
        elif self._refusal is not None:
            topic = self._refusal
        if topic is None:
            return KafkaUnavailable(question.what, "no answer")
        if isinstance(topic, Code):
            return asked(question.what, topic, question.topic)
        if partition is None or not isinstance(topic, Topic):
            return topic
        return _log(question, partition, topic, facts)

    def _ends(
        self, cluster: "_Cluster", question: _Question, ends: Mapping[Partition, Offset]
    ) -> Mapping[Partition, LogEnd] | PartitionError:
        """Return the ends that are known; an error if there is none, and there may be some."""
        known = {each: ends[each] for each in question.ends_of or () if each in ends}
        told = {at: LogEnd(*each) for at, each in known.items() if isinstance(each, tuple)}
        found = {at: end for at, end in told.items() if end.offset >= 0}
        trouble = _first_error(known.values())
        is_unclear = trouble is None or trouble.code() == Code._NOENT  # noqa: SLF001
        if known and not found and is_unclear:
            # No leader of any is known, or none has answered: they are not there, or no broker is.
            trouble = _first_error(cluster.topics({each.topic for each in known}).values())
        if found:
            self._refusal = None
        if found or trouble is None:
            return found
        return asked(question.what, trouble if self._refusal is None else self._refusal)


def _log(
    question: _Question, partition: Partition, topic: Topic, facts: _Facts
) -> Log | PartitionError:
    if partition not in facts.starts:
        found = f"the topic has partitions {list(topic.partitions)}"
        return KafkaUnavailable(question.what, found)
    found_at: list[Any] = [facts.starts[partition], facts.ends[partition]]
    if question.timestamp_ms is not None:
        found_at.append(facts.stamps[question.timestamp_ms].get(partition, (-1, None)))
    for each in found_at:
        if isinstance(each, Code):  # the topic's leader has not heard of it yet
            return asked(question.what, each)
    first, last = found_at[0][0], max(found_at[0][0], found_at[1][0])
    at = None
    for stamp, _ in found_at[2:]:
        at = last if stamp < 0 else min(max(first, stamp), last)
    return Log(first, last, topic.topic_id, at, found_at[1][1])


def _next_round(questions: _Questions, wait_seconds: float) -> list[_Question]:
    taken = []
    try:
        question = questions.get(timeout=wait_seconds) if wait_seconds else questions.get_nowait()
        while True:
            if question is not None:
                taken.append(question)
            question = questions.get_nowait()
    except queue.Empty:
        return taken


def _first_error(outcomes: Iterable[object]) -> Code | None:
    """Return the first error that does not say that something is not there."""
    errors = (each for each in outcomes if isinstance(each, Code))
    return next((each for each in errors if each.code() not in MISSING), None)


class _Cluster:
    """Requests of one admin client, waited for until `end`, on the thread that made it.

    `ended` tells it to stop waiting. Nothing raises: an error code stands in place of an answer.
    """

    def __init__(
        self, client: AdminClient, isolation: IsolationLevel, ended: Callable[[], bool]
    ) -> None:
        self._client = client
        self._isolation = isolation
        self._ended = ended
        self.end = 0.0  # of the round, on the monotonic clock

    @property
    def _seconds(self) -> float:
        return max(_LEAST_SECONDS, self.end - time.monotonic())

    def poll(self) -> None:
        """Let the client call back: errors, tokens."""
        self._client.poll(0)

    def listing(self) -> Mapping[str, Topic] | Code:
        end = time.monotonic() + self._seconds
        while True:
            left = max(_STEP_SECONDS, min(1.0, end - time.monotonic()))
            try:
                names = sorted(self._client.list_topics(timeout=left).topics)
                break
            except KafkaException as error:
                self.poll()
                if self._ended() or time.monotonic() >= end:
                    return code_of(error)
        found = self.topics(names, internal=False)
        trouble = _first_error(
            each for each in found.values() if not (isinstance(each, Code) and is_refused(each))
        )
        if trouble is not None:
            return trouble  # a topic that is left out would look deleted
        return {name: topic for name, topic in found.items() if isinstance(topic, Topic)}

    def topics(self, names: Collection[str], *, internal: bool = True) -> dict[str, Topic | Code]:
        if not names:
            return {}
        asked = self._client.describe_topics(
            TopicCollection(list(names)), request_timeout=self._seconds
        )
        found: dict[str, Topic | Code] = {}
        for name, answer in self._answers(asked).items():
            if isinstance(answer, Code):
                found[name] = answer
            elif internal or not answer.is_internal:
                numbers = tuple(sorted(each.id for each in answer.partitions))
                topic_id = str(answer.topic_id)
                found[name] = Topic(name, None if topic_id == _NO_ID else topic_id, numbers)
        return found

    def offsets(self, partitions: Collection[Partition], spec: Spec) -> dict[Partition, Offset]:
        """Ask partitions' leaders for an offset each; -1: there is none."""
        if not partitions:
            return {}
        asked = self._client.list_offsets(
            {TopicPartition(each.topic, each.number): spec for each in partitions},
            request_timeout=self._seconds,
            isolation_level=self._isolation,
        )
        found: dict[Partition, Offset] = {}
        for at, answer in self._answers(asked).items():
            if not isinstance(answer, Code):
                epoch = answer.leader_epoch
                known = None if epoch is None or epoch < 0 else epoch
                answer = answer.offset, known  # noqa: PLW2901
            found[Partition(at.topic, at.partition)] = answer
        return found

    def _answers(self, asked: Mapping[Key, Future[Any]]) -> dict[Key, Any]:
        seconds = self._seconds
        end = time.monotonic() + seconds + _STEP_SECONDS
        waiting: set[Future[Any]] = set(asked.values())
        while waiting and time.monotonic() < end and not self._ended():
            _, waiting = wait(waiting, _STEP_SECONDS)
            self.poll()
        return {key: _answer(future, seconds) for key, future in asked.items()}


def _answer(future: Future[Any], seconds: float) -> Any:
    if not future.done():
        return Code(Code._TIMED_OUT, f"no answer in {seconds:g} seconds")  # noqa: SLF001
    error = future.exception()
    return future.result() if error is None else code_of(error)
