"""Calls of bolts, their inputs and their results."""

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from types import CoroutineType, GeneratorType, NoneType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from acker.acker import Edges, Trees
from topology.bolt import Bolt, yields_later, yields_many
from topology.calls import misreturned, no_value
from topology.errors import BoltError, NothingReturned
from topology.record import SIGNALS, SKIP, Reject
from topology.steps import BoltStep

_NO_VALUES = frozenset({NoneType, GeneratorType, CoroutineType, *SIGNALS})


@dataclass(slots=True)
class Inputs:
    """Values for one step, as columns.

    `record_ids` are the same after a retry; `partitions` are any numbers, one per partition;
    `tasks` are the tasks that the values go to, None if the step has one.
    """

    values: list[Any]
    trees: Trees
    edges: Edges
    record_ids: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int64]
    tasks: list[int] | None = None

    def take(self, indices: list[int]) -> "Inputs":
        return Inputs(
            [self.values[index] for index in indices],
            self.trees[indices],
            self.edges[indices],
            self.record_ids[indices],
            self.partitions[indices],
            None if self.tasks is None else [self.tasks[index] for index in indices],
        )


class Call(msgspec.Struct, eq=False):
    """One value on its way through a bolt.

    `value` is what goes in until the call has ended; then it is what came out, unless `error`
    says why nothing did. What a generator gave is a Many.
    """

    value: Any
    tree: int
    edge: int
    record_id: int
    partition: int
    key: Hashable = None
    error: Exception | None = None

    @property
    def comes_again(self) -> bool:
        """Whether the record is retried: it failed, and not for good."""
        return self.error is not None and not isinstance(self.error, (Reject, BoltError))


class Many(list[Any]):
    """Every value that one call gave: they leave together."""


@dataclass(frozen=True, slots=True)
class TickFailed:
    """A tick raised, or took too long. The bolt is ticked again next time."""

    step: str
    error: BaseException


class Answers:
    """Calls of one step that have ended and that the owner has not taken yet.

    Threads add to it, the owner takes from it. It is announced once when it gets something, so
    while the owner is busy the calls gather here and are then taken at once.
    """

    def __init__(self, step: BoltStep, announce: "Callable[[Answers], object]") -> None:
        self.step = step
        self._announce = announce
        self._ended: list[Call] = []
        self._announced = False

    def add(self, call: Call) -> None:
        """Add a call that has ended. Any thread."""
        if self.add_quietly(call):
            self.announce()

    def add_quietly(self, call: Call) -> bool:
        """Add a call; return whether `announce` must follow."""
        self._ended.append(call)
        if self._announced:
            return False
        self._announced = True
        return True

    def announce(self) -> None:
        self._announce(self)

    def take(self) -> list[Call]:
        """Take what has ended; perhaps nothing. The owner thread."""
        self._announced = False  # first, so that what is added from now on is announced anew
        count = len(self._ended)
        ended = self._ended[:count]
        del self._ended[:count]
        return ended


def process_of(step: str, bolt: Bolt[Any, Any]) -> Callable[[Any], Any]:
    """Return what to call per value. It returns a value, SKIP, or Many; or raises."""
    function: Callable[[Any], Any] = bolt.process
    if not yields_many(bolt):
        return function
    return lambda value: _many(step, list(function(value)))


def async_process_of(step: str, bolt: Bolt[Any, Any]) -> Callable[[Any], Awaitable[Any]]:
    """Return what to await per value. It returns a value, SKIP, or Many; or raises."""
    function: Callable[[Any], Any] = bolt.process
    if not yields_later(bolt):
        return function

    async def gather(value: Any) -> Many:
        return _many(step, [out async for out in function(value)])

    return gather


def _many(step: str, values: list[Any]) -> Many:
    for value in values:
        if value is None:
            raise NothingReturned(step)
        if type(value) in SIGNALS:
            raise no_value(step, value)
    return Many(value for value in values if value is not SKIP)


def finish(step: str, call: Call, value: Any) -> None:
    """Put what a bolt returned into its call, or why it may not return that."""
    if type(value) not in _NO_VALUES:
        call.value = value
    elif value is None:
        call.error = NothingReturned(step)
    elif type(value) in SIGNALS:
        call.error = no_value(step, value)
    else:
        call.error = misreturned(step, value)


def overdue(step: str, seconds: float) -> TimeoutError:
    """Return the error of a call that took too long."""
    return TimeoutError(f"bolt '{step}' took longer than its {seconds:g} seconds")
