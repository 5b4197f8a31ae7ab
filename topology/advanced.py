"""Advanced bolts: bolts that anchor, ack and fail tuples themselves.

For what one value in and some values out cannot say: joins, aggregations, anything that
keeps a tuple and answers later. `Collector` only records what a bolt asks for; the pipeline
carries it out, chunk by chunk. Pure: no I/O, no clock of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import numpy as np

from acker.acker import Edges, Owners, Trees
from topology.bolt import Component
from topology.errors import BoltError
from topology.signals import DEFAULT_STREAM, SIGNALS, SKIP, Retry, To

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
    `several` has them, by the value's place. `tasks` has the tasks of values that name one.
    """

    stream: str
    values: list[Any]
    trees: Trees
    several: dict[int, tuple[int, ...]]
    tasks: dict[int, int]


@dataclass(slots=True)
class Actions:
    """Emits, acks, fails and resets.

    To be carried out so: what failed fails; then the values go on and their edges become known;
    then what is acked is acked. In between nothing can complete by mistake, as a tuple's own
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
        """The values emitted, stream by stream."""
        trees = np.array(self.trees, np.int64)
        names = list(dict.fromkeys(self.streams))
        if len(names) == 1:
            yield Emission(names[0], self.values, trees, self.several, self.tasks)
            return
        for name in names:
            places = [place for place, stream in enumerate(self.streams) if stream == name]
            yield Emission(
                name,
                [self.values[place] for place in places],
                trees[places],
                moved(self.several, places),
                moved(self.tasks, places),
            )

    def acks(self) -> tuple[Trees, Edges]:
        """Trees and edges of the tuples acked."""
        count = len(self.acked)
        return (
            np.fromiter((each.tree for each in self.acked), np.int64, count),
            np.fromiter((each.edge for each in self.acked), np.uint64, count),
        )

    def resets(self) -> Trees:
        """The trees whose time starts anew."""
        return np.fromiter((each.tree for each in self.reset), np.int64, len(self.reset))

    def mark(self) -> Mark:
        """How much is recorded by now."""
        return len(self.values), len(self.acked), len(self.failed), len(self.reset)

    def cut(self, mark: Mark) -> None:
        """Forget what was recorded since `mark`: the tuples settled since then are not."""
        values, acked, failed, reset = mark
        for tuple_ in self.acked[acked:]:
            tuple_.is_settled = False
        for tuple_, _error in self.failed[failed:]:
            tuple_.is_settled = False
        del self.values[values:], self.trees[values:], self.streams[values:]
        del self.acked[acked:], self.failed[failed:], self.reset[reset:]
        for place in [place for place in self.several if place >= values]:
            del self.several[place]
        for place in [place for place in self.tasks if place >= values]:
            del self.tasks[place]


def moved(kept: dict[int, Any], places: list[int]) -> dict[int, Any]:
    """What stands at some of the places, by where these places stand now."""
    if not kept:
        return {}
    return {now: kept[place] for now, place in enumerate(places) if place in kept}


class Collector(Generic[Out]):
    """Takes what an advanced bolt does with its tuples.

    It is good on the owner thread, while the bolt is called; anything else is a BoltError, so
    that nothing gets lost between threads. What a call recorded counts when it returns: if it
    raises, nothing of it has happened (see `AdvancedBolt.process`).
    """

    def __init__(
        self, step: str, streams: Iterable[str], record_ids: Callable[[Trees], Owners]
    ) -> None:
        """`streams` are those besides the default one; `owners` says -1 for resolved trees."""
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
        of them are tried again. Emit before you ack: a tuple that is settled anchors nothing
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
            message = f"bolt '{self._step}' emitted to stream '{stream}'; it has {allowed}"
            raise BoltError(message)
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
        """Say that a tuple is processed. Raises BoltError if it is settled already."""
        if get_ident() != self._thread:
            raise self._out_of_place("ack")
        if tuple_.is_settled:
            raise self._settled("acked", tuple_)
        tuple_.is_settled = True
        self._actions.acked.append(tuple_)

    def fail(self, tuple_: Tuple[Any], error: Exception | None = None) -> None:
        """Say that a tuple cannot be processed: its record, or records, are tried again.

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
        """Let the time of a tuple's records start anew: it is kept on purpose, not lost.

        Raises BoltError for what is no tuple.
        """
        if get_ident() != self._thread:
            raise self._out_of_place("reset_timeout")
        self._check(tuple_, Tuple, "reset the time of", "a tuple")
        self._actions.reset.append(tuple_)

    def pending(self, tuples: Iterable[Tuple[Any]]) -> list[Tuple[Any]]:
        """Those of the tuples that still count: neither settled, nor is their tree resolved.

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
        """The tree of anchors that have one; else they are noted beside the value."""
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
        """Record anew; only the calling thread may."""
        self._actions = Actions()
        self._thread = get_ident()
        self.now = now

    def end(self) -> Actions:
        """What was recorded since `begin`."""
        self._thread = 0
        return self._actions

    def mark(self) -> Mark:
        """Where a call of the bolt begins, for `undo`."""
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
    """A step with its tuples in its own hands.

    Everything runs on the owner thread, one call at a time, so its state needs no lock; and
    while it runs nothing else does: it must not wait. A step with several tasks has an instance
    per task. State is in memory only: after a crash every tuple that was not acked comes again.
    A tuple may be kept for the message time-out, and longer by `Collector.reset_timeout`. All
    that is kept counts against its partition's window (`max_pending`): a bolt that keeps as
    much stops the partition until it acks some, or until they expire.
    """

    @abstractmethod
    def process(self, tuple_: Tuple[In], collector: Collector[Out], /) -> None:
        """Take a tuple: emit what comes of it, then ack or fail it, now or in a later call.

        If it raises, nothing that it asked of the collector in this call has happened, and the
        tuple fails with the exception: Reject and BoltError send its record to the dead
        letters, everything else has it tried again. So emit, then ack, and only then forget
        what you kept: tuples that are forgotten before a call raises have to expire first.
        """

    def tick(self, collector: Collector[Out], /) -> None:
        """Emit what is due every `tick_seconds`, and ack what it was made of.

        If it raises, that is logged, and nothing that it asked for has happened.
        """

    def drain(self, collector: Collector[Out], /) -> None:
        """Answer what you keep. Called, perhaps often, while the run ends: no new records come.

        Called, too, while a partition goes to another replica and you keep tuples of it; those of
        other partitions then come on. What is not acked by the drain's or the hand-over's deadline
        is read again, at the next start or over there.
        """
