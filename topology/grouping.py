"""Groupings: which of a bolt's tasks gets a tuple.

A task is one instance of a bolt, with its own state. The groupings are Storm's
(org.apache.storm.grouping), and pure: the same values give the same tasks in every process
and under every Python, so state that is split by `fields` is split alike everywhere.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from topology.errors import BoltError, InvalidTopology

Indices = npt.NDArray[np.int64]
_WHOLE = (int, np.integer)


@dataclass(frozen=True, slots=True)
class Routed:
    """The `indices` of values that go somewhere, and the task of each.

    An index stands there once per task that gets the value.
    """

    indices: Indices
    tasks: list[int]
    failures: dict[int, Exception]  # by index: what could not be routed


class Grouping(ABC):
    """Chooses the tasks that each value goes to."""

    @abstractmethod
    def tasks_of(self, value: Any, count: int, turn: int) -> Iterable[int]:
        """Return which of `count` tasks get the value; `turn` counts the values of this step."""

    def route(self, values: Sequence[Any], count: int, turn: int) -> Routed:
        """Route many values; one that cannot be routed fails alone."""
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
    """Return the tasks chosen. Raises BoltError if there is none, or one that is missing."""
    if hasattr(chosen, "__iter__"):
        chosen = list(chosen)
        if chosen and all(isinstance(task, _WHOLE) and 0 <= task < count for task in chosen):
            return list(map(int, chosen))
    raise BoltError(
        f"the grouping chose the tasks {chosen}; one or more of 0 to {count - 1} are allowed"
    )


class Shuffle(Grouping):
    """Each task in turn."""

    def tasks_of(self, value: Any, count: int, turn: int) -> Iterable[int]:
        del value
        return (turn % count,)


@dataclass(frozen=True)
class Fields(Grouping):
    """The same fields, the same task."""

    names: tuple[str, ...]

    def tasks_of(self, value: Any, count: int, turn: int) -> Iterable[int]:
        del turn
        return (stable_hash(key_of(value, self.names)) % count,)


@dataclass(frozen=True)
class ByKey(Grouping):
    """The same key, the same task: the default after `keyed_by`."""

    key: Callable[[Any], Hashable]

    def tasks_of(self, value: Any, count: int, turn: int) -> Iterable[int]:
        del turn
        return (stable_hash(self.key(value)) % count,)


class All(Grouping):
    """Every task gets the same object."""

    def tasks_of(self, value: Any, count: int, turn: int) -> Iterable[int]:
        del value, turn
        return range(count)


class Global(Grouping):
    """The first task gets everything."""

    def tasks_of(self, value: Any, count: int, turn: int) -> Iterable[int]:
        del value, count, turn
        return (0,)


class Direct(Grouping):
    """The bolt before says which task: it returns `To(stream, value, task=…)`."""

    def tasks_of(self, value: Any, count: int, turn: int) -> Iterable[int]:
        """Never called: the executor knows the task."""
        raise NotImplementedError


@dataclass(frozen=True)
class Custom(Grouping):
    choose: Callable[[Any, int], int | Iterable[int]]

    def tasks_of(self, value: Any, count: int, turn: int) -> Iterable[int]:
        del turn
        chosen = self.choose(value, count)
        return (chosen,) if isinstance(chosen, _WHOLE) else chosen


def shuffle() -> Grouping:
    """Spread values evenly over the tasks."""
    return Shuffle()


def fields(*names: str) -> Grouping:
    """Send values whose fields are equal to the same task, in every process and version.

    A field is a key of a mapping, an attribute, or of a Record `key`, `topic` and the like.
    """
    if not names or not all(isinstance(name, str) for name in names):
        message = f"fields() got {names!r}; the names of one or more fields are allowed"
        raise InvalidTopology(message)
    return Fields(names)


def all_tasks() -> Grouping:
    """Send every value to every task; the record is complete when all have acked.

    All of them get the same object, so none may change it in place.
    """
    return All()


def global_() -> Grouping:
    """Send every value to the first task."""
    return Global()


def direct() -> Grouping:
    """Let the bolt before choose: `To(stream, value, task=…)`."""
    return Direct()


def custom(choose: Callable[[Any, int], int | Iterable[int]]) -> Grouping:
    """Choose tasks by `choose(value, number of tasks)`: one, or several, but not none.

    To leave a value out, return SKIP from the bolt before.
    """
    if not callable(choose):
        raise InvalidTopology(f"custom() got {choose!r}; a function is allowed")
    return Custom(choose)


def key_of(value: Any, names: Sequence[str]) -> Any:
    """Return a field of a mapping or an object; of several names, the tuple. Raises BoltError."""
    try:
        if isinstance(value, Mapping):
            found = tuple(value[name] for name in names)
        else:
            found = tuple(getattr(value, name) for name in names)
    except (KeyError, AttributeError) as error:
        name = error.name if isinstance(error, AttributeError) else error.args[0]
        message = f"{type(value).__name__} has no field {name!r}; it is needed to group or to order"
        raise BoltError(message) from error
    return found[0] if len(found) == 1 else found


def stable_hash(value: Any) -> int:
    """CRC-32 of the value's bytes, or else of its JSON with sorted keys.

    Python's own `hash` differs from process to process, so it would send a key's state
    elsewhere after each restart. Raises BoltError for what has no JSON.
    """
    if isinstance(value, bytes):
        return zlib.crc32(value)
    try:
        return zlib.crc32(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
    except TypeError as error:
        message = f"{value!r} cannot be grouped by: {error}; bytes and what JSON has are allowed"
        raise BoltError(message) from error
