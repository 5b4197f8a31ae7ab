"""How a bolt is called over a whole chunk: the tight loops of the hot path.

Each function here returns a `Called`: the values that came out, for each of them the
place of the value it came from, and what failed. The loops run in C (`map`, `extend`,
`set`), so that per record there is nothing but the user's function; only failures,
drops and fan-out cost more.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from types import CoroutineType, GeneratorType, NoneType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topology.errors import BoltError, LineageLost, NothingReturned
from topology.signals import SKIP, Skip
from topology.sink import Piece

Parents: TypeAlias = "npt.NDArray[np.int64] | None"  # None: the i-th came from the i-th
PARENT = "__parent"  # the hidden column that carries the lineage through vectorised bolts

_NEEDS_A_LOOK = frozenset({NoneType, Skip, GeneratorType, CoroutineType})


@dataclass(slots=True)
class Called:
    """What a bolt made of a chunk."""

    piece: Piece
    parents: Parents
    failures: dict[int, Exception]  # by the place of the value that was passed in


def call_each(step: str, function: Callable[[Any], Any], values: list[Any]) -> Called:
    """Call a bolt that returns one value or SKIP."""
    out, failures = _collect(step, map(function, values), len(values))
    if _NEEDS_A_LOOK.isdisjoint(set(map(type, out))):
        return Called(out, None, failures)
    for place, value in enumerate(out):
        if value is None:
            failures[place] = NothingReturned(step)
        elif isinstance(value, (GeneratorType, CoroutineType)):
            failures[place] = BoltError(
                f"bolt '{step}' returned a {type(value).__name__}; make the bolt itself a "
                "generator or coroutine function, or annotate what it returns"
            )
            value.close()
    keep = [place for place, value in enumerate(out) if value is not SKIP and place not in failures]
    return Called([out[place] for place in keep], np.array(keep, np.int64), failures)


def call_fan_out(step: str, function: Callable[[Any], Iterable[Any]], values: list[Any]) -> Called:
    """Call a bolt that returns an iterator; its values leave together, when it is exhausted."""
    groups, failures = _collect(step, map(list, map(function, values)), len(values))
    for place in failures:
        groups[place] = []
    counts = np.fromiter(map(len, groups), np.int64, len(groups))
    parents = np.repeat(np.arange(len(groups)), counts)
    out = list(chain.from_iterable(groups))
    if _NEEDS_A_LOOK.isdisjoint(set(map(type, out))):
        return Called(out, parents, failures)
    for value, parent in zip(out, parents.tolist(), strict=True):
        if value is None:
            failures[parent] = NothingReturned(step)
    keep = [
        place
        for place, (value, parent) in enumerate(zip(out, parents.tolist(), strict=True))
        if value is not SKIP and parent not in failures
    ]
    return Called([out[place] for place in keep], parents[keep], failures)


def call_columns(
    step: str, function: Callable[[pa.RecordBatch], pa.RecordBatch], batch: pa.RecordBatch
) -> Called:
    """Call a vectorised bolt; when it raises, halve the batch until the bad rows stand alone."""
    tagged = batch.append_column(PARENT, pa.array(np.arange(batch.num_rows)))
    try:
        out = function(tagged)
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        if batch.num_rows <= 1:
            return Called(batch.slice(0, 0), np.empty(0, np.int64), {0: error})
        return _halves(step, function, batch)
    try:
        return _with_lineage(step, out, batch.num_rows)
    except BoltError as error:
        failures: dict[int, Exception] = dict.fromkeys(range(batch.num_rows), error)
        return Called(batch.slice(0, 0), np.empty(0, np.int64), failures)


def _collect(
    step: str, results: Iterable[Any], count: int
) -> tuple[list[Any], dict[int, Exception]]:
    """Exhaust `results`; where it raises, SKIP stands in the list and the error beside it."""
    out: list[Any] = []
    failures: dict[int, Exception] = {}
    while len(out) < count:
        try:
            out.extend(results)  # on an exception, what came before it stays in the list
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            failures[len(out)] = error
            out.append(SKIP)
        else:
            if len(out) < count:  # a StopIteration from the user's code ends `extend` early
                failures[len(out)] = BoltError(f"bolt '{step}' raised StopIteration")
                out.append(SKIP)
    return out, failures


def _halves(step: str, function: Callable[[Any], Any], batch: pa.RecordBatch) -> Called:
    middle = batch.num_rows // 2
    left = call_columns(step, function, batch.slice(0, middle))
    right = call_columns(step, function, batch.slice(middle))
    failures = dict(left.failures)
    failures.update({middle + place: error for place, error in right.failures.items()})
    batches: list[pa.RecordBatch] = []
    parents: list[npt.NDArray[np.int64]] = []
    for half, start in ((left, 0), (right, middle)):
        if isinstance(half.piece, pa.RecordBatch) and half.piece.num_rows:
            batches.append(half.piece)
            places = np.arange(len(half.piece)) if half.parents is None else half.parents
            parents.append(places + start)
    if not batches:
        return Called(batch.slice(0, 0), np.empty(0, np.int64), failures)
    joined = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return Called(joined, np.concatenate(parents), failures)


def _with_lineage(step: str, out: Any, num_rows: int) -> Called:
    if not isinstance(out, pa.RecordBatch):
        message = f"bolt '{step}' returned {type(out).__name__}; a pyarrow.RecordBatch is allowed"
        raise BoltError(message)
    place = out.schema.get_field_index(PARENT)
    if place >= 0:
        parents = out.column(place).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        return Called(out.remove_column(place), parents, {})
    if out.num_rows == num_rows:
        return Called(out, None, {})
    message = (
        f"bolt '{step}' returned {out.num_rows} rows for {num_rows} and dropped the column "
        f"'{PARENT}', so their records cannot be told; keep the columns it does not know"
    )
    raise LineageLost(message)
