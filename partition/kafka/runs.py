"""Sorting fetched records by partition and leader, without touching each of them."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from partition.chunk import Offsets


def runs_by_key(keys: npt.NDArray[np.int64]) -> dict[int, list[slice]]:
    """Return where each key's runs of neighbours lie, in order; `keys` is not empty."""
    starts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
    runs: dict[int, list[slice]] = {}
    for start, end in pairwise(starts):
        runs.setdefault(int(keys[start]), []).append(slice(start, end))
    return runs


def unseen(offsets: Offsets, position: int) -> npt.NDArray[np.intp]:
    """Return the places of the offsets that lie at or after `position` and all before them."""
    highest = np.maximum.accumulate(np.concatenate(([position - 1], offsets[:-1])))
    return np.flatnonzero(offsets > highest)


def key_bytes(messages: Sequence[Any], key: Callable[[Any], bytes | None]) -> int:
    """Return how many bytes the messages' keys hold."""
    return sum(map(len, filter(None, map(key, messages))))


def epoch_runs(
    messages: Sequence[Any], offsets: Offsets, epoch: Callable[[Any], int | None]
) -> tuple[tuple[int, int], ...]:
    """Return (first offset, leader epoch) of each run; epochs never fall within a log.

    Asks the first and the last message only, and bisects where they differ. Nothing is
    returned where an epoch is not known.
    """
    first, last = epoch(messages[0]), epoch(messages[-1])
    if first is None or last is None:
        return ()
    if first == last:
        return ((int(offsets[0]), first),)
    runs = []
    start = 0
    while start < len(messages):
        current = epoch(messages[start])
        if current is None:
            return ()
        runs.append((int(offsets[start]), current))
        start = bisect_right(messages, current, lo=start, key=lambda each: epoch(each) or 0)
    return tuple(runs)
