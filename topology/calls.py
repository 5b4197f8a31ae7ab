"""Calls of a bolt over a whole chunk: the tight loops of the hot path.

Each function here returns a `Called`: the values that came out, for each of them the
index of the value it came from, and what failed. The loops run in C (`map`, `extend`,
`set`), so that per record there is nothing but the user's function; only failures,
drops, fan-out and named streams cost more.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress
from operator import is_not
from types import CoroutineType, GeneratorType, NoneType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from topology.errors import BoltError, NothingReturned
from topology.record import DEFAULT_STREAM, SIGNALS, SKIP, Skip, To
from topology.sink import Piece
from topology.steps import Step

Parents: TypeAlias = "npt.NDArray[np.int64] | None"  # None: the i-th came from the i-th
_BAD = frozenset({NoneType, GeneratorType, CoroutineType, To, *SIGNALS})
_NEEDS_A_LOOK = _BAD | {Skip}


@dataclass(slots=True)
class Sent:
    piece: Piece
    parents: Parents
    tasks: list[int | None] | None = None  # of values that are sent one by one


@dataclass(slots=True)
class Called:
    piece: Piece  # into the default stream
    parents: Parents
    failures: dict[int, Exception]  # by the index of the value that was passed in
    named: dict[str, Sent] = field(default_factory=dict)  # into the others


def call_each(step: str, function: Callable[[Any], Any], values: list[Any]) -> Called:
    """Call a bolt that returns one value or SKIP."""
    out, failures = _collect(step, map(function, values), len(values))
    return sort_out(step, out, None, failures)


def call_fan_out(step: str, function: Callable[[Any], Iterable[Any]], values: list[Any]) -> Called:
    """Call a bolt that returns an iterator; its values leave together, when it is exhausted."""
    groups, failures = _collect(step, map(list, map(function, values)), len(values))
    for index in failures:
        groups[index] = []
    counts = np.fromiter(map(len, groups), np.int64, len(groups))
    parents = np.repeat(np.arange(len(groups)), counts)
    return sort_out(step, list(chain.from_iterable(groups)), parents, failures)


def sort_out(step: str, out: list[Any], parents: Parents, failures: dict[int, Exception]) -> Called:
    """Remove what is no value from what calls returned, and sort the rest by stream.

    One bad value fails its input, and takes that input's other values along.
    """
    found = set(map(type, out))
    if _NEEDS_A_LOOK.isdisjoint(found):
        return Called(out, parents, failures)
    if found.isdisjoint(_BAD) and not failures:  # values and SKIP: what filters return
        mask = list(map(partial(is_not, SKIP), out))
        indices = np.flatnonzero(np.array(mask, np.bool_))
        return Called(
            list(compress(out, mask)), indices if parents is None else parents[indices], {}
        )
    origins = range(len(out)) if parents is None else parents.tolist()
    for value, origin in zip(out, origins, strict=True):
        if value is None or (type(value) is To and value.value is None):
            failures[origin] = NothingReturned(step)
        elif type(value) is To and type(value.stream) is not str:
            failures[origin] = BoltError(
                f"bolt '{step}' sent to stream {value.stream!r}; the name of a stream is allowed"
            )
        elif type(value.value if type(value) is To else value) in SIGNALS:
            failures[origin] = no_value(step, value.value if type(value) is To else value)
        elif isinstance(value, (GeneratorType, CoroutineType)):
            failures[origin] = misreturned(step, value)
    keep = [
        index
        for index, (value, origin) in enumerate(zip(out, origins, strict=True))
        if value is not SKIP and origin not in failures
    ]
    kept = [out[index] for index in keep]
    came_from = np.array(keep, np.int64) if parents is None else parents[keep]
    if To in found:
        return _by_stream(kept, came_from, failures)
    return Called(kept, came_from, failures)


def failure_of(step: str, error: BaseException) -> Exception:
    """Turn what a bolt raised into the failure of one value: nothing that would end the process.

    That is more than exceptions: what a Rust extension raises when it panics is none.
    """
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"bolt '{step}' raised {error!r}")


def no_value(step: str, signal: Any) -> BoltError:
    """Return the error of a bolt that returned, yielded or emitted a signal."""
    if isinstance(signal, Exception):
        return BoltError(f"bolt '{step}' returned {signal!r}; raise it instead")
    return BoltError(f"bolt '{step}' returned {signal!r} as a value; return SKIP, or a value")


def misreturned(
    step: str, value: "GeneratorType[Any, Any, Any] | CoroutineType[Any, Any, Any]"
) -> BoltError:
    """Close what a plain bolt returned and somebody would have to run, and return its error."""
    value.close()
    return BoltError(
        f"bolt '{step}' returned a {type(value).__name__}; make the bolt itself a "
        "generator or coroutine function, or annotate what it returns"
    )


def _by_stream(
    values: list[Any], parents: "npt.NDArray[np.int64]", failures: dict[int, Exception]
) -> Called:
    indices: dict[str, list[int]] = {}
    tasks: dict[str, list[int | None]] = {}
    for index, value in enumerate(values):
        stream, task = DEFAULT_STREAM, None
        if type(value) is To:
            stream, task, values[index] = value.stream, value.task, value.value
            if value.value is SKIP:
                continue
        indices.setdefault(stream, []).append(index)
        tasks.setdefault(stream, []).append(task)
    named = {
        stream: Sent([values[index] for index in at], parents[at], tasks[stream])
        for stream, at in indices.items()
    }
    plain = named.get(DEFAULT_STREAM)
    if plain is None:
        return Called([], np.empty(0, np.int64), failures, named)
    if plain.tasks is not None and not any(task is not None for task in plain.tasks):
        del named[DEFAULT_STREAM]
    return Called(plain.piece, plain.parents, failures, named)


def _collect(
    step: str, results: Iterable[Any], count: int
) -> tuple[list[Any], dict[int, Exception]]:
    """Exhaust `results`; where it raises, SKIP stands in the list and the error beside it."""
    out: list[Any] = []
    failures: dict[int, Exception] = {}
    while len(out) < count:
        try:
            out.extend(results)  # on an exception, what came before it stays in the list
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # a user's code may raise anything
            failures[len(out)] = failure_of(step, error)
            out.append(SKIP)
        else:
            if len(out) < count:  # a StopIteration from the user's code ends `extend` early
                failures[len(out)] = BoltError(f"bolt '{step}' raised StopIteration")
                out.append(SKIP)
    return out, failures


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a value that was not processed, and the step."""

    step: str
    error: Exception


class Origin(NamedTuple):
    """A source's label or a step's name, and its stream."""

    source: str
    stream: str = DEFAULT_STREAM


@dataclass(slots=True)
class Delivery:
    """Values that reached a boundary, and which input each came from."""

    boundary: Step
    piece: Piece
    parents: Parents
    origin: "Origin"
    tasks: list[int] | None = None  # of a boundary with more than one task


class Took(NamedTuple):
    """One call of a bolt over many values: their number, and when it ended (`perf_counter`)."""

    step: str
    calls: int
    seconds: float
    ended: float
    parents: Parents  # the inputs' indices that the values came from
    start: int = 0  # to be added to them


@dataclass(slots=True)
class Outcome:
    """The outcome of one run; the inputs are named by their indices."""

    deliveries: list[Delivery]
    failures: dict[int, Failure]
    took: list[Took] = field(default_factory=list, compare=False)
    """The calls of bolts, in their order."""
