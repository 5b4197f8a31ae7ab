import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import Cache, InvalidTopology, Retry
from tests.support.patience import seconds
from topology.cache import CacheStatistics


class Service:
    """Counts what it is asked; answers when it is let go."""

    def __init__(self):
        self.asked = []
        self.go = asyncio.Event()

    async def __call__(self, key):
        self.asked.append(key)
        await self.go.wait()
        return key.upper()


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_entries_leave_for_lack_of_room_or_their_age_or_when_forgotten():
    now = 0.0
    cache = Cache(2, seconds=30, clock=lambda: now)

    def statistics_after(keys):
        for key in keys:
            assert cache.get_blocking(key, str.upper) == key.upper()
        found = cache.statistics
        return found.entries, found.hits, found.misses, found.evictions

    assert statistics_after("abac") == (2, 1, 3, 1)
    assert statistics_after("a") == (2, 2, 3, 1), "b was used less than a"
    now = 29.9
    assert statistics_after("ac") == (2, 4, 3, 1)
    now = 30.0
    assert statistics_after("") == (0, 4, 3, 1)
    assert statistics_after("ab") == (2, 4, 5, 1)
    cache.forget("a")
    cache.forget("never seen")
    assert statistics_after("") == (1, 4, 5, 1)
    cache.clear()
    assert statistics_after("") == (0, 4, 5, 1)


def test_coroutines_that_ask_for_one_key_share_one_look_up():
    async def run():
        cache, service = Cache(10), Service()
        calls = [asyncio.create_task(cache.get(key, service)) for key in "aabaa"]
        await settle()
        assert service.asked == ["a", "b"]
        service.go.set()
        assert await asyncio.gather(*calls) == ["A", "A", "B", "A", "A"]
        assert await cache.get("a", service) == "A"
        assert cache.statistics == CacheStatistics(entries=2, hits=4, misses=2, evictions=0)

    asyncio.run(run())


def test_when_the_call_that_looks_up_is_cancelled_another_makes_it():
    async def run():
        cache, service = Cache(10), Service()
        first, second, third = (asyncio.create_task(cache.get("a", service)) for _ in range(3))
        await settle()
        first.cancel()
        await settle()
        assert service.asked == ["a", "a"]
        service.go.set()
        assert await asyncio.gather(second, third) == ["A", "A"]
        assert first.cancelled()
        assert cache.statistics.entries == 1

    asyncio.run(run())


class Held:
    """A blocking look-up that waits until it is let go."""

    def __init__(self, error=None):
        self.asked, self.error = [], error
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self, key):
        self.asked.append(key)
        self.began.set()
        assert self.go.wait(seconds(10))
        if self.error is not None:
            raise self.error
        return key.upper()


def test_threads_that_ask_for_one_key_share_one_look_up_and_its_exception(monkeypatch):
    cache, held = Cache(10), Held(Retry("busy"))
    begun, begin = threading.Semaphore(0), cache._begin

    def noted(key):
        found = begin(key)
        begun.release()
        return found

    monkeypatch.setattr(cache, "_begin", noted)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(cache.get_blocking, "a", held) for _ in range(4)]
        assert all(begun.acquire(timeout=seconds(10)) for _ in range(4))
        held.go.set()
        errors = [call.exception(seconds(10)) for call in calls]
    assert held.asked == ["a"]
    assert all(isinstance(error, Retry) for error in errors)
    assert cache.statistics.entries == 0
    assert cache.get_blocking("a", str.upper) == "A", "no exception is kept"


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_threads_and_coroutines_wait_for_a_look_up_and_take_over_if_it_is_interrupted(error):
    cache, held = Cache(10), Held(error)

    async def look_up(key):
        assert error is not None
        return key.upper()

    async def run():
        waiting = asyncio.create_task(cache.get("a", look_up))
        await settle()
        held.go.set()
        return await waiting

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get_blocking, "a", held)
        assert held.began.wait(seconds(10))
        second = pool.submit(cache.get_blocking, "a", str.upper)
        assert asyncio.run(run()) == second.result(seconds(10)) == "A"
        assert first.exception(seconds(10)) is error


@pytest.mark.parametrize(
    "options", [{"max_entries": 0}, {"seconds": 0}, {"seconds": -1}, {"missing_seconds": 0}]
)
def test_a_cache_without_room_or_time_is_refused(options):
    with pytest.raises(InvalidTopology, match="must be positive"):
        Cache(**({"max_entries": 1} | options))
