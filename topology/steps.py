"""The steps of a topology: sources, bolts and sinks."""

import random
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from topology.bolt import Component, Kind
from topology.grouping import Grouping
from topology.record import DEFAULT_STREAM
from topology.sink import BATCH_ROWS, Sink


class Order(Enum):
    """The order that the calls of a step keep."""

    NONE = "none"
    KEY = "key"  # one at a time per key, in the order of arrival
    PARTITION = "partition"  # one at a time per partition, in the order of arrival


BATCH_BYTES = 128 * 1024 * 1024
BATCH_SECONDS = 5.0

Key: TypeAlias = Callable[[Any], Hashable]


@runtime_checkable
class RetryRule(Protocol):
    """Limit and delays of a record's retries (`headrace.RetryPolicy` is one)."""

    @property
    def limit(self) -> int:
        """Retries after the first attempt."""
        ...

    def delay_seconds(self, failures: int, rng: random.Random) -> float:
        """Return the delay after the record's n-th failure."""
        ...


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    batch_seconds: float = BATCH_SECONDS


@dataclass(frozen=True, slots=True, eq=False)
class SinkStep:
    is_concurrent: ClassVar[bool] = False

    name: str
    sink: Sink[Any]
    policy: BatchPolicy


@dataclass(frozen=True, eq=False)
class BoltStep:
    """A bolt of a topology, and the steps behind it, by stream."""

    name: str
    bolts: tuple[Component, ...]  # one per task
    kind: Kind
    workers: int = 1
    timeout_seconds: float | None = None
    retries: RetryRule | None = None
    grouping: Grouping | None = None
    order: Order = Order.NONE
    key: Key | None = None  # of order KEY
    streams: "dict[str, list[Step]]" = field(default_factory=lambda: {DEFAULT_STREAM: []})

    @cached_property
    def bolt(self) -> Any:
        return self.bolts[0]

    @cached_property
    def is_boundary(self) -> bool:
        """Whether the executor stops here, because results come later."""
        is_spread = len(self.bolts) > 1 or self.grouping is not None
        return self.kind in _LATER or self.order is not Order.NONE or is_spread

    @property
    def needs_whole_keys(self) -> bool:
        """Whether it must get all records of a key, from all sources."""
        is_grouped = self.grouping is not None and self.grouping.is_keyed
        return self.order is Order.KEY or is_grouped or self.kind is Kind.ADVANCED

    @cached_property
    def is_concurrent(self) -> bool:
        """Whether any thread may run it, for several chunks at once."""
        return self.kind is Kind.VECTORISED and not self.is_boundary and self.bolt.concurrent

    @cached_property
    def has_runner(self) -> bool:
        """Whether the worker pool calls it."""
        return self.is_boundary and self.kind is not Kind.ADVANCED

    @property
    def children(self) -> "list[Step]":
        """Every step behind this one, once."""
        return list(dict.fromkeys(step for steps in self.streams.values() for step in steps))


_LATER = frozenset({Kind.ASYNC, Kind.BLOCKING, Kind.ADVANCED})

Step: TypeAlias = BoltStep | SinkStep


def is_direct(step: Step) -> bool:
    """Whether the preceding bolt chooses the task of each value."""
    return isinstance(step, BoltStep) and step.grouping is not None and step.grouping.is_direct


@dataclass(frozen=True, eq=False)
class Source:
    """A topic to read, or every topic whose whole name matches a pattern."""

    topic: str | re.Pattern[str]
    records_per_second: float | None = None
    children: list[Step] = field(default_factory=list)

    @property
    def is_concurrent(self) -> bool:
        return any(step.is_concurrent for step in self.children)

    @cached_property
    def label(self) -> str:
        """The topic's name, or the pattern between slashes."""
        return self.topic if isinstance(self.topic, str) else f"/{self.topic.pattern}/"
