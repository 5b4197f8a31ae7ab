"""Bolts: the user's code, as functions or as classes with open, process and close."""

import dis
import inspect
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from enum import Enum
from functools import partial, wraps
from itertools import pairwise
from types import NoneType
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    get_origin,
    get_type_hints,
    overload,
)

import pyarrow as pa

from topology.errors import BoltError, InvalidTopology, expect
from topology.record import Skip, To

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)

RECORD_COLUMNS = ("key", "value", "partition", "offset", "timestamp_ms")


class Kind(Enum):
    FUNCTION = "function"  # one value in, one value or SKIP out
    FAN_OUT = "fan-out"  # one value in, an iterator out
    ASYNC = "async"  # awaited on the event loop, many at once
    BLOCKING = "blocking"  # called in a thread of a pool
    VECTORISED = "vectorised"  # a RecordBatch in, a RecordBatch out
    ADVANCED = "advanced"  # acks, fails and anchors tuples itself


Tables: TypeAlias = "pa.RecordBatch | Mapping[str, pa.RecordBatch]"  # of a vectorised bolt


class ArrowArray(Protocol):
    """A `pa.RecordBatch`, as `ArrowSchema` is a schema; no TypedDict is a mapping to it."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...


class Component:
    """Lifecycle and partition changes of every kind of bolt.

    The owner thread calls these methods, of every task. If `process` is a coroutine function or
    an asynchronous generator, `open` and `close` may be coroutine functions too: they are awaited
    on the event loop of `process`, so a client of that loop can live from one to the other.
    """

    tick_seconds: ClassVar[float | None] = None
    """Interval of `tick`; None: never."""

    def open(self) -> Coroutine[Any, Any, None] | None:
        """Load tables, open clients. Called once, before the first value."""
        return None

    def partition_assigned(self, topic: str, partition: int) -> None:
        """Called before the first record of a partition."""

    def partition_revoked(self, topic: str, partition: int) -> None:
        """Called when a partition is revoked; its records may still be in flight."""

    def close(self) -> Coroutine[Any, Any, None] | None:
        """Release resources. Called once, also after a failed `open`."""
        return None


class Bolt(Component, ABC, Generic[In, Out]):
    """A step with a lifecycle: `open` once, `process` per value, `close` once.

    `process` runs on the owner thread, which waits for it; if it is a coroutine function, on the
    event loop's thread; if `blocking` is True, in a thread of the step's own pool, `workers` at
    once. `tick` runs where `process` does. If `vectorised` is True, `process` is like a
    `@bolt(vectorised=True)` function; if it is `concurrent`, too, `tick` runs on the owner thread,
    perhaps beside `process`.
    """

    blocking: ClassVar[bool] = False
    """Whether `process` blocks, so that it needs threads."""

    vectorised: ClassVar[bool] = False
    """Whether `process` takes whole chunks, as `pyarrow.RecordBatch`."""

    columns: ClassVar[Sequence[str]] = RECORD_COLUMNS
    """Of a vectorised bolt: the columns of a record that it gets when it reads a topic."""

    row_by_row: ClassVar[bool] = False
    """Of a vectorised bolt: whether it makes row i from row i, so that it may drop the lineage."""

    concurrent: ClassVar[bool] = False
    """Of a vectorised bolt: whether several threads may call it at once; then waiting chunks are
    processed while the owner thread is busy. A tick or a partition change may come meanwhile."""

    @abstractmethod
    def process(
        self, value: In, /
    ) -> (
        Out
        | Skip
        | To
        | Iterator[Out | To]
        | Coroutine[Any, Any, Out | Skip | To]
        | AsyncIterator[Out | To]
        | Mapping[str, ArrowArray]
    ):
        """Turn one value into one value, SKIP, or (as a generator, async or not) any number.

        `To(stream, value)` sends a value into a named stream instead of the default one. The
        values of a generator are sent together when it has finished. Raise Reject to send the
        record to the dead letters; it is retried after Retry and any other exception. Returning
        None is an error.
        """

    def tick(
        self,
    ) -> (
        "Out | Skip | To | Iterator[Out | To] | Coroutine[Any, Any, Out | Skip | To | None]"
        " | AsyncIterator[Out | To] | None"
    ):
        """Refresh, flush or report, every `tick_seconds`.

        What it returns, or yields, is sent on like a value of `process`. It belongs to no record,
        so it is lost if a later step fails, and exactly-once topologies refuse it. It may be a
        coroutine function if `process` is one.
        """
        return None


class FunctionBolt(Bolt[In, Out]):
    """A function as a bolt; it can still be called like the function."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        blocking: bool = False,
        many: bool = False,
        name: str | None = None,
    ) -> None:
        """`many`: each call returns an iterable of values, whatever its annotation."""
        name = name or function_name(function)
        expect(callable(function) and name, "bolt()", function, "a function. Or write a class")
        self.function = function
        self.process = function  # type: ignore[method-assign]  # saves a call per value
        self.blocking = blocking  # type: ignore[misc]  # a function has no class of its own
        self.many = many
        self.__name__ = str(name)
        self.__doc__ = function.__doc__

    def process(self, value: In, /) -> Any:
        return self.function(value)

    def __call__(self, value: In, /) -> Any:
        return self.function(value)


class VectorisedBolt(FunctionBolt[Any, pa.RecordBatch]):
    """A function over whole chunks: a RecordBatch in, a RecordBatch out."""

    vectorised = True

    line_breaks: ClassVar[bool] = False
    """Whether a line break follows each value of the column `value`. Not for users."""

    def __init__(
        self,
        function: Callable[[pa.RecordBatch], Tables],
        columns: Sequence[str] = RECORD_COLUMNS,
        *,
        row_by_row: bool = False,
        concurrent: bool = False,
    ) -> None:
        super().__init__(function)
        self.row_by_row = row_by_row  # type: ignore[misc]  # a function has no class of its own
        self.concurrent = concurrent  # type: ignore[misc]
        check_columns(f"bolt '{self.__name__}'", columns)
        self.columns = tuple(columns)  # type: ignore[misc]


class _Blocking(Protocol):
    @overload
    def __call__(
        self, function: Callable[[In], Iterator[Out | Skip | To]], /
    ) -> FunctionBolt[In, Out]: ...
    @overload
    def __call__(self, function: Callable[[In], Out | Skip | To], /) -> FunctionBolt[In, Out]: ...


@overload
def bolt(
    function: Callable[[In], Coroutine[Any, Any, Out | Skip | To]], /
) -> FunctionBolt[In, Out]: ...
@overload
def bolt(function: Callable[[In], AsyncIterator[Out | Skip | To]], /) -> FunctionBolt[In, Out]: ...
@overload
def bolt(function: Callable[[In], Iterator[Out | Skip | To]], /) -> FunctionBolt[In, Out]: ...
@overload
def bolt(function: Callable[[In], Out | Skip | To], /) -> FunctionBolt[In, Out]: ...
@overload
def bolt(*, blocking: Literal[True]) -> _Blocking: ...
@overload
def bolt(
    *,
    vectorised: Literal[True],
    columns: Sequence[str] = ...,
    row_by_row: bool = ...,
    concurrent: bool = ...,
) -> Callable[[Callable[[pa.RecordBatch], Tables]], VectorisedBolt]: ...
def bolt(
    function: Callable[[Any], Any] | None = None,
    /,
    *,
    vectorised: bool = False,
    blocking: bool = False,
    columns: Sequence[str] = RECORD_COLUMNS,
    row_by_row: bool = False,
    concurrent: bool = False,
) -> Any:
    """Make a function a bolt.

    A plain function returns one value or SKIP, a generator function any number of values, a
    coroutine function is awaited. With `blocking=True` it is called in threads. With
    `vectorised=True` it takes and returns a `pyarrow.RecordBatch`, or one per stream by name,
    without side effects: it may be called again for a part of its rows. Unknown columns must
    pass through filters and takes, because one of them carries the lineage. Only with
    `row_by_row=True`, which promises that row i is made from row i, may it drop them. `columns`
    lists the columns of a record that it needs: fewer are faster. With `concurrent=True` several
    threads may call it at once, so waiting chunks are processed while the owner thread is busy;
    it must not change shared state.
    """
    if function is not None:
        return FunctionBolt[Any, Any](function)
    if vectorised == blocking:
        message = "bolt(): expected a function, or either vectorised=True or blocking=True"
        raise InvalidTopology(message)
    if vectorised:
        return lambda function: VectorisedBolt(
            function, columns, row_by_row=row_by_row, concurrent=concurrent
        )
    return lambda function: FunctionBolt[Any, Any](function, blocking=True)


def kind_of(bolt: Component) -> Kind:
    """Return the kind of a bolt by its `process` and marks. Raises InvalidTopology."""
    if getattr(bolt, "concurrent", False) and not getattr(bolt, "vectorised", False):
        message = f"bolt '{name_of(bolt)}' is concurrent, expected it to be vectorised as well"
        raise InvalidTopology(message)
    kind = _written_as(bolt)
    marks = [mark for mark in (Kind.BLOCKING, Kind.VECTORISED) if getattr(bolt, mark.value, False)]
    if not marks:
        return kind
    plain = (Kind.FUNCTION, Kind.FAN_OUT) if marks[0] is Kind.BLOCKING else (Kind.FUNCTION,)
    if len(marks) > 1 or kind not in plain:
        both = " and ".join(each.value for each in (marks if len(marks) > 1 else (*marks, kind)))
        raise InvalidTopology(f"bolt '{name_of(bolt)}' is {both}, expected one of these")
    return marks[0]


def _written_as(bolt: Component) -> Kind:
    if not isinstance(bolt, Bolt):
        return Kind.ADVANCED
    function = bolt.process
    is_awaited = inspect.iscoroutinefunction(function)
    if is_awaited or _returned(function) in (Awaitable, Coroutine) or yields_later(bolt):
        return Kind.ASYNC
    return Kind.FAN_OUT if yields_many(bolt) else Kind.FUNCTION


def yields_later(bolt: Bolt[Any, Any]) -> bool:
    """Whether a call gives an asynchronous iterator of values."""
    function = bolt.process
    if inspect.iscoroutinefunction(function):
        return False
    iterators = (AsyncIterator, AsyncGenerator)
    return inspect.isasyncgenfunction(function) or _returned(function) in iterators


def yields_many(bolt: Bolt[Any, Any]) -> bool:
    """Whether a call gives an iterator of values instead of one."""
    function = bolt.process
    iterators = (Iterator, Generator, Iterable)
    if getattr(bolt, "many", False):
        return True
    return inspect.isgeneratorfunction(function) or _returned(function) in iterators


def _returned(function: Callable[..., Any]) -> Any:
    """Return the annotated return type without its arguments, if it can be read."""
    try:
        returned = get_type_hints(_unwrapped(function)).get("return")
    except (NameError, TypeError):
        return None
    return get_origin(returned) or returned


def _unwrapped(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def function_name(function: Any) -> str | None:
    """Return the name of a function, or of the one within a partial; None if it has none."""
    return getattr(_unwrapped(function), "__name__", None)


def is_component(made: object) -> bool:
    return isinstance(made, type) and issubclass(made, Component)


def function_bolt(
    method: str, function: Any, allowed: Sequence[Kind], *, many: bool = False
) -> FunctionBolt[Any, Any]:
    """Return the bolt of a function; one without a name is called like the method."""
    if not isinstance(function, FunctionBolt):
        is_bolt = isinstance(function, Component) or is_component(function)
        expected = "a function. then() takes bolts and their classes"
        expect(callable(function) and not is_bolt, f"{method}()", function, expected)
        name = function_name(function)
        function = FunctionBolt(function, name=method if name in (None, "<lambda>") else name)
    kind = kind_of(function)
    if kind not in allowed:
        words = " or ".join(each.value for each in allowed)
        other = {Kind.FAN_OUT: "flat_map()", Kind.ASYNC: "map()"}.get(kind, "then()")
        raise InvalidTopology(
            f"{method}(): '{function.__name__}' is {kind.value}, expected {words}. Or use {other}"
        )
    if many and kind in (Kind.FUNCTION, Kind.BLOCKING):
        blocking, name = function.blocking, function.__name__
        return FunctionBolt(_items_of(function), blocking=blocking, many=True, name=name)
    bolt: FunctionBolt[Any, Any] = function
    return bolt


def _items_of(bolt: FunctionBolt[Any, Any]) -> Callable[[Any], Iterable[Any]]:
    @wraps(bolt.function)
    def each(value: Any) -> Iterable[Any]:
        found: Any = bolt.function(value)
        if found is None or isinstance(found, (str, bytes, Mapping)):
            kind = type(found).__name__
            raise BoltError(
                f"flat_map(): '{bolt.__name__}' returned {kind}, expected an iterable of values"
            )
        items: Iterable[Any] = found
        return items

    return each


def predicate_of(method: str, function: Any, name: str | None) -> tuple[str, Callable[[Any], bool]]:
    """Return a predicate's name, and it, refusing None: a forgotten `return` must drop nothing."""
    bolt = function_bolt(method, function, (Kind.FUNCTION,))
    check_process(bolt)
    label = name or bolt.__name__

    def is_met(value: Any) -> bool:
        found = bolt.function(value)
        if found is None:
            raise BoltError(f"predicate '{label}' returned None, expected True or False")
        return bool(found)

    return label, is_met


def check_process(bolt: Bolt[Any, Any]) -> None:
    """Raise InvalidTopology unless `process` takes one value."""
    try:
        signature = inspect.signature(bolt.process)
    except (TypeError, ValueError):  # it has none
        return
    try:
        signature.bind(None)
    except TypeError:
        advice = "Make a method a function, or its class a Bolt with process()"
        advice = f" {advice}." if "self" in signature.parameters else ""
        raise InvalidTopology(
            f"bolt '{name_of(bolt)}': found {getattr(bolt.process, '__qualname__', 'process')}"
            f"{signature}, expected parameters for one value.{advice}"
        ) from None


def streams_sent(bolt: Component) -> set[str]:
    """Return the streams that a bolt's code names in `To("name", …)`, as far as it shows.

    A class with a constructor or a closure shows none: it may be made to send to fewer. Nor does
    a call with keywords, `To(value="…", stream=name)`: its first constant may be the value.
    """
    functions = [bolt.function] if isinstance(bolt, FunctionBolt) else []
    if not functions and type(bolt).__init__ is object.__init__:
        functions = [each for each in vars(type(bolt)).values() if inspect.isfunction(each)]
    codes = [
        function.__code__
        for function in functions
        if inspect.isfunction(function)
        and function.__globals__.get("To") is To
        and function.__closure__ is None
    ]
    found = set()
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if inspect.iscode(each)]
        steps = [*dis.get_instructions(code)]
        by_keyword = {_begin(each) for each in steps if each.opname in ("KW_NAMES", "CALL_KW")}
        for before, after in pairwise(steps):
            is_to = (before.opname, before.argval) == ("LOAD_GLOBAL", "To")
            is_name = after.opname == "LOAD_CONST" and isinstance(after.argval, str)
            if is_to and is_name and _begin(before) not in by_keyword:
                found.add(after.argval)
    return found


def mentions_to(bolt: Component) -> bool:
    """Whether a method of the bolt's class may send to a named stream."""
    methods = (each for part in type(bolt).__mro__ for each in vars(part).values())
    codes = (each.__code__ for each in methods if inspect.isfunction(each))
    return any("To" in (*code.co_names, *code.co_freevars) for code in codes)


def _begin(instruction: dis.Instruction) -> tuple[int | None, int | None]:
    """Return line and column at which its expression begins; a call's is its function's."""
    places = instruction.positions or dis.Positions()
    return places.lineno, places.col_offset


def tick_emits(bolt: Component) -> bool:
    """Whether the form of its `tick` says that it emits."""
    tick = getattr(type(bolt), "tick", Bolt.tick)
    if tick is Bolt.tick:
        return False
    is_generator = inspect.isgeneratorfunction(tick) or inspect.isasyncgenfunction(tick)
    untold = (None, NoneType, Any, Coroutine, Awaitable)
    return is_generator or _returned(tick) not in untold


def coroutines_of(bolt: object, methods: Iterable[str]) -> list[str]:
    return [name for name in methods if inspect.iscoroutinefunction(getattr(bolt, name, None))]


def has_state(bolt: Component) -> bool:
    """Whether it may have state; a function does not."""
    return type(bolt) not in (FunctionBolt, VectorisedBolt)


def name_of(bolt: Component) -> str:
    return str(getattr(bolt, "__name__", type(bolt).__name__))


def check_columns(place: str, columns: Sequence[str]) -> None:
    are_known = columns and set(columns) <= set(RECORD_COLUMNS)
    expect(are_known, f"{place}, columns", [*columns], f"some of {', '.join(RECORD_COLUMNS)}")


class Hooks:
    """Base class of hooks for `Topology.hooks`.

    The owner thread calls all methods, and waits for them. An exception of `started` ends the
    start; the others are logged and ignored.
    """

    def started(self) -> None:
        """Called once, before the bolts are opened."""

    def stopped(self) -> None:
        """Called once, after the bolts are closed, if `started` was."""

    def partition_assigned(self, topic: str, partition: int) -> None:
        """Called before the first record of a partition."""

    def partition_revoked(self, topic: str, partition: int) -> None:
        """Called once per assigned partition: it is lost, halted, or the service stops."""
