"""Runs a chain of requests one by one without waiting for any: each step is a future."""

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
Chain: TypeAlias = Generator[Future[Any] | None, Any, T]


class Steps(Generic[T]):
    """Drives a generator that yields futures, and None to be asked again later.

    The thread that calls `poll` runs the generator; a future that failed is raised in it.
    """

    def __init__(self, chain: Chain[T]) -> None:
        self._chain = chain
        self._waits_for: Future[Any] | None = None

    def poll(self) -> "Ended[T] | None":
        """Go on as far as possible; None while something is awaited. Raises as the chain does."""
        while True:
            future = self._waits_for
            if future is not None and not future.done():
                return None
            try:
                self._waits_for = self._go_on(future)
            except StopIteration as stop:
                return Ended(stop.value)
            if self._waits_for is None:
                return None

    def _go_on(self, future: Future[Any] | None) -> Future[Any] | None:
        if future is None:
            return next(self._chain)
        error = future.exception()
        if error is not None:
            return self._chain.throw(error)
        return self._chain.send(future.result())


class Ended(Generic[T]):
    """What a chain returned."""

    def __init__(self, value: T) -> None:
        self.value = value
