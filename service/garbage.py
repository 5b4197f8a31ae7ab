"""Keeps Python's cycle collector off the hot path."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NET_CONTAINERS = 500_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector run after half a million more containers than before, not 700.

    The threshold counts containers made less containers freed, and without cycles all of
    them are freed when their batch is written. The default would walk every record in
    flight over and over: measured, 0.7 of 2.3 µs CPU per record. Cycles in a user's code
    are still collected, after at most so many containers.
    """
    before = gc.get_threshold()
    gc.freeze()  # modules, classes and look-up tables need no second look
    gc.set_threshold(NET_CONTAINERS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
