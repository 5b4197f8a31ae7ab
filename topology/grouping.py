"""Groupings choose the tasks of a bolt that get a value.

A task is one instance of a bolt, with its own state. The groupings are Storm's
(org.apache.storm.grouping), and pure: the same values give the same tasks in every process
and under every Python, so `fields` splits state alike everywhere.
"""

import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from topology.errors import BoltError, expect

Indices = npt.NDArray[np.int64]
_WHOLE = (int, np.integer)


@dataclass(frozen=True, slots=True)
class Routed:
    """The indices of values, once per task that gets the value, and these tasks."""

    indices: Indices
    tasks: list[int]
    failures: dict[int, Exception]  # by index: values that could not be routed


@dataclass(frozen=True, slots=True)
class Grouping:
    """Chooses the tasks that each value goes to.

    `tasks_of` has the value, the number of tasks, and the count of the step's earlier values.
    """

    name: str
    tasks_of: Callable[[Any, int, int], Iterable[int]]
    is_keyed: bool = False  # equal keys go to the same task

    @property
    def is_direct(self) -> bool:
        return self.name == "direct"

    def route(self, values: Sequence[Any], count: int, turn: int) -> Routed:
        """Route values; one that cannot be routed fails alone."""
        indices: list[int] = []
        tasks: list[int] = []
        failures: dict[int, Exception] = {}
        for index, value in enumerate(values):
            try:
                chosen = _checked(self.tasks_of(value, count, turn + index), count)
            except Exception as error:  # noqa: BLE001  # the user's code may raise anything
                failures[index] = error
                continue
            indices += [index] * len(chosen)
            tasks += chosen
        return Routed(np.array(indices, np.int64), tasks, failures)


def _checked(chosen: Any, count: int) -> list[int]:
    if hasattr(chosen, "__iter__"):
        chosen = list(chosen)
        if chosen and all(isinstance(task, _WHOLE) and 0 <= task < count for task in chosen):
            return list(map(int, chosen))
    raise BoltError(f"tasks of the grouping: found {chosen}, expected some of 0 to {count - 1}")


def shuffle() -> Grouping:
    """Spread values evenly over the tasks."""
    return Grouping("shuffle", lambda _value, count, turn: (turn % count,))


def fields(*names: str) -> Grouping:
    """Send values with equal fields to the same task, in every process and version.

    A field is a key of a mapping, or an attribute (of a Record `key`, `topic` and others).
    """
    is_named = names and all(isinstance(name, str) for name in names)
    expect(is_named, "fields()", names, "the names of one or more fields")
    return by_key(partial(key_of, names=names), "fields")


def by_key(key: Callable[[Any], Hashable], name: str = "bykey") -> Grouping:
    """Send values with equal keys to the same task: the default after `keyed_by`."""

    def tasks_of(value: Any, count: int, _turn: int) -> Iterable[int]:
        return (stable_hash(key(value)) % count,)

    return Grouping(name, tasks_of, is_keyed=True)


def all_tasks() -> Grouping:
    """Send every value to every task; the record is complete when all have acked.

    All tasks get the same object, so none may change it in place.
    """
    return Grouping("all", lambda _value, count, _turn: range(count))


def global_() -> Grouping:
    """Send every value to the first task."""
    return Grouping("global", lambda _value, _count, _turn: (0,))


def direct() -> Grouping:
    """Let the preceding bolt choose: `To(stream, value, task=…)`."""
    return Grouping("direct", lambda _value, _count, _turn: ())  # the executor knows the task


def custom(choose: Callable[[Any, int], int | Iterable[int]]) -> Grouping:
    """Choose one task or more by `choose(value, number of tasks)`.

    To drop a value, return SKIP from the preceding bolt.
    """
    expect(callable(choose), "custom()", choose, "a function")

    def tasks_of(value: Any, count: int, _turn: int) -> Iterable[int]:
        chosen = choose(value, count)
        return (chosen,) if isinstance(chosen, _WHOLE) else chosen

    return Grouping("custom", tasks_of)


def key_of(value: Any, names: Sequence[str]) -> Any:
    """Return a field of a mapping or an object, or a tuple of several. Raises BoltError."""
    try:
        if isinstance(value, Mapping):
            found = tuple(value[name] for name in names)
        else:
            found = tuple(getattr(value, name) for name in names)
    except (KeyError, AttributeError) as error:
        name = error.name if isinstance(error, AttributeError) else error.args[0]
        message = f"{type(value).__name__} lacks the field {name!r}, which groups or orders values"
        raise BoltError(message) from error
    return found[0] if len(found) == 1 else found


def stable_hash(value: Any) -> int:
    """Return the CRC-32 of bytes, or of a value's JSON with sorted keys. Raises BoltError.

    Python's `hash` differs between processes: a restart would move each key's state.
    """
    if isinstance(value, bytes):
        return zlib.crc32(value)
    try:
        return zlib.crc32(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
    except TypeError as error:
        message = f"key of a grouping: found {value!r}, expected bytes or JSON values: {error}"
        raise BoltError(message) from error
