"""Calls of a bolt over a whole chunk: the tight loops of the hot path.

Each function returns a `Called`: the results, the index of the input of each, and the failures.
The loops run in C (`map`, `extend`, `set`), so that a record costs only the user's function;
only failures, drops, fan-out and named streams cost more.
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
_Value: TypeAlias = tuple[str, int | None, Any, int]  # stream, task, value, index of its input


@dataclass(slots=True)
class Sent:
    piece: Piece
    parents: Parents
    tasks: list[int | None] | None = None  # of single values


@dataclass(slots=True)
class Called:
    sent: dict[str, Sent]  # by stream; streams without values may be left out
    failures: dict[int, Exception]  # by the index of the value that was passed in


def call_each(step: str, function: Callable[[Any], Any], values: list[Any]) -> Called:
    out, failures = _collect(step, map(function, values), len(values))
    if failures:
        _explain(values, failures)
    return sort_out(step, out, None, failures)


def call_fan_out(step: str, function: Callable[[Any], Iterable[Any]], values: list[Any]) -> Called:
    """Call a bolt that returns an iterator; its values are sent together, once exhausted."""
    groups, failures = _collect(step, map(list, map(function, values)), len(values))
    if failures:
        _explain(values, failures)
    for index in failures:
        groups[index] = []
    counts = np.fromiter(map(len, groups), np.int64, len(groups))
    parents = np.repeat(np.arange(len(groups)), counts)
    return sort_out(step, list(chain.from_iterable(groups)), parents, failures)


def hint_for(value: Any) -> str:
    """Return what to do about several values where one is expected."""
    is_many = isinstance(value, (list, tuple, set))
    return ". To send each of its items, use flat_map() or yield" if is_many else ""


def _explain(values: list[Any], failures: dict[int, Exception]) -> None:
    """Add a note where a bolt failed because the one before it returned a list."""
    for index, error in failures.items():
        if isinstance(error, (TypeError, AttributeError)) and (hint := hint_for(values[index])):
            note = f"the value is a {type(values[index]).__name__}{hint}"
            if note not in getattr(error, "__notes__", ()):  # one error may be raised again
                error.add_note(note)


def sort_out(step: str, out: list[Any], parents: Parents, failures: dict[int, Exception]) -> Called:
    """Sort the results of calls by stream, without SKIP and results that are no values.

    One bad value fails its input, and removes that input's other values.
    """
    found = set(map(type, out))
    if _NEEDS_A_LOOK.isdisjoint(found):
        return Called({DEFAULT_STREAM: Sent(out, parents)}, failures)
    if found.isdisjoint(_BAD):  # a filter: values and SKIP (failed calls have SKIP)
        mask = list(map(partial(is_not, SKIP), out))
        indices = np.flatnonzero(np.array(mask, np.bool_))
        came_from = indices if parents is None else parents[indices]
        return Called({DEFAULT_STREAM: Sent(list(compress(out, mask)), came_from)}, failures)
    origins = list(range(len(out))) if parents is None else parents.tolist()
    values: list[_Value] = []
    for value, origin in zip(out, origins, strict=True):
        stream, task, given = DEFAULT_STREAM, None, value
        if type(value) is To:
            stream, task, given = value.stream, value.task, value.value
        error = _invalid(step, value, stream, given)
        if error is not None:
            failures[origin] = error
        elif given is not SKIP:
            values.append((stream, task, given, origin))
    streams: dict[str, list[_Value]] = {DEFAULT_STREAM: []}  # first, and the others as they come
    for each in values:
        if each[3] not in failures:
            streams.setdefault(each[0], []).append(each)
    return Called({stream: _sent(found) for stream, found in streams.items() if found}, failures)


def _invalid(step: str, value: Any, stream: Any, given: Any) -> BoltError | None:
    """Return the error of a result that is no value; `given` is the result without its `To`."""
    if given is None:
        return NothingReturned(step)
    if type(stream) is not str:
        expected = "the name of a stream"
        return BoltError(f"stream of bolt '{step}': found {stream!r}, expected {expected}")
    if type(given) in SIGNALS:
        return no_value(step, given)
    if isinstance(value, (GeneratorType, CoroutineType)):
        return misreturned(step, value)
    return None


def failure_of(step: str, error: BaseException) -> Exception:
    """Convert what a bolt raised to an Exception, which does not end the process.

    A panic of a Rust extension is a BaseException, for example.
    """
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"bolt '{step}' raised {error!r}").with_traceback(error.__traceback__)


def no_value(step: str, signal: Any) -> BoltError:
    """Return the error of a bolt that returned, yielded or emitted a signal."""
    if isinstance(signal, Exception):
        return BoltError(f"bolt '{step}' returned {signal!r}. Raise it instead")
    return BoltError(f"bolt '{step}' returned {signal!r}, expected a value or SKIP")


def misreturned(
    step: str, value: "GeneratorType[Any, Any, Any] | CoroutineType[Any, Any, Any]"
) -> BoltError:
    """Close the generator or coroutine that a plain bolt returned, and return its error."""
    value.close()
    return BoltError(
        f"bolt '{step}' returned a {type(value).__name__}. Make the bolt itself a generator or "
        "coroutine function, or annotate its return type"
    )


def _sent(found: list[_Value]) -> Sent:
    _, tasks, values, origins = zip(*found, strict=True)
    return Sent(list(values), np.array(origins, np.int64), list(tasks))


def _collect(
    step: str, results: Iterable[Any], count: int
) -> tuple[list[Any], dict[int, Exception]]:
    """Exhaust `results`; where it raises, SKIP takes the place of the value."""
    out: list[Any] = []
    failures: dict[int, Exception] = {}
    while len(out) < count:
        try:
            out.extend(results)  # on an exception, earlier results stay in the list
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # a user's code may raise anything
            failures[len(out)] = failure_of(step, error)
            out.append(SKIP)
        else:
            if len(out) < count:  # a StopIteration of the user's code ends `extend` early
                failures[len(out)] = BoltError(f"bolt '{step}' raised StopIteration")
                out.append(SKIP)
    return out, failures


@dataclass(frozen=True, slots=True)
class Failure:
    step: str
    error: Exception


class Upstream(NamedTuple):
    """The origin of values: a source's label or a step's name, and its stream."""

    source: str
    stream: str = DEFAULT_STREAM


@dataclass(slots=True)
class Delivery:
    """Values that reached a boundary, and the input of each."""

    boundary: Step
    piece: Piece
    parents: Parents
    origin: "Upstream"
    tasks: list[int] | None = None  # of a boundary with more than one task


class Took(NamedTuple):
    """The duration of one call of a bolt over many values."""

    step: str
    calls: int
    seconds: float
    ended: float  # of `perf_counter`
    parents: Parents  # indices of the inputs
    start: int = 0  # to be added to them


@dataclass(slots=True)
class Outcome:
    """The outcome of one run; inputs are named by their indices."""

    deliveries: list[Delivery]
    failures: dict[int, Failure]
    took: list[Took] = field(default_factory=list, compare=False)  # in order
