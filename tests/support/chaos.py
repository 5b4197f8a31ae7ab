"""Bolts and sinks that misbehave by a seed, whatever the threads and chunks.

What fails depends on the seed, on the value or the batch, and on how often it was tried.
"""

import functools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from copy import copy
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from headrace import Record, Reject, Retry, RowsRejected, SinkBusy
from headrace.sinks import Batch, Sink
from headrace.testing import TopologyTest
from sinks.columns import rows_of
from topology.advanced import AdvancedBolt
from topology.bolt import Component, Kind, kind_of, yields_later, yields_many
from topology.sink import Staged
from topology.vectorised import PARENT


class ChaosError(Exception):
    """A failure that was made on purpose."""


def draw(seed: int, *what: object) -> float:
    """A number from 0 to below 1 that depends on nothing but the arguments."""
    text = "\0".join(map(str, (seed, *what)))
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)


class Chaos:
    """Which calls of a bolt fail, ask for a retry or reject; half of them when the work is done."""

    def __init__(self, seed: int, fail: float, retry: float, reject: float) -> None:
        self.seed, self.fail, self.retry, self.reject = seed, fail, retry, reject
        self.spoiled = 0
        self._tried: Counter[str] = Counter()
        self._lock = threading.Lock()

    def error_of(self, what: str) -> Exception | None:
        """What the next try of `what` raises."""
        attempt = self._tried[what] + 1
        chance = draw(self.seed, what, attempt)
        if chance < self.reject:
            return Reject("chaos rejects it")
        if chance < self.reject + self.retry:
            return Retry("chaos asks for a retry")
        if chance < self.reject + self.retry + self.fail:
            return ChaosError(f"chaos fails try {attempt}")
        return None

    def note(self, what: str, error: Exception | None) -> None:
        with self._lock:
            self._tried[what] += 1
            self.spoiled += error is not None

    def begin(self, value: Any) -> Callable[[], None]:
        """Fail before the work is done, or return what fails after it."""
        is_record = isinstance(value, Record)
        what = f"{value.topic}[{value.partition}]@{value.offset}" if is_record else repr(value)
        error = self.error_of(what)
        self.note(what, error)
        is_late = draw(self.seed, what, self._tried[what], "late") < 0.5

        def end() -> None:
            if error is not None:
                raise error

        if not is_late:
            end()
        return end


def chaotic(
    bolt: Any, *, seed: int, fail: float = 0.0, retry: float = 0.0, reject: float = 0.0
) -> Any:
    """The bolt, or one of the class, with a `process` that fails; of its kind, name and life."""
    made = copy(bolt) if isinstance(bolt, Component) else bolt()
    made.chaos = Chaos(seed, fail, retry, reject)
    if isinstance(made, AdvancedBolt):
        made.process = _advanced(made.process, made.chaos)
    else:
        made.process = _around(made, made.chaos)
    return made


def _advanced(process: Callable[..., None], chaos: Chaos) -> Callable[..., None]:
    def spoiled(tuple_: Any, collector: Any) -> None:
        chaos.begin(tuple_.value)()
        process(tuple_, collector)

    return spoiled


def _around(bolt: Any, chaos: Chaos) -> Callable[[Any], Any]:
    call = bolt.process
    kind = kind_of(bolt)
    if kind is Kind.VECTORISED:
        return _columns(call, chaos)

    def one(value: Any) -> Any:
        end = chaos.begin(value)
        result = call(value)
        end()
        return result

    def many(value: Any) -> Iterator[Any]:
        end = chaos.begin(value)
        for result in call(value):
            yield result
            end()
        end()

    async def awaited(value: Any) -> Any:
        end = chaos.begin(value)
        result = await call(value)
        end()
        return result

    async def many_awaited(value: Any) -> AsyncIterator[Any]:
        end = chaos.begin(value)
        async for result in call(value):
            yield result
            end()
        end()

    if kind is Kind.ASYNC:
        made: Callable[[Any], Any] = many_awaited if yields_later(bolt) else awaited
    else:
        made = many if yields_many(bolt) else one
    return functools.wraps(call)(made)


def _columns(call: Callable[[Any], Any], chaos: Chaos) -> Callable[[Any], Any]:
    """Fails a whole batch for one row of it; the executor then halves it.

    A row counts as tried when its batch passed, or when it failed alone.
    """

    @functools.wraps(call)
    def spoiled(batch: pa.RecordBatch) -> Any:
        lineage = [name for name in batch.schema.names[-1:] if name.startswith(PARENT)]
        rows = [repr(row) for row in batch.drop_columns(lineage).to_pylist()]
        for row in rows:
            error = chaos.error_of(row)
            if error is not None:
                if len(rows) == 1:
                    chaos.note(row, error)
                raise error
        result = call(batch)
        for row in rows:
            chaos.note(row, None)
        return result

    return spoiled


class Spoiler:
    """Takes the place of a sink's `stage` and `commit`.

    A try may find the sink busy, fail with nothing written, or fail when all is written. A row
    is rejected always or never.
    """

    def __init__(
        self,
        sink: Sink[Any],
        *,
        seed: int,
        busy: float = 0.0,
        fail_before: float = 0.0,
        fail_after: float = 0.0,
        reject: float = 0.0,
    ) -> None:
        self.seed, self.reject = seed, reject
        self.busy = busy
        self.before = busy + fail_before
        self.after = busy + fail_before + fail_after
        self.counts: Counter[str] = Counter()
        self._tries: Counter[str] = Counter()
        self._stage, self._commit = sink.stage, sink.commit
        self._staged: dict[int, tuple[Staged, str, list[int]]] = {}
        """By what was staged of no transactions: that, what it is called, and the rows it has."""

    def stage(self, batch: Batch) -> Staged:
        pieces, good, bad = self._sift(batch.pieces)
        if not bad and batch.shares:
            return self._stage(batch)
        shares, start = [], 0
        for share in batch.shares:
            end = start + share.num_rows
            shares.append(replace(share, num_rows=sum(start <= place < end for place in good)))
            start = end
        staged = self._stage(Batch(batch.sequence, pieces, len(good), tuple(shares)))
        bad |= {good[place]: why for place, why in staged.rejected.items()}
        staged = replace(staged, shares=batch.shares, rejected=bad)
        if not batch.shares:
            self._staged[id(staged)] = staged, f"batch {batch.sequence}", good
        return staged

    def commit(self, staged: Staged) -> None:
        work = ", ".join(f"{share.line} {share.txid}" for share in staged.shares)
        _, work, good = self._staged.get(id(staged), (staged, work, []))
        try:
            self._try(work, lambda: self._commit(staged))
        except RowsRejected as error:
            reasons = {good[place]: why for place, why in error.reasons.items()}
            raise RowsRejected(reasons) from error

    def _sift(self, pieces: list[Any]) -> tuple[list[Any], list[int], dict[int, str]]:
        """The pieces without the rows that are rejected, the places of the others, and why."""
        rows = list(rows_of(pieces))
        bad = {
            place: "chaos rejects it"
            for place, row in enumerate(rows)
            if draw(self.seed, "row", repr(row)) < self.reject
        }
        good = [place for place in range(len(rows)) if place not in bad]
        return ([[rows[place] for place in good]] if bad else pieces), good, bad

    def _try(self, work: str, do: Callable[[], None]) -> None:
        self._tries[work] += 1
        chance = draw(self.seed, work, self._tries[work])
        if chance < self.busy:
            self.counts["busy"] += 1
            raise SinkBusy(0.01)
        if chance < self.before:
            self.counts["failed_before"] += 1
            raise ChaosError(f"chaos fails {work} before it is written")
        do()
        if chance < self.after:
            self.counts["failed_after"] += 1
            raise ChaosError(f"chaos fails {work} after it was written")


def spoil(sink: Sink[Any], **chances: Any) -> Counter[str]:
    """Make a sink misbehave from now on, as a Spoiler says; the result counts how often."""
    spoiler = Spoiler(sink, **chances)
    vars(sink).update(stage=spoiler.stage, commit=spoiler.commit)
    return spoiler.counts


def spoil_all(
    kit: TopologyTest, names: tuple[str, ...] = ("",), **chances: Any
) -> dict[str, Counter[str]]:
    """Spoil what the test kit keeps rows in; of the sinks whose names begin with one of these."""
    tables = kit._tables
    return {name: spoil(tables[name], **chances) for name in tables if name.startswith(names)}
