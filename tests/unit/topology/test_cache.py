"""The cache: bounded, one look-up per key at a time, no exception kept."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import Cache, InvalidTopology, Retry
from tests.support.patience import seconds
from topology.cache import CacheStatistics


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Service:
    """Counts what it is asked; answers when it is let go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, key: str) -> str | None:
        self.asked.append(key)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return None if key == "nothing" else key.upper()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def upper(key: str) -> str:
    return key.upper()


def test_the_least_used_entry_leaves_when_there_is_no_room():
    cache: Cache[str, str] = Cache(2)
    for key in "abac":
        cache.get_blocking(key, upper)
    assert cache.statistics == CacheStatistics(entries=2, hits=1, misses=3, evictions=1)
    cache.get_blocking("a", upper)
    assert cache.statistics.hits == 2, "b was used less than a"


def test_an_entry_is_kept_no_longer_than_it_may_be():
    clock = Clock()
    cache: Cache[str, str] = Cache(10, seconds=30, clock=clock)
    cache.get_blocking("a", upper)
    clock.now = 29.9
    cache.get_blocking("a", upper)
    assert cache.statistics.hits == 1
    clock.now = 30.0
    assert cache.statistics.entries == 0
    cache.get_blocking("a", upper)
    assert cache.statistics == CacheStatistics(entries=1, hits=1, misses=2, evictions=0)


def test_an_exception_is_passed_on_and_not_kept():
    def fail(_key: str) -> str:
        raise Retry("503")

    cache: Cache[str, str] = Cache(10)
    with pytest.raises(Retry, match="503"):
        cache.get_blocking("a", fail)
    assert cache.get_blocking("a", upper) == "A"


def test_what_is_forgotten_is_looked_up_again():
    cache: Cache[str, str] = Cache(10)
    for key in "ab":
        cache.get_blocking(key, upper)
    cache.forget("a")
    cache.forget("never seen")
    assert cache.statistics.entries == 1
    cache.clear()
    assert cache.statistics == CacheStatistics(entries=0, hits=0, misses=2, evictions=0)


def test_coroutines_that_ask_for_one_key_share_one_look_up():
    async def run() -> None:
        cache: Cache[str, str | None] = Cache(10)
        service = Service()
        calls = [asyncio.create_task(cache.get(key, service)) for key in "aabaa"]
        await settle()
        assert service.asked == ["a", "b"]
        service.go.set()
        assert await asyncio.gather(*calls) == ["A", "A", "B", "A", "A"]
        assert await cache.get("a", service) == "A"
        assert cache.statistics == CacheStatistics(entries=2, hits=4, misses=2, evictions=0)

    asyncio.run(run())


def test_when_the_call_that_looks_up_is_cancelled_another_makes_it():
    async def run() -> None:
        cache: Cache[str, str | None] = Cache(10)
        service = Service()
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


def test_threads_that_ask_for_one_key_share_one_look_up_and_its_exception(monkeypatch):
    cache: Cache[str, str] = Cache(10)
    asked: list[str] = []
    go, begun = threading.Event(), threading.Semaphore(0)
    begin = cache._begin

    def told(key: str):
        found = begin(key)
        begun.release()
        return found

    monkeypatch.setattr(cache, "_begin", told)

    def look_up(key: str) -> str:
        asked.append(key)
        assert go.wait(seconds(10))
        raise Retry("busy")

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(cache.get_blocking, "a", look_up) for _ in range(4)]
        assert all(begun.acquire(timeout=seconds(10)) for _ in range(4))
        go.set()
        errors = [call.exception(seconds(10)) for call in calls]
    assert asked == ["a"]
    assert all(isinstance(error, Retry) for error in errors)
    assert cache._asked == {}
    assert cache.statistics.entries == 0


def test_a_thread_takes_over_when_the_look_up_it_waits_for_is_interrupted():
    cache: Cache[str, str] = Cache(10)
    began, go = threading.Event(), threading.Event()

    def interrupted(_key: str) -> str:
        began.set()
        assert go.wait(seconds(10))
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get_blocking, "a", interrupted)
        assert began.wait(seconds(10))
        second = pool.submit(cache.get_blocking, "a", upper)
        go.set()
        assert second.result(seconds(10)) == "A"
        assert isinstance(first.exception(seconds(10)), KeyboardInterrupt)


def test_a_thread_and_a_coroutine_may_share_a_look_up():
    cache: Cache[str, str] = Cache(10)
    began, go = threading.Event(), threading.Event()

    def look_up(key: str) -> str:
        began.set()
        assert go.wait(seconds(10))
        return key.upper()

    async def other(_key: str) -> str:
        raise AssertionError

    async def run() -> str:
        waiting = asyncio.create_task(cache.get("a", other))
        await settle()
        go.set()
        return await waiting

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(cache.get_blocking, "a", look_up)
        assert began.wait(seconds(10))
        assert asyncio.run(run()) == "A"
        assert first.result(seconds(10)) == "A"


@pytest.mark.parametrize(
    "options", [{"max_entries": 0}, {"seconds": 0}, {"seconds": -1}, {"missing_seconds": 0}]
)
def test_a_cache_without_room_or_time_is_refused(options):
    with pytest.raises(InvalidTopology, match="must be positive"):
        Cache(**({"max_entries": 1} | options))
