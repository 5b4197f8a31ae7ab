"""Streams: the values that come out of a step, and what may follow them."""

import inspect
import math
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Generic, Protocol, TypeVar, overload

import pyarrow as pa

from topology.advanced import AdvancedBolt
from topology.aggregates import Aggregate
from topology.bolt import (
    Bolt,
    Component,
    Kind,
    VectorisedBolt,
    check_columns,
    coroutines_of,
    kind_of,
    name_of,
)
from topology.errors import InvalidTopology
from topology.grouping import ByKey, Grouping, Shuffle, key_of
from topology.record import DEFAULT_STREAM
from topology.sink import Sink
from topology.spark_step import Function, SparkRows, spark_step
from topology.state import State
from topology.steps import (
    BATCH_BYTES,
    BATCH_SECONDS,
    BatchPolicy,
    BoltStep,
    Key,
    Order,
    Retries,
    SinkStep,
    Step,
)

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # as Kafka names them
_AWAITED = ("open", "close", "tick")  # of an async bolt
_NEVER_AWAITED = ("drain", "partition_assigned", "partition_revoked")


def is_positive(number: Any) -> bool:
    """Whether it is a finite number > 0."""
    return isinstance(number, Real) and 0 < float(number) < math.inf


def is_count(number: Any) -> bool:
    """Whether it is a whole number > 0."""
    return isinstance(number, Integral) and int(number) > 0


def refuse_unless(given: object, kind: type, where: str, allowed: str) -> None:
    """Raise InvalidTopology for a value of another type: not everybody runs mypy."""
    if not isinstance(given, kind):
        raise InvalidTopology(f"{where} got {given!r}; {allowed} is allowed")


def check_topic(topic: object) -> None:
    if isinstance(topic, re.Pattern) and isinstance(topic.pattern, str):
        return
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopology(
            f"source() got {topic!r}; a topic's name is allowed (1 to 249 of a-z, A-Z, 0-9, "
            "'.', '_' and '-'), or a compiled pattern of names"
        )


def made_of(bolt: Any) -> tuple[Any, Callable[[], Any] | None]:
    """Return the bolt that `then` was given, or made, and what makes another."""
    if isinstance(bolt, Component):
        return bolt, None
    if inspect.isabstract(bolt):
        missing = ", ".join(sorted(bolt.__abstractmethods__))
        raise InvalidTopology(f"then() got the class {bolt.__name__}, which lacks {missing}")
    made = bolt() if callable(bolt) and _takes_nothing(bolt) else None
    if isinstance(bolt, type) and issubclass(bolt, Component) and made is None:
        raise InvalidTopology(
            f"then() got the class {bolt.__name__}, which needs arguments; an instance is allowed, "
            "or a function without arguments that makes one"
        )
    if not isinstance(made, Component):
        message = f"then() got {bolt!r}; a @bolt function, a Bolt or its class is allowed"
        raise InvalidTopology(message)
    return made, bolt


def _takes_nothing(make: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments; what cannot is perhaps a bolt without @bolt."""
    try:
        inspect.signature(make).bind()
    except TypeError:
        return False
    except ValueError:  # it does not tell
        return True
    return True


def check_calls(label: str, kind: Kind, workers: int, timeout_seconds: float | None) -> None:
    waits = kind in (Kind.ASYNC, Kind.BLOCKING)
    if waits and not is_count(workers):
        message = f"bolt '{label}' has workers={workers!r}; a whole number from 1 on is allowed"
        raise InvalidTopology(message)
    if not is_count(workers) or (workers > 1 and not waits):
        raise InvalidTopology(
            f"bolt '{label}' has workers={workers!r}; a bolt that is neither a coroutine function "
            "nor blocking runs with workers=1"
        )
    has_time = waits or kind is Kind.ADVANCED
    if timeout_seconds is not None and not (is_positive(timeout_seconds) and has_time):
        raise InvalidTopology(
            f"bolt '{label}' has timeout_seconds={timeout_seconds!r}; a finite, positive number is "
            "allowed for a bolt that is a coroutine function, blocking, or advanced"
        )


def check_bolt(label: str, kind: Kind, bolt: Component) -> None:
    seconds = bolt.tick_seconds
    if seconds is not None and not is_positive(seconds):
        message = f"bolt '{label}' has tick_seconds={seconds!r}; a positive number is allowed"
        raise InvalidTopology(message)
    if kind is Kind.ADVANCED and inspect.iscoroutinefunction(getattr(bolt, "process", None)):
        raise InvalidTopology(
            f"bolt '{label}' is advanced and its process is a coroutine function, which nobody "
            "would run; a plain one is allowed"
        )
    if kind is Kind.VECTORISED and isinstance(bolt, Bolt):
        check_columns(label, bolt.columns)
    methods = _NEVER_AWAITED if kind is Kind.ASYNC else (*_AWAITED, *_NEVER_AWAITED)
    if names := coroutines_of(bolt, methods):
        raise InvalidTopology(
            f"bolt '{label}' is {kind.value} and has async def {', '.join(names)}, which nobody "
            f"would await; allowed for bolts whose process is async: {', '.join(_AWAITED)}"
        )


def check_batch(label: str, rows: Any, size: Any, seconds: Any, *, is_own: bool) -> None:
    own = " of its own" if is_own else ""
    for name, number, whose in (("batch_rows", rows, own), ("batch_bytes", size, "")):
        if not is_count(number):
            found = f"sink '{label}' has {name}={number!r}{whose}"
            raise InvalidTopology(f"{found}; a whole number above 0 is allowed")
    if not is_positive(seconds):
        message = f"sink '{label}' has batch_seconds={seconds!r}; a positive number is allowed"
        raise InvalidTopology(message)


def check_retries(label: str, retries: Any) -> None:
    if retries is not None and (isinstance(retries, type) or not isinstance(retries, Retries)):
        raise InvalidTopology(f"bolt '{label}' has retries={retries!r}; a RetryPolicy is allowed")


def check_tasks(label: str, kind: Kind, tasks: int, grouping: Any, *, made_here: bool) -> None:
    if not is_count(tasks) or (tasks > 1 and (not made_here or kind is Kind.VECTORISED)):
        raise InvalidTopology(
            f"bolt '{label}' has tasks={tasks!r}; more than one is allowed for a class, which "
            "then() makes once per task, and not for vectorised bolts"
        )
    if grouping is not None and not isinstance(grouping, Grouping):
        message = f"bolt '{label}' has grouping={grouping!r}; shuffle(), fields() … are allowed"
        raise InvalidTopology(message)
    if grouping is not None and kind is Kind.VECTORISED:
        message = f"bolt '{label}' is vectorised and takes whole chunks; it can have no grouping"
        raise InvalidTopology(message)


def check_order(label: str, kind: Kind, order: Order) -> None:
    if order is not Order.NONE and kind in (Kind.VECTORISED, Kind.ADVANCED):
        raise InvalidTopology(
            f"bolt '{label}' is {kind.value} and cannot be called in order; a function, "
            "a generator, an async or a blocking bolt is allowed after keyed_by() and ordered()"
        )


T = TypeVar("T")
Out = TypeVar("Out")
Other = TypeVar("Other")


class Names(Protocol):
    def claim(self, name: str, *, is_given: bool) -> str:
        """Reserve a name; the second and later get a number, or are refused if given by name=."""
        ...

    def put(self, bolt: Component, step: str) -> None:
        """Note where a bolt stands; one that has state may stand in one place."""
        ...


@dataclass(frozen=True, slots=True)
class Ends:
    """The origins of a stream: `lists` take its next step."""

    lists: tuple[list[Step], ...]
    place: str
    made_by: BoltStep | None = None
    order: Order = Order.NONE
    key: Key | None = None

    def attach(self, step: Step) -> None:
        for steps in self.lists:
            steps.append(step)


class Stream(Generic[T]):
    """The values that come out of one step, or of several. Use it twice to fan out."""

    def __init__(self, names: Names, ends: Ends) -> None:
        self._names = names
        self.ends = ends

    @overload
    def then(
        self,
        bolt: VectorisedBolt,
        *,
        name: str | None = None,
        retries: Retries | None = None,
        streams: Sequence[str] = (),
    ) -> "Stream[pa.RecordBatch]": ...
    @overload
    def then(
        self,
        bolt: Callable[[], Bolt[T, Out]],
        *,
        name: str | None = None,
        workers: int = 1,
        tasks: int = 1,
        grouping: Grouping | None = None,
        timeout_seconds: float | None = None,
        retries: Retries | None = None,
        streams: Sequence[str] = (),
    ) -> "Stream[Out]": ...
    @overload
    def then(
        self,
        bolt: Bolt[T, Out],
        *,
        name: str | None = None,
        workers: int = 1,
        timeout_seconds: float | None = None,
        retries: Retries | None = None,
        streams: Sequence[str] = (),
    ) -> "Stream[Out]": ...
    @overload
    def then(
        self,
        bolt: AdvancedBolt[T, Out] | Callable[[], AdvancedBolt[T, Out]],
        *,
        name: str | None = None,
        tasks: int = 1,
        grouping: Grouping | None = None,
        timeout_seconds: float | None = None,
        retries: Retries | None = None,
        streams: Sequence[str] = (),
    ) -> "Stream[Out]": ...
    def then(
        self,
        bolt: Any,
        *,
        name: str | None = None,
        workers: int = 1,
        tasks: int = 1,
        grouping: Grouping | None = None,
        timeout_seconds: float | None = None,
        retries: Retries | None = None,
        streams: Sequence[str] = (),
    ) -> "Stream[Any]":
        """Pass every value through a bolt.

        Steps behind one stream, and the tasks of one step, may get the same object: a bolt must
        not change a value in place.

        `bolt` is a @bolt function, a Bolt, or something that makes one (its class).
        `workers` is how many calls of an async or blocking bolt run at once,
        `timeout_seconds` how long one may take, or how long an advanced bolt may keep a
        tuple; other bolts have neither. With `tasks` the
        bolt is made `tasks` times, and `grouping` says which of them gets a value (if it is
        not given, each in turn, and after `keyed_by` the same one for the same key).
        `retries` decides about records that fail in this bolt,
        instead of the pipeline's. `streams` are the names that it may send `To`, besides
        the default one, which then need not lead anywhere; the result's `[name]` is each of
        them. Raises InvalidTopology.
        """
        made, make = made_of(bolt)
        label = name or name_of(made)
        kind = kind_of(made)
        check_calls(label, kind, workers, timeout_seconds)
        check_bolt(label, kind, made)
        check_tasks(label, kind, tasks, grouping, made_here=make is not None)
        check_order(label, kind, self.ends.order)
        check_retries(label, retries)
        if tasks > 1:
            grouping = _grouping(label, grouping, self.ends)
        bolts = (made, *(make() for _ in range(tasks - 1) if make is not None))
        step = BoltStep(
            self._names.claim(label, is_given=bool(name)),
            bolts,
            kind,
            workers,
            timeout_seconds,
            retries,
            grouping,
            self.ends.order,
            self.ends.key,
            _streams(label, streams),
        )
        for number, each in enumerate(bolts):
            self._names.put(each, step.name if number == 0 else f"{step.name}, task {number}")
        self.ends.attach(step)
        return self._of(step, DEFAULT_STREAM)

    def into(
        self,
        sink: Sink[T],
        *,
        name: str | None = None,
        batch_rows: int | None = None,
        batch_bytes: int = BATCH_BYTES,
        batch_seconds: float = BATCH_SECONDS,
    ) -> None:
        """Write every value to a sink, in micro-batches limited by rows, bytes and seconds.

        Without `batch_rows` the sink decides (`Sink.batch_rows`). Raises
        InvalidTopology.
        """
        self._check_unordered("into()")
        if not isinstance(sink, Sink):
            raise InvalidTopology(f"into() got {sink!r}; an instance of Sink is allowed")
        label = name or sink.name
        rows = sink.batch_rows if batch_rows is None else batch_rows
        check_batch(label, rows, batch_bytes, batch_seconds, is_own=batch_rows is None)
        unique = self._names.claim(label, is_given=bool(name))
        self.ends.attach(SinkStep(unique, sink, BatchPolicy(rows, batch_bytes, batch_seconds)))

    def aggregate(self, state: State, /, **aggregates: Aggregate) -> None:
        """Keep values by key of all rows that come here, beyond the run (persistentAggregate).

        The rows are mappings, dataclasses or columns, as a sink takes them, and have the fields
        of the state's key; each keyword names a value. Raises InvalidTopology.
        """
        self._check_unordered("aggregate()")
        if not isinstance(state, State):
            raise InvalidTopology(f"aggregate() got {state!r}; a State is allowed")
        self.into(state.sink(aggregates), name=state.name)

    def spark(
        self,
        function: Function,
        *,
        schema: type[T] | pa.Schema | None = None,
        name: str | None = None,
    ) -> SparkRows:
        """Have Spark run a function over each micro-batch, before a sink takes what comes out.

        `function` takes a pyspark DataFrame and returns one. It is called anew for each batch, by
        any thread and also with no rows, so it keeps nothing and has no effects. `schema` is that
        of the rows that go in, as sinks take it; those that do not fit go to the dead letters.
        Directly behind a source it is left out: the rows are the records, in the columns that
        Spark's own Kafka source has. Raises InvalidTopology.

        What comes out belongs to the batch, and to no one record: an error of the function has
        the whole batch tried again, a row that the sink does not take ends the run, and a record
        whose row the function leaves out counts as written.
        """
        self._check_unordered("spark()")
        return SparkRows(spark_step(function, schema, name), self.into)

    def __getitem__(self, stream: str) -> "Stream[Any]":
        """Return the named stream of the bolt that this one comes from. Raises InvalidTopology."""
        self._check_unordered(f"['{stream}']")
        step = self.ends.made_by
        if step is None:
            raise InvalidTopology(f"{self.ends.place} has no named streams; those of a bolt do")
        if stream not in step.streams:
            known = ", ".join(step.streams)
            raise InvalidTopology(f"{self.ends.place} has no stream '{stream}'; allowed: {known}")
        return self._of(step, stream)

    def _of(self, step: BoltStep, stream: str) -> "Stream[Any]":
        return Stream(self._names, Ends((step.streams[stream],), f"bolt '{step.name}'", step))

    @overload
    def merge(self, *others: "Stream[T]") -> "Stream[T]": ...
    @overload
    def merge(self, *others: "Stream[Other]") -> "Stream[T | Other]": ...
    @overload
    def merge(self, *others: "Stream[Any]") -> "Stream[Any]": ...
    def merge(self, *others: "Stream[Any]") -> "Stream[Any]":
        """Merge several streams into one; their order among each other is not kept."""
        for other in others:
            refuse_unless(other, Stream, "merge()", "a stream")
            if other._names is not self._names:  # noqa: SLF001 - one of us
                raise InvalidTopology("merge() got a stream of another topology; make one of both")
        for stream in (self, *others):
            stream._check_unordered("merge()")  # noqa: SLF001 - one of us
        lists = [steps for stream in (self, *others) for steps in stream.ends.lists]
        if len({id(steps) for steps in lists}) < len(lists):
            raise InvalidTopology("merge() got the same stream twice; each may stand there once")
        return Stream(self._names, Ends(tuple(lists), "what merge() gives"))

    def keyed_by(self, key: str | Sequence[str] | Callable[[T], Hashable]) -> "Stream[T]":
        """Have the next bolt called for one value per key at a time, in the order of arrival.

        `key` is a field's name, several, or a function of the value. Different keys run
        concurrently. A call that is to be tried again holds its key until it was.
        """
        self._check_unordered("keyed_by()")
        if callable(key):
            of: Key = key
        else:
            names = (
                (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else ()
            )
            if not names or not all(isinstance(name, str) for name in names):
                message = f"keyed_by() got {key!r}; names of fields or a function are allowed"
                raise InvalidTopology(message)
            of = _FieldsKey(names)
        return Stream(self._names, replace(self.ends, order=Order.KEY, key=of))

    def ordered(self) -> "Stream[T]":
        """Have the next bolt called for one value per partition at a time, in order."""
        self._check_unordered("ordered()")
        return Stream(self._names, replace(self.ends, order=Order.PARTITION))

    def _check_unordered(self, what: str) -> None:
        """Refuse what would silently lose the order that was asked for."""
        if self.ends.order is not Order.NONE:
            message = f"{what} stands behind keyed_by() or ordered(); only then() is allowed there"
            raise InvalidTopology(message)


@dataclass(frozen=True)
class _FieldsKey:
    names: tuple[str, ...]

    def __call__(self, value: Any) -> Hashable:
        key: Hashable = key_of(value, self.names)
        return key


def _grouping(label: str, grouping: Grouping | None, ends: Ends) -> Grouping:
    """Return how values are spread over several tasks; the order has to survive it."""
    if ends.order is Order.NONE:
        return Shuffle() if grouping is None else grouping
    if grouping is None and ends.key is not None:
        return ByKey(ends.key)
    if grouping is None or isinstance(grouping, Shuffle):
        raise InvalidTopology(
            f"bolt '{label}' has several tasks that get values in turn, which keeps no order; "
            "fields() or another grouping is allowed after keyed_by() and ordered()"
        )
    return grouping


def _streams(label: str, names: Any) -> dict[str, list[Step]]:
    if isinstance(names, str):
        message = f"bolt '{label}' has streams={names!r}; a list or tuple of names is allowed"
        raise InvalidTopology(message)
    streams: dict[str, list[Step]] = {DEFAULT_STREAM: []}
    for name in names:
        if not isinstance(name, str) or not name or name in streams:
            message = f"bolt '{label}' names its stream {name!r}; each name is allowed once"
            raise InvalidTopology(message)
        streams[name] = []
    return streams
