"""What became of a chunk in the executor."""

from dataclasses import dataclass, field
from typing import NamedTuple

from topology.calls import Parents
from topology.signals import DEFAULT_STREAM
from topology.sink import Piece
from topology.steps import Step


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a value was not processed, and in which step."""

    step: str
    error: Exception


class Origin(NamedTuple):
    """Where values come from: a source's label or a step's name, and its stream."""

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
    parents: Parents  # the inputs' places that the values came from
    start: int = 0  # to be added to them


@dataclass(slots=True)
class Outcome:
    """What became of the inputs of one run, by their places."""

    deliveries: list[Delivery]
    failures: dict[int, Failure]
    took: list[Took] = field(default_factory=list, compare=False)
    """The calls of bolts, in their order."""
