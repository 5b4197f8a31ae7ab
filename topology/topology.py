"""A topology: what is read, which bolts it passes, where the rows go. A value, not a registry."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

import pyarrow as pa

from topology.bolt import Bolt, Kind, VectorisedBolt, kind_of
from topology.errors import InvalidTopology
from topology.record import Record
from topology.sink import DeadLetterSink, Sink

T = TypeVar("T")
Out = TypeVar("Out")


BATCH_ROWS = 100_000
BATCH_BYTES = 128 * 1024 * 1024
BATCH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When a micro-batch is full: at so many rows, so many bytes, or this old."""

    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    batch_seconds: float = BATCH_SECONDS


@dataclass(frozen=True, slots=True, eq=False)
class BoltStep:
    """A bolt in its place, and what comes after it."""

    name: str
    bolt: Bolt[Any, Any]
    kind: Kind
    workers: int
    timeout_seconds: float | None
    children: "list[BoltStep | SinkStep]" = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class SinkStep:
    """A sink in its place."""

    name: str
    sink: Sink[Any]
    policy: BatchPolicy


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A topic to read, or every topic whose whole name matches a pattern."""

    topic: str | re.Pattern[str]
    children: list[BoltStep | SinkStep] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The topic's name, or the pattern between slashes."""
        return self.topic if isinstance(self.topic, str) else f"/{self.topic.pattern}/"


class DeadLetters:
    """Where the records go that could not be processed."""

    def __init__(self) -> None:
        self.sink: DeadLetterSink | None = None

    def into(self, sink: DeadLetterSink) -> None:
        """Send dead letters there."""
        if self.sink is not None:
            raise InvalidTopology("dead_letters.into() was called twice; one place is allowed")
        self.sink = sink


class Stream(Generic[T]):
    """The values that come out of one step. Use it twice to fan out."""

    def __init__(self, topology: "Topology", children: list[BoltStep | SinkStep]) -> None:
        self._topology = topology
        self._children = children

    @overload
    def then(
        self, bolt: VectorisedBolt, *, name: str | None = None
    ) -> "Stream[pa.RecordBatch]": ...
    @overload
    def then(
        self,
        bolt: Callable[[], Bolt[T, Out]],
        *,
        name: str | None = None,
        workers: int = 1,
        timeout_seconds: float | None = None,
    ) -> "Stream[Out]": ...
    @overload
    def then(
        self,
        bolt: Bolt[T, Out],
        *,
        name: str | None = None,
        workers: int = 1,
        timeout_seconds: float | None = None,
    ) -> "Stream[Out]": ...
    def then(
        self,
        bolt: Any,
        *,
        name: str | None = None,
        workers: int = 1,
        timeout_seconds: float | None = None,
    ) -> "Stream[Any]":
        """Pass every value through a bolt.

        `bolt` is a @bolt function, a Bolt, or something that makes one (its class).
        `workers` is how many calls of an async bolt run at once, `timeout_seconds` how
        long one may take; other bolts have neither. Raises InvalidTopology.
        """
        made = bolt() if not isinstance(bolt, Bolt) and callable(bolt) else bolt
        if not isinstance(made, Bolt):
            message = f"then() got {bolt!r}; a @bolt function, a Bolt or its class is allowed"
            raise InvalidTopology(message)
        label = name or str(getattr(made, "__name__", type(made).__name__))
        kind = kind_of(made)
        if workers < 1 or (workers > 1 and kind is not Kind.ASYNC):
            message = (
                f"bolt '{label}' has workers={workers}; "
                "a bolt that is no coroutine function runs with workers=1"
            )
            raise InvalidTopology(message)
        if timeout_seconds is not None and kind is not Kind.ASYNC:
            message = (
                f"bolt '{label}' has timeout_seconds={timeout_seconds:g}; "
                "only a call of a bolt that is a coroutine function can be cut short"
            )
            raise InvalidTopology(message)
        step = BoltStep(self._topology.claim(label), made, kind, workers, timeout_seconds)
        self._children.append(step)
        return Stream(self._topology, step.children)

    def into(
        self,
        sink: Sink[T],
        *,
        name: str | None = None,
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
        batch_seconds: float = BATCH_SECONDS,
    ) -> None:
        """Write every value to a sink, in micro-batches of so many rows, bytes or seconds."""
        label = name or sink.name
        if batch_rows < 1 or batch_bytes < 1 or batch_seconds <= 0:
            message = f"sink '{label}': batch_rows, batch_bytes and batch_seconds must be positive"
            raise InvalidTopology(message)
        policy = BatchPolicy(batch_rows, batch_bytes, batch_seconds)
        self._children.append(SinkStep(self._topology.claim(label), sink, policy))


class Topology:
    """Sources, bolts and sinks, and where the dead letters go."""

    def __init__(self, name: str) -> None:
        if not name or "/" in name:
            message = f"topology name {name!r}: it must not be empty nor contain '/'"
            raise InvalidTopology(message)
        self.name = name
        self.sources: list[Source] = []
        self.dead_letters = DeadLetters()
        self._names: set[str] = set()

    def source(self, topic: str | re.Pattern[str]) -> Stream[Record]:
        """Read a topic, or, given a compiled pattern, every topic whose whole name matches it.

        Topics that come later are read too, from their beginning. A topic that is named by
        itself does not belong to a pattern as well. Raises InvalidTopology.
        """
        source = Source(topic)
        if any(other.label == source.label for other in self.sources):
            message = f"topic '{source.label}' is read twice; use its stream twice instead"
            raise InvalidTopology(message)
        self.sources.append(source)
        return Stream(self, source.children)

    def source_of(self, topic: str) -> Source:
        """The source a topic belongs to. Raises KeyError."""
        for source in self.sources:
            if source.topic == topic:
                return source
        for source in self.sources:
            if isinstance(source.topic, re.Pattern) and source.topic.fullmatch(topic):
                return source
        raise KeyError(topic)

    def claim(self, name: str) -> str:
        """Reserve a step's name; the second and later of one name get a number."""
        unique, count = name, 1
        while unique in self._names:
            count += 1
            unique = f"{name}_{count}"
        self._names.add(unique)
        return unique

    def steps(self) -> Iterator[BoltStep | SinkStep]:
        """Every step, parents before children."""
        waiting = [step for source in self.sources for step in source.children]
        while waiting:
            step = waiting.pop(0)
            yield step
            if isinstance(step, BoltStep):
                waiting.extend(step.children)

    def validate(self) -> None:
        """Raise InvalidTopology, naming the step, unless the topology can run."""
        if not self.sources:
            raise InvalidTopology(f"topology '{self.name}' reads nothing; call source(topic)")
        for source in self.sources:
            if not source.children:
                raise InvalidTopology(f"topic '{source.label}' leads nowhere; add a bolt or a sink")
        if self.dead_letters.sink is None:
            message = f"topology '{self.name}' has no dead letters; call dead_letters.into(sink)"
            raise InvalidTopology(message)
        for step in self.steps():
            if isinstance(step, BoltStep):
                _validate_bolt(step)


def _validate_bolt(step: BoltStep) -> None:
    if not step.children:
        raise InvalidTopology(f"bolt '{step.name}' leads nowhere; add a bolt or a sink")
    if step.kind is not Kind.VECTORISED:
        return
    for child in step.children:
        if isinstance(child, BoltStep) and child.kind is not Kind.VECTORISED:
            message = (
                f"bolt '{child.name}' takes single values but '{step.name}' gives columns; "
                "a vectorised bolt or a sink is allowed after it"
            )
            raise InvalidTopology(message)
