"""A chunk in small blocks, each through all steps before the next: objects die in the caches.

What three functions make of 2,000 records is megabytes, and has left a core's own caches by the
time that the next function reads it, or it is freed. A few hundred records stay there.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from topology.bolt import Kind
from topology.outcome import Delivery, Failure, Outcome
from topology.steps import BoltStep, Source, Step

RECORDS = 256

_Value = TypeVar("_Value")
_PLAIN = frozenset({Kind.FUNCTION, Kind.FAN_OUT})


def suits(source: Source) -> bool:
    """Whether all that the executor runs of a source takes values one by one.

    A vectorised bolt has a price per call, and wants its columns long.
    """
    left: list[Step] = list(source.children)
    while left:
        step = left.pop()
        if isinstance(step, BoltStep) and not step.is_boundary:
            if step.kind not in _PLAIN:
                return False
            left += step.children
    return True


def blocks(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    """The values in blocks, in their order."""
    for start in range(0, len(values), RECORDS):
        yield values[start : start + RECORDS]


def joined(parts: Sequence[Outcome]) -> Outcome:
    """What became of a chunk, by what became of its blocks."""
    failures: dict[int, Failure] = {}
    deliveries: dict[object, list[tuple[int, Delivery]]] = {}
    for number, part in enumerate(parts):
        start = number * RECORDS
        failures.update((start + place, failure) for place, failure in part.failures.items())
        for each in part.deliveries:
            key = (each.boundary, each.origin, each.tasks is None)
            deliveries.setdefault(key, []).append((start, each))
    took = [
        each._replace(start=number * RECORDS)
        for number, part in enumerate(parts)
        for each in part.took
    ]
    return Outcome([_one(found, len(parts)) for found in deliveries.values()], failures, took)


def _one(found: list[tuple[int, Delivery]], num_parts: int) -> Delivery:
    """One delivery of those of several blocks, which begin at these places of the chunk."""
    delivery = found[0][1]
    values = [*_values(delivery)]
    tasks = None if delivery.tasks is None else list(delivery.tasks)
    for _start, each in found[1:]:
        values += _values(each)
        if tasks is not None:
            tasks += each.tasks or ()
    is_whole = len({start for start, _ in found}) == len(found) == num_parts
    if is_whole and all(each.parents is None for _, each in found):
        parents = None
    else:
        parents = np.concatenate(
            [
                start + (np.arange(len(each.piece)) if each.parents is None else each.parents)
                for start, each in found
            ]
        )
    return Delivery(delivery.boundary, values, parents, delivery.origin, tasks)


def _values(delivery: Delivery) -> list[Any]:
    return cast("list[Any]", delivery.piece)  # no vectorised bolt makes columns here
