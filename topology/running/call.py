"""Calls of bolts: what goes into a runner, and what comes back."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from acker.acker import Edges, Trees
from topology.errors import BoltError
from topology.signals import Reject
from topology.steps import BoltStep


@dataclass(slots=True)
class Inputs:
    """Values for one step, as columns.

    `owners` names each value's record, the same after a retry; `partitions` its partition, by
    any number; `tasks` the task that each value goes to, which may be None if there is one.
    """

    values: list[Any]
    trees: Trees
    edges: Edges
    record_ids: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int64]
    tasks: list[int] | None = None


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

    def __init__(self, step: BoltStep, announce: "Callable[[Answers], None]") -> None:
        self.step = step
        self._announce = announce
        self._ended: list[Call] = []
        self._announced = False

    def add(self, call: Call) -> None:
        """Add a call that has ended. Any thread."""
        self._ended.append(call)
        if not self._announced:
            self._announced = True
            self._announce(self)

    def add_quietly(self, call: Call) -> bool:
        """Add a call, and say whether `announce` must follow."""
        self._ended.append(call)
        if self._announced:
            return False
        self._announced = True
        return True

    def announce(self) -> None:
        """Tell the owner."""
        self._announce(self)

    def take(self) -> list[Call]:
        """Take what has ended; perhaps nothing. The owner thread."""
        self._announced = False  # first, so that what is added from now on is announced anew
        count = len(self._ended)
        ended = self._ended[:count]
        del self._ended[:count]
        return ended
