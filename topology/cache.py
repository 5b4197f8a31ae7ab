"""A cache for what bolts look up elsewhere: bounded, and one look-up at a time per key."""

import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import Any, Generic, TypeVar, cast

from cachetools import TLRUCache

from topology.errors import InvalidTopology

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    entries: int
    hits: int  # answered from the cache, or by the look-up of another call for the same key
    misses: int  # look-ups made
    evictions: int  # entries removed for lack of room, not for their age


class Cache(Generic[Key, Value]):
    """An LRU cache of at most `max_entries` results, each for at most `seconds`.

    Calls that ask for the same key at the same time share one look-up: if it raises, all of
    them get its exception, and nothing is kept. If the call that makes it is cancelled, one of
    the others makes it anew. A result of None means that there is nothing of that key; it is
    kept for `missing_seconds`, and not at all without. Any thread and any event loop may call.
    """

    def __init__(
        self,
        max_entries: int,
        *,
        seconds: float | None = None,
        missing_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises InvalidTopology when a bound is not positive."""
        limits = [limit for limit in (seconds, missing_seconds) if limit is not None]
        if max_entries < 1 or any(limit <= 0 for limit in limits):
            message = "Cache: max_entries, seconds and missing_seconds must be positive"
            raise InvalidTopology(message)
        self._kept_seconds = inf if seconds is None else seconds
        self._missing_seconds = missing_seconds or 0.0
        self._lock = Lock()
        self._kept = _Counted(max_entries, self._ends_at, clock)
        self._asked: dict[Key, Future[_Outcome]] = {}  # look-ups that are being made
        self._hits = 0
        self._misses = 0

    async def get(self, key: Key, look_up: Callable[[Key], Awaitable[Value]]) -> Value:
        """Return the cached value of a key, or that of `look_up(key)`; for async bolts.

        Raises what `look_up` raises.
        """
        while True:
            kept, mine, asked = self._begin(key)
            if asked is None:
                return cast("Value", kept)
            if not mine:
                import asyncio  # noqa: PLC0415 - costs 0.02 s

                outcome = await asyncio.wrap_future(asked)
                if outcome.is_known:
                    return self._shared(outcome)
                continue
            with self._looking_up(key, asked) as outcome:
                outcome.value = value = await look_up(key)
            return value

    def get_blocking(self, key: Key, look_up: Callable[[Key], Value]) -> Value:
        """Return the cached value of a key, or that of `look_up(key)`; for blocking bolts.

        Raises what `look_up` raises. Not for coroutine functions: it would wait for another
        call's look-up and hold up the event loop that this look-up may need.
        """
        while True:
            kept, mine, asked = self._begin(key)
            if asked is None:
                return cast("Value", kept)
            if not mine:
                outcome = asked.result()
                if outcome.is_known:
                    return self._shared(outcome)
                continue
            with self._looking_up(key, asked) as outcome:
                outcome.value = value = look_up(key)
            return value

    def forget(self, key: Key) -> None:
        """Remove a key."""
        with self._lock:
            self._kept.pop(key, None)

    def clear(self) -> None:
        """Remove all keys; the counters are kept."""
        with self._lock:
            self._kept.clear()

    @property
    def statistics(self) -> CacheStatistics:
        with self._lock:
            self._kept.expire()
            return CacheStatistics(len(self._kept), self._hits, self._misses, self._kept.evictions)

    def _begin(self, key: Key) -> "tuple[Any, bool, Future[_Outcome] | None]":
        """Return the cached value, or a look-up's future and whether the caller has to end it."""
        with self._lock:
            kept = self._kept.get(key, _NOTHING)
            if kept is not _NOTHING:
                self._hits += 1
                return kept, False, None
            asked = self._asked.get(key)
            if asked is not None:
                return None, False, asked
            self._misses += 1
            asked = self._asked[key] = Future()
            asked.set_running_or_notify_cancel()  # so that who waits cannot cancel it
            return None, True, asked

    @contextmanager
    def _looking_up(self, key: Key, asked: "Future[_Outcome]") -> "Iterator[_Outcome]":
        outcome = _Outcome()
        try:
            yield outcome
        except Exception as error:
            outcome.error = error
            raise
        except BaseException:  # cancelled: that is about this call, not about the key
            outcome.is_known = False
            raise
        finally:
            with self._lock:
                del self._asked[key]
                if outcome.is_known and outcome.error is None:
                    self._kept[key] = outcome.value
            asked.set_result(outcome)

    def _shared(self, outcome: "_Outcome") -> Value:
        with self._lock:
            self._hits += 1
        if outcome.error is not None:
            raise outcome.error
        return cast("Value", outcome.value)

    def _ends_at(self, _key: Key, value: Value, now: float) -> float:
        return now + (self._missing_seconds if value is None else self._kept_seconds)


@dataclass(slots=True)
class _Outcome:
    """The outcome of a look-up; not known if the call that made it was cancelled."""

    value: Any = None
    error: Exception | None = None
    is_known: bool = True


class _Counted(TLRUCache[Any, Any, float]):
    """Counts the entries that are evicted for lack of room."""

    evictions = 0

    def popitem(self) -> tuple[Any, Any]:
        self.evictions += 1
        return super().popitem()


_NOTHING = object()
