"""A bolt that misbehaves by a seed, around a bolt that does not."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Self

import pyarrow as pa

from service.testing.chaos import Chaos, ChaosCounts, Verdict
from topology.bolt import (
    Bolt,
    Component,
    In,
    Kind,
    Out,
    kind_of,
    target_of,
    yields_later,
    yields_many,
)
from topology.columns import PARENT
from topology.errors import InvalidTopology


class ChaosBolt(Bolt[In, Out]):
    """Stands in a bolt's place and makes some of its calls fail.

    Each call fails with the chance `fail`, raises Retry with the chance `retry`, Reject with
    the chance `reject`, and takes up to `delay_seconds` longer. Half of what fails does so
    after the bolt has done its work; a generator then has given some of its values. Which
    calls these are depends on the seed, on the value and on how often that value came, not
    on threads or chunks; a value is told by its `repr`, a Record by its place. `counts` says
    what was done.

    It takes a bolt of any kind (for an AdvancedBolt there is ChaosAdvancedBolt), or what makes
    one, and is of the same kind and name, but never concurrent: its calls are counted one by
    one. Raises InvalidTopology, and ValueError for a chance
    that is none.
    """

    _bolt: Bolt[Any, Any]

    def __new__(cls, bolt: Bolt[In, Out] | Callable[[], Bolt[In, Out]], **_chances: Any) -> Self:
        """Make the kind of bolt that the inner one is."""
        made: Any = bolt if isinstance(bolt, Component) or not callable(bolt) else bolt()
        if not isinstance(made, Bolt):
            message = (
                f"ChaosBolt got {bolt!r}; a @bolt function, a Bolt or its class is allowed, "
                "and for an AdvancedBolt there is ChaosAdvancedBolt"
            )
            raise InvalidTopology(message)
        self = super().__new__(_class_for(made) if cls is ChaosBolt else cls)
        self._bolt = made
        return self  # type: ignore[return-value]  # it is a ChaosBolt of the right kind

    def __init__(
        self,
        bolt: Bolt[In, Out] | Callable[[], Bolt[In, Out]],  # noqa: ARG002 - __new__ has made it
        *,
        seed: int,
        fail: float = 0.0,
        retry: float = 0.0,
        reject: float = 0.0,
        delay_seconds: float = 0.0,
    ) -> None:
        inner = self._bolt
        self._chaos = Chaos(seed, fail, retry, reject, delay_seconds)
        self._call = target_of(inner)
        self.__name__ = str(getattr(inner, "__name__", type(inner).__name__))
        self.blocking = inner.blocking  # type: ignore[misc]  # what the inner bolt's class says
        self.vectorised = inner.vectorised  # type: ignore[misc]
        self.columns = inner.columns  # type: ignore[misc]
        self.row_by_row = inner.row_by_row  # type: ignore[misc]
        self.tick_seconds = inner.tick_seconds  # type: ignore[misc]

    @property
    def counts(self) -> ChaosCounts:
        """What was done so far."""
        return self._chaos.counts

    def open(self) -> Coroutine[Any, Any, None] | None:
        """Open the inner bolt."""
        return self._bolt.open()

    def process(self, value: In, /) -> Any:
        """Call the inner bolt, or fail."""
        raise NotImplementedError

    def tick(self) -> Coroutine[Any, Any, None] | None:
        """Let the inner bolt tick."""
        return self._bolt.tick()

    def partition_assigned(self, topic: str, partition: int) -> None:
        """Tell the inner bolt."""
        self._bolt.partition_assigned(topic, partition)

    def partition_revoked(self, topic: str, partition: int) -> None:
        """Tell the inner bolt."""
        self._bolt.partition_revoked(topic, partition)

    def close(self) -> Coroutine[Any, Any, None] | None:
        """Close the inner bolt."""
        return self._bolt.close()


class _OneForOne(ChaosBolt[Any, Any]):
    def process(self, value: Any, /) -> Any:
        verdict = _before(self._chaos.judge(value))
        result = self._call(value)
        _after(verdict)
        return result


class _ManyForOne(ChaosBolt[Any, Any]):
    def process(self, value: Any, /) -> Iterator[Any]:
        verdict = _before(self._chaos.judge(value))
        for result in self._call(value):
            yield result
            _after(verdict)
        _after(verdict)


class _Awaited(ChaosBolt[Any, Any]):
    async def process(self, value: Any, /) -> Any:
        verdict = self._chaos.judge(value)
        if verdict.delay_seconds:
            await asyncio.sleep(verdict.delay_seconds)
        _raise_early(verdict)
        result = await self._call(value)
        _after(verdict)
        return result


class _ManyAwaited(ChaosBolt[Any, Any]):
    async def process(self, value: Any, /) -> AsyncIterator[Any]:
        verdict = self._chaos.judge(value)
        if verdict.delay_seconds:
            await asyncio.sleep(verdict.delay_seconds)
        _raise_early(verdict)
        async for result in self._call(value):
            yield result
            _after(verdict)
        _after(verdict)


class _Columns(ChaosBolt[Any, pa.RecordBatch]):
    """Fails a whole batch for one row of it, as bolts do; the executor then halves it.

    A row counts as tried when its batch passed, or when it failed alone.
    """

    def process(self, batch: pa.RecordBatch, /) -> Any:
        lineage = [name for name in batch.schema.names[-1:] if name.startswith(PARENT)]
        shown = batch.drop_columns(lineage)
        rows = [repr(row) for row in shown.to_pylist()]
        verdicts = [self._chaos.verdict(row) for row in rows]
        if verdicts and verdicts[0].delay_seconds:
            time.sleep(verdicts[0].delay_seconds)
        for row, verdict in zip(rows, verdicts, strict=True):
            if verdict.error is not None:
                if len(rows) == 1:
                    self._chaos.note(row, verdict)
                raise verdict.error
        result = self._call(batch)
        for row, verdict in zip(rows, verdicts, strict=True):
            self._chaos.note(row, verdict)
        return result


def _class_for(bolt: Bolt[Any, Any]) -> type[ChaosBolt[Any, Any]]:
    kind = kind_of(bolt)
    if kind is Kind.VECTORISED:
        return _Columns
    if kind is Kind.ASYNC:
        return _ManyAwaited if yields_later(bolt) else _Awaited
    return _ManyForOne if yields_many(bolt) else _OneForOne


def _before(verdict: Verdict) -> Verdict:
    """Wait, and fail if that is due before the work is done."""
    if verdict.delay_seconds:
        time.sleep(verdict.delay_seconds)
    _raise_early(verdict)
    return verdict


def _raise_early(verdict: Verdict) -> None:
    if verdict.error is not None and not verdict.late:
        raise verdict.error


def _after(verdict: Verdict) -> None:
    """Fail if that is due after the work was done."""
    if verdict.error is not None:
        raise verdict.error
