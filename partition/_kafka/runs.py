"""Sorting fetched records by partition, without touching each of them."""

from itertools import pairwise

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
