"""Sorting fetched records by partition and leader, without touching each of them."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt

from partition.chunk import Offsets

_SAMPLED = 16
_ask_headers = methodcaller("headers")


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


def other_bytes(messages: Sequence[Any], key: Callable[[Any], bytes | None]) -> int:
    """Return how many bytes the messages' keys hold, and their headers by an estimate.

    The client makes Python objects of the headers it is asked for, which costs as much as parsing
    a record does: 16 messages of a chunk, spread evenly, stand for all.
    """
    keys = sum(map(len, filter(None, map(key, messages))))
    sample = messages[:: max(len(messages) // _SAMPLED, 1)]
    return keys + sum(map(_header_bytes, sample)) * len(messages) // len(sample)


def _header_bytes(message: Any) -> int:
    try:
        headers = _ask_headers(message)
    except (SystemError, UnicodeDecodeError) as error:  # topology.record.headers_of says why
        message.set_headers(error.with_traceback(None))
        return 0
    return sum(len(name) + len(value or b"") for name, value in headers or ())


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
