"""Streams: the values that come out of a step, and what may follow them."""

import inspect
import math
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from numbers import Integral, Real
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

import pyarrow as pa

from topology.advanced import AdvancedBolt
from topology.aggregates import Aggregate
from topology.bolt import (
    Bolt,
    Component,
    FunctionBolt,
    Kind,
    VectorisedBolt,
    check_columns,
    coroutines_of,
    function_bolt,
    has_state,
    is_component,
    kind_of,
    name_of,
    predicate_of,
    yields_later,
)
from topology.errors import InvalidTopology, expect
from topology.grouping import Grouping, by_key, key_of, shuffle
from topology.record import DEFAULT_STREAM, SKIP, Skip, To
from topology.schema import ArrowSchema
from topology.sink import Sink, innermost
from topology.spark_step import Function, SparkRows, spark_step
from topology.state import State
from topology.steps import (
    BATCH_BYTES,
    BATCH_SECONDS,
    BatchPolicy,
    BoltStep,
    Key,
    Order,
    RetryRule,
    SinkStep,
    Step,
)

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # as Kafka names them
_AWAITED = ("open", "close", "tick")  # of an async bolt
_COUNT = "a whole number >= 1"
_POSITIVE = "a number > 0"
_NEVER_AWAITED = ("drain", "partition_assigned", "partition_revoked")


def is_positive(number: Any) -> bool:
    """Whether it is a finite number > 0."""
    return isinstance(number, Real) and 0 < float(number) < math.inf


def is_count(number: Any) -> bool:
    """Whether it is a whole number > 0."""
    return isinstance(number, Integral) and int(number) > 0


def check_topic(topic: object) -> None:
    is_pattern = isinstance(topic, re.Pattern) and isinstance(topic.pattern, str)
    is_name = isinstance(topic, str) and _TOPIC.fullmatch(topic) and topic not in (".", "..")
    expected = "a topic's name (1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-') or a compiled pattern"
    expect(is_pattern or is_name, "source()", topic, expected)


def made_of(bolt: Any) -> tuple[Any, Callable[[], Any] | None]:
    """Return the bolt that `then` was given, or made, and its factory."""
    if isinstance(bolt, Component):
        return bolt, None
    if inspect.isabstract(bolt):
        missing = ", ".join(sorted(bolt.__abstractmethods__))
        raise InvalidTopology(f"then(): class {bolt.__name__} is abstract: it lacks {missing}")
    made = bolt() if callable(bolt) and takes_nothing(bolt) else None
    if is_component(bolt) and made is None:
        raise InvalidTopology(
            f"then(): class {bolt.__name__} needs arguments. Pass an instance, or a function "
            "without arguments that makes one"
        )
    expected = "a @bolt function, a Bolt or its class. map() takes plain functions"
    expect(isinstance(made, Component), "then()", bolt, expected)
    return made, bolt


def takes_nothing(make: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments. If not it may be a function without @bolt."""
    try:
        with suppress(ValueError):  # it has no signature
            inspect.signature(make).bind()
    except TypeError:
        return False
    return True


def check_bolt(
    place: str, kind: Kind, bolt: Component, workers: int, timeout_seconds: float | None
) -> None:
    waits = kind in (Kind.ASYNC, Kind.BLOCKING)
    expected = _COUNT if waits else "1: only async and blocking bolts have workers"
    expect(is_count(workers) and (waits or workers == 1), f"{place}, workers", workers, expected)
    is_valid = timeout_seconds is None or (
        is_positive(timeout_seconds) and (waits or kind is Kind.ADVANCED)
    )
    expected = "a finite number > 0, and an async, blocking or advanced bolt"
    expect(is_valid, f"{place}, timeout_seconds", timeout_seconds, expected)
    seconds = bolt.tick_seconds
    expect(seconds is None or is_positive(seconds), f"{place}, tick_seconds", seconds, _POSITIVE)
    if kind is Kind.ADVANCED and inspect.iscoroutinefunction(getattr(bolt, "process", None)):
        raise InvalidTopology(
            f"{place}: `process` of an advanced bolt is a coroutine function, which nothing awaits"
        )
    if kind is Kind.VECTORISED and isinstance(bolt, Bolt):
        check_columns(place, bolt.columns)
    methods = _NEVER_AWAITED if kind is Kind.ASYNC else (*_AWAITED, *_NEVER_AWAITED)
    if names := coroutines_of(bolt, methods):
        raise InvalidTopology(
            f"{place}: found async def {', '.join(names)} in a bolt that is {kind.value}, expected "
            f"plain functions. Only async bolts may have async {', '.join(_AWAITED)}"
        )


def check_batch(place: str, policy: BatchPolicy, *, is_own: bool) -> None:
    own = " of its class" if is_own else ""
    expect(is_count(policy.batch_rows), f"{place}, batch_rows{own}", policy.batch_rows, _COUNT)
    expect(is_count(policy.batch_bytes), f"{place}, batch_bytes", policy.batch_bytes, _COUNT)
    seconds = policy.batch_seconds
    expect(is_positive(seconds), f"{place}, batch_seconds", seconds, _POSITIVE)


def check_tasks(place: str, kind: Kind, tasks: int, grouping: Any, *, is_made: bool) -> None:
    may_be_many = is_made and kind is not Kind.VECTORISED
    is_valid = is_count(tasks) and (tasks == 1 or may_be_many)
    expected = "1, or more of a class that is not vectorised: then() makes an instance per task"
    expect(is_valid, f"{place}, tasks", tasks, expected)
    is_valid = grouping is None or (isinstance(grouping, Grouping) and kind is not Kind.VECTORISED)
    expected = "shuffle(), fields() or another grouping, and a bolt that is not vectorised"
    expect(is_valid, f"{place}, grouping", grouping, expected)


T = TypeVar("T")
Out = TypeVar("Out")
Other = TypeVar("Other")


class Names:
    """The names of one topology's steps, and the step of each bolt and state."""

    def __init__(self, draw: Callable[[], str]) -> None:
        """`draw` returns the topology as HTML."""
        self.draw = draw
        self._names: set[str] = set()
        self._places: dict[int, str] = {}  # by the id of a bolt, its step
        self._states: set[int] = set()  # ids

    def claim(self, name: str, *, is_given: bool) -> str:
        """Reserve and return a step's name, numbered if it is taken.

        Raises InvalidTopology if the user gave it.
        """
        if is_given and name in self._names:
            raise InvalidTopology(f"found two steps with name={name!r}, expected each name once")
        unique, count = name, 1
        while unique in self._names:
            count += 1
            unique = f"{name}_{count}"
        self._names.add(unique)
        return unique

    def put(self, bolt: Component, step: str) -> None:
        """Register the step of a bolt. Raises InvalidTopology if steps would share its state."""
        if not has_state(bolt):
            return
        other = self._places.setdefault(id(bolt), step)
        if other != step:
            raise InvalidTopology(
                f"found one bolt in steps '{other}' and '{step}', which would share its state. "
                "Give each step an instance, or the class"
            )

    def put_state(self, state: State) -> None:
        """Register a state that is aggregated. Raises InvalidTopology the second time."""
        if id(state) in self._states:
            message = f"state '{state.name}' is aggregated twice. Use merge() on the streams"
            raise InvalidTopology(message)
        self._states.add(id(state))


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


class StepOptions(TypedDict, total=False):
    """Options that `map` and `flat_map` hand to `then`."""

    name: str | None
    workers: int
    timeout_seconds: float | None
    retries: RetryRule | None


class Stream(Generic[T]):
    """The output of one step, or of several. Use it twice to fan out."""

    def __init__(self, names: Names, ends: Ends) -> None:
        self._names = names
        self.ends = ends

    @overload
    def then(
        self,
        bolt: VectorisedBolt,
        *,
        name: str | None = None,
        retries: RetryRule | None = None,
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
        retries: RetryRule | None = None,
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
        retries: RetryRule | None = None,
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
        retries: RetryRule | None = None,
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
        retries: RetryRule | None = None,
        streams: Sequence[str] = (),
    ) -> "Stream[Any]":
        """Pass every value through a bolt.

        Steps behind one stream, and the tasks of one step, may get the same object: a bolt must
        not change a value in place.

        `bolt` is a @bolt function, a Bolt, or a factory (its class). `workers` limits the
        concurrent calls of an async or blocking bolt, `timeout_seconds` the duration of one, or
        the time that an advanced bolt may keep a tuple; other bolts have neither. `tasks` is the
        number of instances; `grouping` chooses among them (by default in turn, and after
        `keyed_by` the same one for the same key). `retries` replaces the pipeline's policy for
        records that fail in this bolt. `streams` names the streams that it may send `To`, besides
        the default one, which then need not lead anywhere; `[name]` of the result is each of
        them. Raises InvalidTopology.
        """
        made, make = made_of(bolt)
        label, kind = name or name_of(made), kind_of(made)
        place = f"bolt '{label}'"
        check_bolt(place, kind, made, workers, timeout_seconds)
        check_tasks(place, kind, tasks, grouping, is_made=make is not None)
        order = self.ends.order
        if order is not Order.NONE and kind in (Kind.VECTORISED, Kind.ADVANCED):
            raise InvalidTopology(
                f"{place}: found a bolt that is {kind.value} after keyed_by() or ordered(), "
                "expected a function, a generator, an async or a blocking bolt"
            )
        is_policy = isinstance(retries, RetryRule) and not isinstance(retries, type)
        expect(retries is None or is_policy, f"{place}, retries", retries, "a RetryPolicy")
        if tasks > 1:
            grouping = _grouping(place, grouping, self.ends)
        bolts = (made, *(make() for _ in range(tasks - 1) if make is not None))
        step = BoltStep(
            self._names.claim(label, is_given=bool(name)),
            bolts,
            kind,
            workers,
            timeout_seconds,
            retries,
            grouping,
            order,
            self.ends.key,
            _streams(place, streams),
        )
        for number, each in enumerate(bolts):
            self._names.put(each, step.name if number == 0 else f"{step.name}, task {number}")
        self.ends.attach(step)
        return self._of(step, DEFAULT_STREAM)

    @overload
    def map(
        self, function: FunctionBolt[T, Out], **options: Unpack[StepOptions]
    ) -> "Stream[Out]": ...
    @overload
    def map(
        self,
        function: Callable[[T], Coroutine[Any, Any, Out | Skip | To]],
        **options: Unpack[StepOptions],
    ) -> "Stream[Out]": ...
    @overload
    def map(
        self, function: Callable[[T], Out | Skip | To], **options: Unpack[StepOptions]
    ) -> "Stream[Out]": ...
    def map(self, function: Any, **options: Any) -> "Stream[Any]":
        """Pass every value through a function that returns one value, or SKIP.

        It is `then` for functions without @bolt: also lambdas, partials and coroutine functions.
        Raises InvalidTopology.
        """
        kinds = (Kind.FUNCTION, Kind.ASYNC, Kind.BLOCKING, Kind.VECTORISED)
        return self.then(function_bolt("map", function, kinds), **options)

    @overload
    def flat_map(
        self, function: FunctionBolt[T, Out], **options: Unpack[StepOptions]
    ) -> "Stream[Out]": ...
    @overload
    def flat_map(
        self,
        function: Callable[[T], AsyncIterator[Out | Skip | To]],
        **options: Unpack[StepOptions],
    ) -> "Stream[Out]": ...
    @overload
    def flat_map(
        self, function: Callable[[T], Iterable[Out | Skip | To]], **options: Unpack[StepOptions]
    ) -> "Stream[Out]": ...
    def flat_map(self, function: Any, **options: Any) -> "Stream[Any]":
        """Pass on each item of the list or other iterable that a function returns.

        A generator function, async or not, yields them. Raises InvalidTopology.
        """
        kinds = (Kind.FUNCTION, Kind.FAN_OUT, Kind.BLOCKING, Kind.ASYNC)
        made = function_bolt("flat_map", function, kinds, many=True)
        if kind_of(made) is Kind.ASYNC and not yields_later(made):
            expected = "an async generator: `yield` each value"
            raise InvalidTopology(f"flat_map(): '{made.__name__}' is async, expected {expected}")
        return self.then(made, **options)

    def filter(self, predicate: Callable[[T], object], *, name: str | None = None) -> "Stream[T]":
        """Pass on the values for which `predicate` is true. Raises InvalidTopology."""
        label, is_met = predicate_of("filter", predicate, name)

        def keep(value: T) -> T | Skip:
            return value if is_met(value) else SKIP

        return self.then(FunctionBolt[T, T](keep, name=label), name=name)

    def branch(
        self, name: str | None = None, /, **predicates: Callable[[T], object]
    ) -> "Branches[T]":
        """Send each value to the stream of the first predicate that is true of it.

        `[name]` of the result is the stream of a predicate; the result itself has the values of
        none, which become dead letters if it leads nowhere. Raises InvalidTopology.
        """
        tests = [
            (stream, predicate_of("branch", predicate, stream)[1])
            for stream, predicate in predicates.items()
        ]
        expect(tests, "branch()", predicates, "a predicate for each stream, by its name")

        def choose(value: T) -> T | To:
            found = next((stream for stream, is_met in tests if is_met(value)), None)
            return value if found is None else To(found, value)

        made = FunctionBolt[T, T](choose, name=name or "branch")
        return Branches(self._names, self.then(made, name=name, streams=tuple(predicates)).ends)

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

        The default of `batch_rows` is `Sink.batch_rows`. Raises InvalidTopology.
        """
        self._check_unordered("into()")
        expect(isinstance(sink, Sink), "into()", sink, "an instance of Sink")
        state = getattr(innermost(sink), "state", None)
        if isinstance(state, State):
            self._names.put_state(state)
        label = name or sink.name
        rows = sink.batch_rows if batch_rows is None else batch_rows
        policy = BatchPolicy(rows, batch_bytes, batch_seconds)
        check_batch(f"sink '{label}'", policy, is_own=batch_rows is None)
        unique = self._names.claim(label, is_given=bool(name))
        self.ends.attach(SinkStep(unique, sink, policy))

    def aggregate(self, state: State, /, **aggregates: Aggregate) -> None:
        """Aggregate all rows by key into a state that outlives the run (persistentAggregate).

        The rows are mappings, dataclasses or columns with the fields of the state's key; each
        keyword names a value. Raises InvalidTopology.
        """
        self._check_unordered("aggregate()")
        expect(isinstance(state, State), "aggregate()", state, "a State")
        self.into(state.sink(aggregates), name=state.name)

    def spark(
        self,
        function: Function,
        *,
        schema: type[T] | ArrowSchema | None = None,
        name: str | None = None,
    ) -> SparkRows:
        """Have Spark run a function over each micro-batch, in front of a sink.

        `function` takes a pyspark DataFrame and returns one. It is called for each batch, by any
        thread and also with no rows, so it must keep no state and have no effects. `schema` is
        that of the input rows, as for a sink; rows that do not fit go to the dead letters.
        Directly behind a source it is left out: the rows are the records, in the columns of
        Spark's own Kafka source. Raises InvalidTopology.

        Output rows belong to the batch, and to no one record: an error of the function retries
        the whole batch, a row that the sink rejects ends the run, and a record whose row the
        function filters counts as written.
        """
        self._check_unordered("spark()")
        return SparkRows(spark_step(function, schema, name), self.into)

    def __getitem__(self, stream: str) -> "Stream[Any]":
        """Return a named stream of the bolt that this one comes from. Raises InvalidTopology."""
        self._check_unordered(f"['{stream}']")
        step = self.ends.made_by
        if step is None:
            raise InvalidTopology(f"{self.ends.place} has no named streams: only bolts do")
        known = ", ".join(step.streams)
        expect(stream in step.streams, f"{self.ends.place}, stream", stream, known)
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
            expect(isinstance(other, Stream), "merge()", other, "a stream")
            if other._names is not self._names:  # noqa: SLF001 - one of us
                raise InvalidTopology("merge(): found a stream of another topology")
        for stream in (self, *others):
            stream._check_unordered("merge()")  # noqa: SLF001 - one of us
        lists = [steps for stream in (self, *others) for steps in stream.ends.lists]
        if len({id(steps) for steps in lists}) < len(lists):
            raise InvalidTopology("merge(): found a stream twice, expected each once")
        return Stream(self._names, Ends(tuple(lists), "what merge() gives"))

    def keyed_by(self, key: str | Sequence[str] | Callable[[T], Hashable]) -> "Stream[T]":
        """Call the next bolt for one value per key at a time, in the order of the records' arrival.

        `key` is a field's name, several, or a function of the value. Different keys run
        concurrently. A call that is retried holds its key until then.
        """
        self._check_unordered("keyed_by()")
        if callable(key):
            of: Key = key
        else:
            names = [key] if isinstance(key, str) else key
            is_named = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
            expect(names and is_named, "keyed_by()", key, "names of fields, or a function")
            of = partial(key_of, names=tuple(names))
        return Stream(self._names, replace(self.ends, order=Order.KEY, key=of))

    def ordered(self) -> "Stream[T]":
        """Call the next bolt for one value per partition at a time, in order."""
        self._check_unordered("ordered()")
        return Stream(self._names, replace(self.ends, order=Order.PARTITION))

    def __repr__(self) -> str:
        return f"Stream({self.ends.place})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))} in</p>{self._names.draw()}"

    def _check_unordered(self, what: str) -> None:
        """Refuse a method that would silently lose the order."""
        if self.ends.order is not Order.NONE:
            raise InvalidTopology(f"found {what} after keyed_by() or ordered(), expected then()")


class Branches(Stream[T]):
    """The streams of branch(): all have values of one type."""

    def __getitem__(self, stream: str) -> Stream[T]:
        return super().__getitem__(stream)


def _grouping(place: str, grouping: Grouping | None, ends: Ends) -> Grouping:
    """Return the grouping of several tasks; it keeps the order that the stream has."""
    if ends.order is Order.NONE:
        return shuffle() if grouping is None else grouping
    if grouping is None and ends.key is not None:
        return by_key(ends.key)
    if grouping is None or grouping.name == "shuffle":
        raise InvalidTopology(
            f"{place}, grouping: found shuffle(), which keeps no order, after keyed_by() or "
            "ordered(), expected fields() or another grouping"
        )
    return grouping


def _streams(place: str, names: Any) -> dict[str, list[Step]]:
    expect(not isinstance(names, str), f"{place}, streams", names, "a list or tuple of names")
    streams: dict[str, list[Step]] = {DEFAULT_STREAM: []}
    for name in names:
        is_new = isinstance(name, str) and name and name not in streams
        expect(is_new, f"{place}, streams", name, "each name once, and not 'default'")
        streams[name] = []
    return streams
