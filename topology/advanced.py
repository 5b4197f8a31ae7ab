"""Advanced bolts, which anchor, ack and fail tuples themselves, and their runner.

They are for joins, aggregations, and everything that keeps a tuple and answers later. `Collector`
only records what a bolt asks for; the pipeline carries it out, chunk by chunk. Pure: no I/O, no
clock.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable, iscoroutine, isgenerator
from itertools import repeat
from threading import get_ident
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
import numpy as np

from acker.acker import Edges, Owners, Trees
from topology.bolt import Component
from topology.calls import failure_of
from topology.errors import BoltError
from topology.record import DEFAULT_STREAM, SIGNALS, SKIP, Retry, To
from topology.steps import BoltStep

In = TypeVar("In")
Out = TypeVar("Out")
Value = TypeVar("Value")
_NO_VALUES = SIGNALS | {To}
NO_TREE = -1
Mark: TypeAlias = tuple[int, int, int, int]


class Tuple(msgspec.Struct, Generic[Value], eq=False):
    """A value, and the record, or records, that it is anchored to.

    `source` is the step or the topic it comes from, `stream` that step's stream: so a join knows
    its sides. A bolt may keep a tuple, and acks or fails it once. Otherwise it expires with its
    tree, and the record comes again, as another tuple.
    """

    value: Value
    tree: int  # this and the edge are the pipeline's business
    edge: int
    source: str
    stream: str = DEFAULT_STREAM
    is_settled: bool = False  # acked or failed by the bolt


class Emitted(NamedTuple):
    value: Any
    trees: tuple[int, ...]  # of its anchors
    stream: str
    task: int | None


@dataclass(frozen=True, slots=True)
class Emission:
    """Values for one stream, in the order of their emission.

    `trees` has the tree of each value's anchor, or NO_TREE if it has several or none: then
    `several` has them, by the value's index. `tasks` has the tasks of values that name one.
    """

    stream: str
    values: list[Any]
    trees: Trees
    several: dict[int, tuple[int, ...]]
    tasks: dict[int, int]


@dataclass(slots=True)
class Actions:
    """Emits, acks, fails and resets that advanced bolts asked for.

    Carry them out in this order: fail the failed tuples; send the values, so that their edges are
    known; then ack. Nothing can complete in between, as a tuple's own edge is outstanding until
    it is acked.
    """

    emitted: list[Emitted] = field(default_factory=list)
    acked: list[Tuple[Any]] = field(default_factory=list)
    failed: list[tuple[Tuple[Any], Exception]] = field(default_factory=list)
    reset: list[Tuple[Any]] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)  # of calls without a tuple

    def emissions(self) -> Iterator[Emission]:
        by_stream: dict[str, list[Emitted]] = {}
        for each in self.emitted:
            by_stream.setdefault(each.stream, []).append(each)
        for stream, found in by_stream.items():
            trees = [each.trees[0] if len(each.trees) == 1 else NO_TREE for each in found]
            several = {n: each.trees for n, each in enumerate(found) if len(each.trees) != 1}
            tasks = {n: each.task for n, each in enumerate(found) if each.task is not None}
            values = [each.value for each in found]
            yield Emission(stream, values, np.array(trees, np.int64), several, tasks)

    def acks(self) -> tuple[Trees, Edges]:
        count = len(self.acked)
        return (
            np.fromiter((each.tree for each in self.acked), np.int64, count),
            np.fromiter((each.edge for each in self.acked), np.uint64, count),
        )

    def mark(self) -> Mark:
        return len(self.emitted), len(self.acked), len(self.failed), len(self.reset)

    def cut(self, mark: Mark) -> None:
        """Drop the actions since `mark`, and unsettle the tuples settled since then."""
        emitted, acked, failed, reset = mark
        for tuple_ in self.acked[acked:]:
            tuple_.is_settled = False
        for tuple_, _error in self.failed[failed:]:
            tuple_.is_settled = False
        del self.emitted[emitted:], self.acked[acked:]
        del self.failed[failed:], self.reset[reset:]


class Collector(Generic[Out]):
    """Records what an advanced bolt does with its tuples.

    Valid on the owner thread, during a call of the bolt; any other use is a BoltError. If the
    call raises, none of its actions is carried out (see `AdvancedBolt.process`).
    """

    def __init__(
        self, step: str, streams: Iterable[str], record_ids: Callable[[Trees], Owners]
    ) -> None:
        self._step = step
        self._streams = frozenset([DEFAULT_STREAM, *streams])
        self._record_ids = record_ids
        self._thread = 0
        self._actions = Actions()
        self.now = 0.0
        """Seconds of the owner's monotonic clock; the test kit steps it."""

    def emit(
        self,
        value: Out,
        *,
        anchors: Tuple[Any] | Iterable[Tuple[Any]],
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
    ) -> None:
        """Send a value, anchored to one tuple, to several, or (with `()`) to none.

        The anchors' records are complete only when the value is, and if it fails, all of them are
        retried. Emit before you ack: a settled tuple is no anchor. A value without anchors delays
        no record, and is lost if it fails. `task` is for a stream that is grouped `direct()`.
        Raises BoltError.
        """
        if get_ident() != self._thread:
            raise self._out_of_place("emit")
        if value is None or value is SKIP or type(value) in _NO_VALUES:
            message = f"bolt '{self._step}' emitted {value!r}, expected a value (and stream=NAME)"
            raise BoltError(message)
        if stream not in self._streams:
            known = ", ".join(sorted(self._streams))
            raise BoltError(f"bolt '{self._step}' emitted to stream '{stream}', expected {known}")
        found = (anchors,) if isinstance(anchors, Tuple) else tuple(anchors)
        for anchor in found:
            if anchor.is_settled:
                raise self._settled("anchored a value to", anchor)
        trees = tuple(dict.fromkeys(anchor.tree for anchor in found))
        self._actions.emitted.append(Emitted(value, trees, stream, task))

    def ack(self, tuple_: Tuple[Any]) -> None:
        """Mark a tuple as processed. Raises BoltError if it is settled already."""
        if get_ident() != self._thread:
            raise self._out_of_place("ack")
        if tuple_.is_settled:
            raise self._settled("acked", tuple_)
        tuple_.is_settled = True
        self._actions.acked.append(tuple_)

    def fail(self, tuple_: Tuple[Any], error: Exception | None = None) -> None:
        """Fail a tuple: its record, or records, are retried.

        With a Reject as `error` they go to the dead letters; `Retry(after_seconds=)` sets the
        delay. Raises BoltError if the tuple is settled already.
        """
        if get_ident() != self._thread:
            raise self._out_of_place("fail")
        if tuple_.is_settled:
            raise self._settled("failed", tuple_)
        if error is None:
            error = Retry(f"bolt '{self._step}' failed the tuple")
        self._check(error, Exception, "failed a tuple with", "an exception")
        tuple_.is_settled = True
        self._actions.failed.append((tuple_, error))

    def reset_timeout(self, tuple_: Tuple[Any]) -> None:
        """Restart the timeout of a tuple's records: it is kept on purpose. Raises BoltError."""
        if get_ident() != self._thread:
            raise self._out_of_place("reset_timeout")
        self._check(tuple_, Tuple, "reset the timeout of", "a tuple")
        self._actions.reset.append(tuple_)

    def pending(self, tuples: Iterable[Tuple[Any]]) -> list[Tuple[Any]]:
        """Return the tuples that are not settled, and whose trees have not resolved.

        The record of a tuple that has expired, or that failed elsewhere, comes again. An
        aggregating bolt must leave such a tuple out, or the record would be counted twice.
        """
        if get_ident() != self._thread:
            raise self._out_of_place("pending")
        kept = [each for each in tuples if not each.is_settled]
        record_ids = self._record_ids(np.array([each.tree for each in kept], np.int64))
        pairs = zip(kept, record_ids.tolist(), strict=True)
        return [each for each, record_id in pairs if record_id >= 0]

    def _check(self, given: object, kind: type, did: str, expected: str) -> None:
        if not isinstance(given, kind):
            raise BoltError(f"bolt '{self._step}' {did} {given!r}, expected {expected}")

    def _settled(self, did: str, tuple_: Tuple[Any]) -> BoltError:
        return BoltError(
            f"bolt '{self._step}' {did} a tuple from '{tuple_.source}' that it had acked or "
            "failed before. Emit first, then ack or fail each tuple once"
        )

    def _out_of_place(self, did: str) -> BoltError:
        return BoltError(
            f"bolt '{self._step}' called {did} outside its own call or on another thread. "
            "The collector is valid while process, tick or drain runs, on their thread"
        )

    def begin(self, actions: Actions, now: float) -> None:
        """Record into `actions` until `end`. For the runner."""
        self._actions = actions
        self._thread = get_ident()
        self.now = now

    def end(self) -> None:
        self._thread = 0


class AdvancedBolt(Component, ABC, Generic[In, Out]):
    """A bolt that acks, fails and anchors tuples itself.

    All methods run on the owner thread, one call at a time, so the state needs no lock, and the
    bolt must not block. A step with several tasks has an instance per task. State is in memory
    only: after a crash every tuple that was not acked comes again. A tuple may be kept for the
    message timeout, and longer by `Collector.reset_timeout`. All kept tuples count against the
    in-flight limit of their partition (`max_pending`): a bolt that keeps as many stops the
    partition until it acks some, or until they expire.
    """

    @abstractmethod
    def process(self, tuple_: Tuple[In], collector: Collector[Out], /) -> None:
        """Process a tuple: emit its results, then ack or fail it, now or in a later call.

        If it raises, none of this call's actions is carried out, and the tuple fails with the
        exception: Reject and BoltError send its record to the dead letters, any other retries it.
        So emit, then ack, and only then forget the tuples you kept: those that are forgotten
        before a call raises have to expire first.
        """

    def tick(self, collector: Collector[Out], /) -> None:
        """Emit results that are due every `tick_seconds`, and ack their tuples.

        An exception is logged, and none of the call's actions is carried out.
        """

    def drain(self, collector: Collector[Out], /) -> None:
        """Settle the tuples you keep. Called, perhaps often, while the run ends.

        Also called while a partition of such tuples goes to another replica; tuples of other
        partitions may then still arrive. Tuples that are not acked by the deadline of the drain
        or the hand-over are read again.
        """


class AdvancedRunner:
    """Runs advanced bolts on the owner thread.

    `run`, `tick` and `drain` return the actions of a whole chunk or round, to be carried out in
    bulk; they never raise what a bolt raises.
    """

    def __init__(
        self,
        steps: Collection[BoltStep],
        record_ids: Callable[[Trees], Owners],
        indexes_of: Callable[[Owners], Owners],
    ) -> None:
        """`record_ids` maps trees to records, -1 for resolved ones (`Acker.owners`)."""
        self._collectors: dict[str, Collector[Any]] = {
            step.name: Collector(step.name, step.streams, record_ids) for step in steps
        }
        self.kept = {
            step.name: HeldTuples(step.timeout_seconds, record_ids, indexes_of) for step in steps
        }
        """The tuples that each step's bolts keep."""

    def run(
        self,
        step: BoltStep,
        values: Sequence[Any],
        trees: Trees,
        edges: Edges,
        now: float,
        *,
        source: str,
        stream: str = DEFAULT_STREAM,
        tasks: Iterable[int] | None = None,
    ) -> Actions:
        """Have the step's bolt process each value, in order, in its task (the first, if none)."""
        collector = self._collectors[step.name]
        tuples = list(
            map(Tuple, values, trees.tolist(), edges.tolist(), repeat(source), repeat(stream))
        )
        processes = [bolt.process for bolt in _bolts(step)]
        actions = Actions()
        collector.begin(actions, now)
        for tuple_, task in zip(tuples, repeat(0) if tasks is None else tasks, strict=False):
            mark = actions.mark()
            try:
                returned = processes[task](tuple_, collector)
                if returned is not None:
                    raise _misreturned(step, returned)  # noqa: TRY301 - as if the bolt had raised
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # it may raise anything
                actions.cut(mark)
                tuple_.is_settled = True
                actions.failed.append((tuple_, failure_of(step.name, error)))
        collector.end()
        self._settle(step, actions, now)
        if kept := [each for each in tuples if not each.is_settled]:
            self.kept[step.name].add(kept, now)
        return actions

    def tick(self, step: BoltStep, now: float) -> Actions:
        """Call the `tick` of every task. Exceptions are in the actions' `errors`."""
        return self._round(step, now, [bolt.tick for bolt in _bolts(step)])

    def drain(self, step: BoltStep, now: float) -> Actions:
        """Call the `drain` of every task that has one, if the step keeps tuples."""
        if not self.kept[step.name]:
            return Actions()
        drains = [b.drain for b in _bolts(step) if type(b).drain is not AdvancedBolt.drain]
        return self._round(step, now, drains)

    def overdue(self, step: BoltStep, now: float) -> Actions:
        """Fail the tuples that the step's bolts kept for longer than its timeout.

        They are not settled: a bolt may ack one later, to no effect.
        """
        tuples = self.kept[step.name].take_overdue(now)
        if not tuples:
            return Actions()
        error = TimeoutError(late(step.name, f"timeout_seconds={step.timeout_seconds:g}"))
        return Actions(failed=[(each, error) for each in tuples])

    def holders(self) -> dict[int, str]:
        """Return the steps that keep tuples, by the record or compound tree of a tuple."""
        return {
            record_id: step
            for step, kept in self.kept.items()
            for record_id in kept.records.values()
        }

    def forget_resolved(self) -> None:
        """Forget the tuples whose trees have resolved: their records come again, or are done."""
        for kept in self.kept.values():
            if kept:
                kept.forget_resolved()

    def _round(
        self, step: BoltStep, now: float, calls: list[Callable[[Collector[Any]], Any]]
    ) -> Actions:
        collector, actions = self._collectors[step.name], Actions()
        collector.begin(actions, now)
        for call in calls:
            mark = actions.mark()
            try:
                call(collector)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # it may raise anything
                actions.cut(mark)
                actions.errors.append(failure_of(step.name, error))
        collector.end()
        self._settle(step, actions, now)
        return actions

    def _settle(self, step: BoltStep, actions: Actions, now: float) -> None:
        kept = self.kept[step.name]
        if kept:
            kept.drop(actions.acked)
            kept.drop(tuple_ for tuple_, _error in actions.failed)
            kept.reset(actions.reset, now)


def _bolts(step: BoltStep) -> "Sequence[AdvancedBolt[Any, Any]]":
    return cast("Sequence[AdvancedBolt[Any, Any]]", step.bolts)


def late(step: str, limit: str) -> str:
    return f"bolt '{step}' neither acked nor failed a tuple in time: {limit}"


def _misreturned(step: BoltStep, returned: Any) -> BoltError:
    if iscoroutine(returned) or isgenerator(returned):
        returned.close()
    kind = "an awaitable" if isawaitable(returned) else type(returned).__name__
    return BoltError(
        f"bolt '{step.name}': found {kind} returned from process, expected None. An advanced bolt "
        "emits to its collector, and is no generator nor coroutine function"
    )


class HeldTuples:
    """The tuples of one step that are neither acked nor failed.

    Tuples of resolved trees stay until `forget_resolved`. Times are of the clock of `Acker.expire`.
    """

    def __init__(
        self,
        timeout_seconds: float | None,
        record_ids: Callable[[Trees], Owners],
        indexes_of: Callable[[Owners], Owners],
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._record_ids = record_ids
        self._indexes_of = indexes_of
        self.records: dict[Tuple[Any], int] = {}
        """The record, or compound tree, of each tuple."""
        self._since: dict[Tuple[Any], float] = {}  # the oldest first; empty without a timeout
        self.by_partition: Counter[int] = Counter()
        """Number of tuples, by partition index."""

    def __len__(self) -> int:
        return len(self.records)

    def add(self, tuples: Collection[Tuple[Any]], now: float) -> None:
        record_ids = self._record_ids_of(tuples)
        self.records.update(zip(tuples, record_ids.tolist(), strict=True))
        self.by_partition += self._counted(record_ids)
        if self._timeout_seconds is not None:
            self._since.update(dict.fromkeys(tuples, now))

    def drop(self, tuples: Iterable[Tuple[Any]]) -> None:
        """Remove tuples; those that were not kept are ignored."""
        pop = self.records.pop
        dropped = [each for each in tuples if each in self.records]
        if dropped:
            record_ids = np.array([pop(each) for each in dropped], np.int64)
            self.by_partition -= self._counted(record_ids)
        for each in dropped if self._since else ():
            self._since.pop(each, None)

    def reset(self, tuples: Iterable[Tuple[Any]], now: float) -> None:
        for each in tuples:
            if self._since.pop(each, None) is not None:
                self._since[each] = now

    def take_overdue(self, now: float) -> list[Tuple[Any]]:
        """Remove and return the tuples that were kept for longer than the bolt's timeout."""
        overdue = []
        for each, since in self._since.items():
            if self._timeout_seconds is None or since + self._timeout_seconds > now:
                break
            overdue.append(each)
        self.drop(overdue)
        return overdue

    def forget_resolved(self) -> None:
        record_ids = self._record_ids_of(self.records)
        resolved = record_ids < 0
        if resolved.any():
            pairs = zip(list(self.records), resolved.tolist(), strict=True)
            self.drop([each for each, is_resolved in pairs if is_resolved])

    def _record_ids_of(self, tuples: Collection[Tuple[Any]]) -> Owners:
        trees = np.fromiter((each.tree for each in tuples), np.int64, len(tuples))
        return self._record_ids(trees)

    def _counted(self, record_ids: Owners) -> Counter[int]:
        indexes, counts = np.unique(self._indexes_of(record_ids), return_counts=True)
        return Counter(dict(zip(indexes.tolist(), counts.tolist(), strict=True)))
