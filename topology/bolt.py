"""Bolts: the user's processing, as functions or as classes with open, process and close."""

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
    Sequence,
)
from enum import Enum
from typing import Any, Generic, Literal, TypeVar, get_origin, get_type_hints, overload

import pyarrow as pa

from topology.errors import InvalidTopology
from topology.signals import Skip

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)

RECORD_COLUMNS = ("key", "value", "partition", "offset", "timestamp_ms")


class Kind(Enum):
    """How the executor calls a bolt."""

    FUNCTION = "function"  # one value in, one value or SKIP out
    FAN_OUT = "fan-out"  # one value in, an iterator out
    ASYNC = "async"  # awaited on the event loop, many at once
    VECTORISED = "vectorised"  # a RecordBatch in, a RecordBatch out


class Bolt(ABC, Generic[In, Out]):
    """A step with a life: `open` once, `process` per value, `close` once.

    `open` and `close` run on the owner thread; `process` too, unless it is a coroutine
    function, which runs on the event loop's thread.
    """

    def open(self) -> None:
        """Get ready: load tables, open clients. Called once, before the first value."""

    @abstractmethod
    def process(
        self, value: In, /
    ) -> "Out | Skip | Iterator[Out] | Coroutine[Any, Any, Out | Skip]":
        """Turn one value into one value, SKIP, or (as a generator) any number of values.

        The values of a generator leave together when it has finished. Raise Reject to
        send the record to the dead letters, Retry to have it tried again; any other
        exception is a failure, which is retried too. Returning None is an error.
        """

    def close(self) -> None:
        """Let go of what `open` took. Called once, also after a failed `open`."""


class FunctionBolt(Bolt[In, Out]):
    """A function as a bolt; it can still be called like the function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def process(self, value: In, /) -> Any:
        """Call the function."""
        return self.function(value)

    def __call__(self, value: Any, /) -> Any:
        """Call the function, as its own tests do."""
        return self.function(value)


class VectorisedBolt(FunctionBolt[Any, pa.RecordBatch]):
    """A function over whole chunks: a RecordBatch in, a RecordBatch out.

    `columns` are those of a record's that it is given when it reads a topic.
    """

    def __init__(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        columns: Sequence[str] = RECORD_COLUMNS,
    ) -> None:
        super().__init__(function)
        unknown = [name for name in columns if name not in RECORD_COLUMNS]
        if unknown or not columns:
            message = (
                f"bolt '{self.__name__}' asks for columns {list(columns)}; "
                f"allowed are some of {', '.join(RECORD_COLUMNS)}"
            )
            raise InvalidTopology(message)
        self.columns = tuple(columns)


@overload
def bolt(function: Callable[[In], Coroutine[Any, Any, Out | Skip]], /) -> FunctionBolt[In, Out]: ...
@overload
def bolt(function: Callable[[In], Iterator[Out]], /) -> FunctionBolt[In, Out]: ...
@overload
def bolt(function: Callable[[In], Out | Skip], /) -> FunctionBolt[In, Out]: ...
@overload
def bolt(
    *, vectorised: Literal[True], columns: Sequence[str] = ...
) -> Callable[[Callable[[pa.RecordBatch], pa.RecordBatch]], VectorisedBolt]: ...
def bolt(
    function: Callable[[Any], Any] | None = None,
    /,
    *,
    vectorised: bool = False,
    columns: Sequence[str] = RECORD_COLUMNS,
) -> Any:
    """Make a function a bolt.

    A plain function returns one value or SKIP, a generator function any number of
    values, a coroutine function is awaited. With `vectorised=True` it takes and returns
    a `pyarrow.RecordBatch`; columns it does not know must travel on through filters and
    takes, because one of them carries the lineage. `columns` says which of a record's
    columns it needs: fewer are faster.
    """
    if function is not None:
        return FunctionBolt[Any, Any](function)
    if not vectorised:
        raise InvalidTopology("bolt() takes a function, or vectorised=True")
    return lambda function: VectorisedBolt(function, columns)


def target_of(bolt: Bolt[Any, Any]) -> Callable[[Any], Any]:
    """What to call per value: the function itself, where there is one, saves a call."""
    return bolt.function if isinstance(bolt, FunctionBolt) else bolt.process


def kind_of(bolt: Bolt[Any, Any]) -> Kind:
    """How a bolt has to be called, told from its `process`. Raises InvalidTopology."""
    if isinstance(bolt, VectorisedBolt):
        return Kind.VECTORISED
    function = target_of(bolt)
    returned = get_origin(_returned(function)) or _returned(function)
    if inspect.isasyncgenfunction(function) or returned in (AsyncIterator, AsyncGenerator):
        name = getattr(bolt, "__name__", type(bolt).__name__)
        message = f"bolt '{name}' is an async generator; return a value or SKIP from it instead"
        raise InvalidTopology(message)
    if inspect.iscoroutinefunction(function) or returned in (Awaitable, Coroutine):
        return Kind.ASYNC
    if inspect.isgeneratorfunction(function) or returned in (Iterator, Generator, Iterable):
        return Kind.FAN_OUT
    return Kind.FUNCTION


def _returned(function: Callable[..., Any]) -> Any:
    """The annotated return type, or None when there is none that can be read."""
    try:
        return get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None
