"""Calls advanced bolts over chunks of values and says what they asked for."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import isawaitable, iscoroutine, isgenerator
from itertools import repeat
from typing import Any, cast

import numpy as np

from acker.acker import Edges, Owners, Trees
from topology.advanced import Actions, AdvancedBolt, Collector, Tuple
from topology.calls import failure_of
from topology.errors import BoltError
from topology.signals import DEFAULT_STREAM
from topology.steps import BoltStep


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
        places: Callable[[Owners], Owners],
    ) -> None:
        """`owners` says whose trees are, -1 for those resolved (`Acker.owners`).

        `places` says to which partition's records owners belong.
        """
        self._collectors: dict[str, Collector[Any]] = {
            step.name: Collector(step.name, step.streams, record_ids) for step in steps
        }
        self._kept = {step.name: Kept(step.timeout_seconds, record_ids, places) for step in steps}

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
        places = repeat(0) if tasks is None else tasks
        collector.begin(now)
        mark = collector.mark
        for tuple_, task in zip(tuples, places, strict=False):
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
        """Fail the tuples that the step's bolts have kept for longer than its time-out.

        They are not settled: a bolt that acks one later does nothing wrong, and nothing happens.
        """
        tuples = self._kept[step.name].take_overdue(now)
        if not tuples:
            return Actions()
        error = TimeoutError(late(step.name, f"timeout_seconds={step.timeout_seconds:g}"))
        return Actions(failed=[(each, error) for each in tuples])

    def held(self, step: BoltStep) -> int:
        """How many tuples the step's bolts keep, the resolved ones too until they are forgotten."""
        return len(self._kept[step.name])

    def held_by_place(self, step: BoltStep) -> Mapping[int, int]:
        """The same, by the place of the partition whose records they are."""
        return self._kept[step.name].by_partition

    def holds(self, place: int) -> bool:
        """Whether a bolt keeps a tuple of a partition, by its place."""
        return any(kept.by_partition[place] for kept in self._kept.values())

    def holders(self) -> dict[int, str]:
        """The step that keeps a tuple, by the record or joint tree that the tuple belongs to."""
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
    """What is said of a tuple that a bolt kept for too long."""
    return f"bolt '{step}' neither acked nor failed a tuple in time: {limit}"


def _misreturned(step: BoltStep, returned: Any) -> BoltError:
    """The error of a `process` that returned something, which nobody would ever see."""
    if iscoroutine(returned) or isgenerator(returned):
        returned.close()
    kind = "an awaitable" if isawaitable(returned) else type(returned).__name__
    return BoltError(
        f"bolt '{step.name}' returned {kind} from process; an advanced bolt returns None, "
        "emits to its collector, and is no generator nor coroutine function"
    )


class Kept:
    """The tuples of one step that are neither acked nor failed. The owner thread calls it.

    Those whose trees have resolved stay until `forget_resolved`. Times are `Acker.expire`'s.
    """

    def __init__(
        self,
        timeout_seconds: float | None,
        record_ids: Callable[[Trees], Owners],
        places: Callable[[Owners], Owners],
    ) -> None:
        """`places` says to which partition's records owners belong."""
        self._timeout_seconds = timeout_seconds
        self._record_ids = record_ids
        self._places = places
        self._record_id: dict[Tuple[Any], int] = {}  # a record, or a joint tree
        self._since: dict[Tuple[Any], float] = {}  # the oldest first; empty without a time-out
        self.by_partition: Counter[int] = Counter()
        """How many there are, by their partition's place."""

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._record_id)

    def of_record_ids(self) -> Iterable[int]:
        """The record, or joint tree, of each."""
        return self._record_id.values()

    def add(self, tuples: Collection[Tuple[Any]], now: float) -> None:
        """Learn of tuples that a call has left unsettled."""
        record_ids = self._record_ids_of(tuples)
        self._record_id.update(zip(tuples, record_ids.tolist(), strict=True))
        self.by_partition += self._counted(record_ids)
        if self._timeout_seconds is not None:
            self._since.update(dict.fromkeys(tuples, now))

    def drop(self, tuples: Iterable[Tuple[Any]]) -> None:
        """Learn that tuples were acked or failed; those that were not kept are ignored."""
        pop = self._record_id.pop
        dropped = [each for each in tuples if each in self._record_id]
        if dropped:
            record_ids = np.array([pop(each) for each in dropped], np.int64)
            self.by_partition -= self._counted(record_ids)
        for each in dropped if self._since else ():
            self._since.pop(each, None)

    def reset(self, tuples: Iterable[Tuple[Any]], now: float) -> None:
        """Let the time of tuples start anew."""
        for each in tuples:
            if self._since.pop(each, None) is not None:
                self._since[each] = now

    def take_overdue(self, now: float) -> list[Tuple[Any]]:
        """Those kept for longer than the bolt's time-out; they are kept no more."""
        overdue = []
        for each, since in self._since.items():
            if self._timeout_seconds is None or since + self._timeout_seconds > now:
                break
            overdue.append(each)
        self.drop(overdue)
        return overdue

    def forget_resolved(self) -> None:
        """Forget those whose trees have resolved: their records come again, or are done."""
        record_ids = self._record_ids_of(self._record_id)
        resolved = record_ids < 0
        if resolved.any():
            pairs = zip(list(self._record_id), resolved.tolist(), strict=True)
            self.drop([each for each, is_resolved in pairs if is_resolved])

    def _record_ids_of(self, tuples: Collection[Tuple[Any]]) -> Owners:
        trees = np.fromiter((each.tree for each in tuples), np.int64, len(tuples))
        return self._record_ids(trees)

    def _counted(self, record_ids: Owners) -> Counter[int]:
        places, counts = np.unique(self._places(record_ids), return_counts=True)
        return Counter(dict(zip(places.tolist(), counts.tolist(), strict=True)))
