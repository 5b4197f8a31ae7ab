"""Advanced bolts, which anchor, ack and fail tuples themselves, and their runner.

For what one value in and some values out cannot say: joins, aggregations, anything that
keeps a tuple and answers later. `Collector` only records what a bolt asks for; the pipeline
carries it out, chunk by chunk. Pure: no I/O, no clock.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable, iscoroutine, isgenerator
from itertools import repeat
from threading import get_ident
from typing import Any, Generic, TypeAlias, TypeVar, cast

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
    """A value on its way, and the record, or records, that it is anchored to.

    `source` is the step or the topic it comes from, `stream` that step's stream: so a join knows
    its sides. A bolt may keep a tuple and acks or fails it once. What it never acks nor fails
    expires with its tree; then the record comes again, as another tuple.
    """

    value: Value
    tree: int  # this and the edge are the pipeline's business
    edge: int
    source: str
    stream: str = DEFAULT_STREAM
    is_settled: bool = False  # acked or failed by the bolt


@dataclass(frozen=True, slots=True)
class Emission:
    """Values for one stream, in the order in which they were emitted.

    `trees` has the tree of each value's anchor, and NO_TREE where it has several or none: then
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

    Carry them out in this order: what failed fails; then the values go on and their edges become
    known; then what is acked is acked. In between nothing can complete by mistake, as a tuple's own
    edge is outstanding until it is acked.
    """

    values: list[Any] = field(default_factory=list)
    trees: list[int] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    several: dict[int, tuple[int, ...]] = field(default_factory=dict)
    tasks: dict[int, int] = field(default_factory=dict)
    acked: list[Tuple[Any]] = field(default_factory=list)
    failed: list[tuple[Tuple[Any], Exception]] = field(default_factory=list)
    reset: list[Tuple[Any]] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)  # of calls that had no tuple

    def emissions(self) -> Iterator[Emission]:
        trees = np.array(self.trees, np.int64)
        names = list(dict.fromkeys(self.streams))
        if len(names) == 1:
            yield Emission(names[0], self.values, trees, self.several, self.tasks)
            return
        for name in names:
            indices = [index for index, stream in enumerate(self.streams) if stream == name]
            yield Emission(
                name,
                [self.values[index] for index in indices],
                trees[indices],
                moved(self.several, indices),
                moved(self.tasks, indices),
            )

    def acks(self) -> tuple[Trees, Edges]:
        count = len(self.acked)
        return (
            np.fromiter((each.tree for each in self.acked), np.int64, count),
            np.fromiter((each.edge for each in self.acked), np.uint64, count),
        )

    def resets(self) -> Trees:
        """Return the trees whose time starts anew."""
        return np.fromiter((each.tree for each in self.reset), np.int64, len(self.reset))

    def mark(self) -> Mark:
        return len(self.values), len(self.acked), len(self.failed), len(self.reset)

    def cut(self, mark: Mark) -> None:
        """Drop what was recorded since `mark`, and unsettle the tuples settled since then."""
        values, acked, failed, reset = mark
        for tuple_ in self.acked[acked:]:
            tuple_.is_settled = False
        for tuple_, _error in self.failed[failed:]:
            tuple_.is_settled = False
        del self.values[values:], self.trees[values:], self.streams[values:]
        del self.acked[acked:], self.failed[failed:], self.reset[reset:]
        for index in [index for index in self.several if index >= values]:
            del self.several[index]
        for index in [index for index in self.tasks if index >= values]:
            del self.tasks[index]


def moved(kept: dict[int, Any], indices: list[int]) -> dict[int, Any]:
    """Return the entries of `indices`, by their new index."""
    if not kept:
        return {}
    return {now: kept[index] for now, index in enumerate(indices) if index in kept}


class Collector(Generic[Out]):
    """Records what an advanced bolt does with its tuples.

    Valid on the owner thread, while the bolt is called; anything else is a BoltError, so that
    nothing gets lost between threads. What a call recorded counts when it returns: if it raises,
    nothing of it has happened (see `AdvancedBolt.process`).
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
        """Send a value on, anchored to one tuple, to several, or (with `()`) to none.

        No anchor's record is complete before the value is done with, and if that fails, all
        of them are retried. Emit before you ack: a settled tuple anchors nothing
        more. With no anchor nobody waits for the value, and if it fails it is lost. `task` is
        for a stream that is grouped `direct()`. Raises BoltError.
        """
        if get_ident() != self._thread:
            raise self._out_of_place("emit")
        if value is None or value is SKIP or type(value) in _NO_VALUES:
            message = f"bolt '{self._step}' emitted {value!r}; a value is allowed, and stream=NAME"
            raise BoltError(message)
        if stream not in self._streams:
            allowed = ", ".join(sorted(self._streams))
            raise BoltError(f"bolt '{self._step}' emitted to stream '{stream}'; it has {allowed}")
        actions = self._actions
        if isinstance(anchors, Tuple):
            if anchors.is_settled:
                raise self._settled("anchored a value to", anchors)
            actions.trees.append(anchors.tree)
        else:
            actions.trees.append(self._anchor(anchors))
        actions.values.append(value)
        actions.streams.append(stream)
        if task is not None:
            actions.tasks[len(actions.values) - 1] = task

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

        With a Reject as `error` they go to the dead letters; `Retry(after_seconds=)` says
        when. Raises BoltError if the tuple is settled already.
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
        """Restart the timeout of a tuple's records: it is kept on purpose, not lost.

        Raises BoltError for what is no tuple.
        """
        if get_ident() != self._thread:
            raise self._out_of_place("reset_timeout")
        self._check(tuple_, Tuple, "reset the time of", "a tuple")
        self._actions.reset.append(tuple_)

    def pending(self, tuples: Iterable[Tuple[Any]]) -> list[Tuple[Any]]:
        """Return those of the tuples that are not settled and whose tree has not resolved.

        The record of one that has expired, or that failed elsewhere, comes again. A bolt that
        adds up what it keeps leaves such tuples out, or the record would be counted twice.
        """
        if get_ident() != self._thread:
            raise self._out_of_place("pending")
        kept = [each for each in tuples if not each.is_settled]
        record_ids = self._record_ids(np.array([each.tree for each in kept], np.int64))
        return [
            each
            for each, record_id in zip(kept, record_ids.tolist(), strict=True)
            if record_id >= 0
        ]

    def _anchor(self, anchors: Iterable[Tuple[Any]]) -> int:
        """Return the tree of anchors that have one; else note them beside the value."""
        trees: dict[int, None] = {}
        for anchor in anchors:
            if anchor.is_settled:
                raise self._settled("anchored a value to", anchor)
            trees[anchor.tree] = None
        if len(trees) == 1:
            return next(iter(trees))
        self._actions.several[len(self._actions.values)] = tuple(trees)
        return NO_TREE

    def _check(self, given: object, kind: type, did: str, allowed: str) -> None:
        if not isinstance(given, kind):
            raise BoltError(f"bolt '{self._step}' {did} {given!r}; {allowed} is allowed")

    def _settled(self, did: str, tuple_: Tuple[Any]) -> BoltError:
        return BoltError(
            f"bolt '{self._step}' {did} a tuple from '{tuple_.source}' that it had acked or "
            "failed before; emit first, then ack or fail each tuple once"
        )

    def _out_of_place(self, did: str) -> BoltError:
        return BoltError(
            f"bolt '{self._step}' called {did} outside its own call or on another thread; "
            "the collector is good while process, tick or drain runs, on their thread"
        )

    # For the runner

    def begin(self, now: float) -> None:
        self._actions = Actions()
        self._thread = get_ident()
        self.now = now

    def end(self) -> Actions:
        self._thread = 0
        return self._actions

    def mark(self) -> Mark:
        return self._actions.mark()

    def undo(self, mark: Mark, error: Exception, tuple_: Tuple[Any] | None) -> None:
        """Take back all that a call recorded that raised, and fail its own tuple, if any."""
        actions = self._actions
        actions.cut(mark)
        if tuple_ is None:
            actions.errors.append(error)
        else:
            tuple_.is_settled = True
            actions.failed.append((tuple_, error))


class AdvancedBolt(Component, ABC, Generic[In, Out]):
    """A bolt that acks, fails and anchors tuples itself.

    Everything runs on the owner thread, one call at a time, so its state needs no lock; and
    while it runs nothing else does: it must not wait. A step with several tasks has an instance
    per task. State is in memory only: after a crash every tuple that was not acked comes again.
    A tuple may be kept for the message timeout, and longer by `Collector.reset_timeout`. All
    that is kept counts against its partition's in-flight limit (`max_pending`): a bolt that keeps
    as much stops the partition until it acks some, or until they expire.
    """

    @abstractmethod
    def process(self, tuple_: Tuple[In], collector: Collector[Out], /) -> None:
        """Process a tuple: emit what comes of it, then ack or fail it, now or in a later call.

        If it raises, nothing that it asked of the collector in this call has happened, and the
        tuple fails with the exception: Reject and BoltError send its record to the dead
        letters, everything else has it retried. So emit, then ack, and only then forget
        what you kept: tuples that are forgotten before a call raises have to expire first.
        """

    def tick(self, collector: Collector[Out], /) -> None:
        """Emit what is due every `tick_seconds`, and ack what it was made of.

        If it raises, that is logged, and nothing that it asked for has happened.
        """

    def drain(self, collector: Collector[Out], /) -> None:
        """Settle the tuples you keep. Called, perhaps often, while the run ends.

        Called, too, while a partition goes to another replica and you keep tuples of it; those of
        other partitions then come on. What is not acked by the drain's or the hand-over's deadline
        is read again, at the next start or over there.
        """


class AdvancedRunner:
    """Runs advanced bolts on the owner thread, which calls everything.

    `run`, `tick` and `drain` return the actions of a whole chunk or round, to be carried out
    in bulk. A bolt that raises never makes them raise. The runner knows the tuples that bolts
    keep: those that a chunk left neither acked nor failed.
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
        self._kept = {
            step.name: Kept(step.timeout_seconds, record_ids, indexes_of) for step in steps
        }

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
        """Have the step's bolt process each value, in order, in its task (the first, if none).

        `source` and `stream` say where the values come from.
        """
        collector = self._collectors[step.name]
        tuples = list(
            map(Tuple, values, trees.tolist(), edges.tolist(), repeat(source), repeat(stream))
        )
        processes = [bolt.process for bolt in _bolts(step)]
        numbers = repeat(0) if tasks is None else tasks
        collector.begin(now)
        mark = collector.mark
        for tuple_, task in zip(tuples, numbers, strict=False):
            before = mark()
            try:
                returned = processes[task](tuple_, collector)
                if returned is not None:
                    raise _misreturned(step, returned)  # noqa: TRY301 - as if the bolt had raised
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # it may raise anything
                collector.undo(before, failure_of(step.name, error), tuple_)
        return self._ended(step, collector, [each for each in tuples if not each.is_settled])

    def tick(self, step: BoltStep, now: float) -> Actions:
        """Call the `tick` of every task. What one raises is in the actions' `errors`."""
        return self._round(step, now, [bolt.tick for bolt in _bolts(step)])

    def drain(self, step: BoltStep, now: float) -> Actions:
        """Call the `drain` of every task that has one, as long as the step keeps tuples."""
        if not self._kept[step.name]:
            return Actions()
        drains = [b.drain for b in _bolts(step) if type(b).drain is not AdvancedBolt.drain]
        return self._round(step, now, drains)

    def overdue(self, step: BoltStep, now: float) -> Actions:
        """Fail the tuples that the step's bolts have kept for longer than its timeout.

        They are not settled: a bolt that acks one later does nothing wrong, and nothing happens.
        """
        tuples = self._kept[step.name].take_overdue(now)
        if not tuples:
            return Actions()
        error = TimeoutError(late(step.name, f"timeout_seconds={step.timeout_seconds:g}"))
        return Actions(failed=[(each, error) for each in tuples])

    def held(self, step: BoltStep) -> int:
        """Count the tuples that the step's bolts keep, resolved ones too until forgotten."""
        return len(self._kept[step.name])

    def held_by_partition(self, step: BoltStep) -> Mapping[int, int]:
        """The same, by partition index."""
        return self._kept[step.name].by_partition

    def holds(self, index: int) -> bool:
        """Whether a bolt keeps a tuple of a partition."""
        return any(kept.by_partition[index] for kept in self._kept.values())

    def holders(self) -> dict[int, str]:
        """Return the step that keeps a tuple, by the record or compound tree of the tuple."""
        return {
            record_id: step
            for step, kept in self._kept.items()
            for record_id in kept.of_record_ids()
        }

    def forget_resolved(self) -> None:
        """Forget the tuples whose trees have resolved: their records come again, or are done."""
        for kept in self._kept.values():
            if kept:
                kept.forget_resolved()

    def _round(
        self, step: BoltStep, now: float, calls: list[Callable[[Collector[Any]], Any]]
    ) -> Actions:
        collector = self._collectors[step.name]
        collector.begin(now)
        for call in calls:
            before = collector.mark()
            try:
                call(collector)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # it may raise anything
                collector.undo(before, failure_of(step.name, error), None)
        return self._ended(step, collector, [])

    def _ended(self, step: BoltStep, collector: Collector[Any], kept: list[Tuple[Any]]) -> Actions:
        actions = collector.end()
        of_step = self._kept[step.name]
        if of_step:
            of_step.drop(actions.acked)
            of_step.drop(tuple_ for tuple_, _error in actions.failed)
            of_step.reset(actions.reset, collector.now)
        if kept:
            of_step.add(kept, collector.now)
        return actions


def _bolts(step: BoltStep) -> "Sequence[AdvancedBolt[Any, Any]]":
    return cast("Sequence[AdvancedBolt[Any, Any]]", step.bolts)


def late(step: str, limit: str) -> str:
    return f"bolt '{step}' neither acked nor failed a tuple in time: {limit}"


def _misreturned(step: BoltStep, returned: Any) -> BoltError:
    """Return the error of a `process` that returned something, which nobody would ever see."""
    if iscoroutine(returned) or isgenerator(returned):
        returned.close()
    kind = "an awaitable" if isawaitable(returned) else type(returned).__name__
    return BoltError(
        f"bolt '{step.name}' returned {kind} from process; an advanced bolt returns None, "
        "emits to its collector, and is no generator nor coroutine function"
    )


class Kept:
    """The tuples of one step that are neither acked nor failed.

    Those whose trees have resolved stay until `forget_resolved`. Times are `Acker.expire`'s.
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
        self._record_id: dict[Tuple[Any], int] = {}  # a record, or a compound tree
        self._since: dict[Tuple[Any], float] = {}  # the oldest first; empty without a timeout
        self.by_partition: Counter[int] = Counter()
        """Number of tuples, by partition index."""

    def __len__(self) -> int:
        return len(self._record_id)

    def of_record_ids(self) -> Iterable[int]:
        return self._record_id.values()

    def add(self, tuples: Collection[Tuple[Any]], now: float) -> None:
        record_ids = self._record_ids_of(tuples)
        self._record_id.update(zip(tuples, record_ids.tolist(), strict=True))
        self.by_partition += self._counted(record_ids)
        if self._timeout_seconds is not None:
            self._since.update(dict.fromkeys(tuples, now))

    def drop(self, tuples: Iterable[Tuple[Any]]) -> None:
        """Remove tuples that were acked or failed; those that were not kept are ignored."""
        pop = self._record_id.pop
        dropped = [each for each in tuples if each in self._record_id]
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
        """Remove and return those kept for longer than the bolt's timeout."""
        overdue = []
        for each, since in self._since.items():
            if self._timeout_seconds is None or since + self._timeout_seconds > now:
                break
            overdue.append(each)
        self.drop(overdue)
        return overdue

    def forget_resolved(self) -> None:
        record_ids = self._record_ids_of(self._record_id)
        resolved = record_ids < 0
        if resolved.any():
            pairs = zip(list(self._record_id), resolved.tolist(), strict=True)
            self.drop([each for each, is_resolved in pairs if is_resolved])

    def _record_ids_of(self, tuples: Collection[Tuple[Any]]) -> Owners:
        trees = np.fromiter((each.tree for each in tuples), np.int64, len(tuples))
        return self._record_ids(trees)

    def _counted(self, record_ids: Owners) -> Counter[int]:
        indexes, counts = np.unique(self._indexes_of(record_ids), return_counts=True)
        return Counter(dict(zip(indexes.tolist(), counts.tolist(), strict=True)))
