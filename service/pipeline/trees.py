"""The trees of all records: those that are done, that failed (and why), and that are too old.

The acker is Storm's, and holds one tree for each record. Storm anchors a tuple of several records
(a join's) in each of their trees; here it travels in a compound tree, so that it is one tree and
one edge like any other. A compound tree is the child of the trees of its anchors: it has an edge in
each, which is acked when it is acked, and they fail when it fails or expires. A tuple without an
anchor gets a compound tree without anchors.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import structlog

from acker.acker import Acker, Edges, Flags, Trees
from partition.records import MAX_PARTITION_INDEX, OFFSET_BITS, OFFSET_MASK, RecordIds
from topology.advanced import Emission, late
from topology.calls import Failure
from topology.monitoring import text_of

log = structlog.get_logger()

_EXPIRE_EVERY_SECONDS = 0.5
_TOUCH_SECONDS = 1e-5  # per value that waits: looking at all of them costs a hundredth of it

_Anchors: TypeAlias = tuple[int, ...]  # their trees

# A compound tree's id is no record's: its partition index is above all that partitions have.
_FIRST = MAX_PARTITION_INDEX << OFFSET_BITS


class ResolvedRecords(NamedTuple):
    acked: RecordIds
    flags: Flags
    failed: list[tuple[int, Failure]]

    def __bool__(self) -> bool:
        return bool(len(self.acked) or self.failed)


_NOTHING = ResolvedRecords(np.empty(0, np.int64), np.empty(0, np.uint8), [])


@dataclass(slots=True)
class OutcomeCounters:
    """Counts of resolved records by outcome. The owner thread counts."""

    written: int = 0  # every row durable in its sinks
    filtered: int = 0  # dropped on purpose: no row, no letter
    dead_lettered: int = 0  # a dead letter of it is durable
    failures: Counter[str] = field(default_factory=Counter)  # by step; tries that are repeated
    dead_letters: Counter[tuple[str, int]] = field(default_factory=Counter)  # sent, by partition
    dead_letter_causes: Counter[tuple[str, str]] = field(default_factory=Counter)  # by step, error

    def resolved(self, by_flags: npt.NDArray[np.int64]) -> None:
        """Count records; `by_flags` has how many there are with each combination of flags."""
        filtered, written, *dead_lettered = by_flags.tolist()
        self.filtered += filtered
        self.written += written
        self.dead_lettered += sum(dead_lettered)

    def add(self, other: "OutcomeCounters") -> None:
        self.written += other.written
        self.filtered += other.filtered
        self.dead_lettered += other.dead_lettered
        self.failures.update(other.failures)
        self.dead_letters.update(other.dead_letters)
        self.dead_letter_causes.update(other.dead_letter_causes)


@dataclass(frozen=True, slots=True)
class Placed:
    """Emitted values, each with the tree it travels in.

    `edges` has a compound tree's root edge, and 0 where the tree is the anchor's own: the edge of
    the anchor is outstanding there. XOR the edges of derived values into it, and ack the result.
    """

    values: list[Any]
    trees: Trees
    edges: Edges
    tasks: dict[int, int]


class TreeTracker:
    def __init__(
        self,
        acker: Acker,
        holders: Callable[[], Mapping[int, str]],
        timeout_seconds: float,
        rng: np.random.Generator,
    ) -> None:
        """`holders` returns the step that holds a tuple, by record id or compound tree's id."""
        self.acker = acker
        # What changes nothing but the acker goes straight to it.
        self.begin, self.init, self.ack, self.mark = acker.begin, acker.init, acker.ack, acker.mark
        self.record_ids, self.flags = acker.owners, acker.flags
        # An edge is 0 as rarely as several of them are in sum: once in 2**64 times.
        self.new_edges: Callable[[int], Edges] = rng.bit_generator.random_raw
        self._holders = holders
        self._timeout_seconds = timeout_seconds
        self._reasons: dict[int, Failure] = {}  # why a tree failed that was not drained yet
        self._compound: dict[int, tuple[_Anchors, int]] = {}  # by id: anchors, and the edge
        self._begun = 0
        self._expire_due = 0.0
        self._touch_due = 0.0
        self._unlogged: list[Failure] = []
        self.lost = 0
        """Tuples without an anchor that failed: nobody tries them again."""

    @property
    def has_compound(self) -> bool:
        return bool(self._compound)

    def fail(self, tree: int, failure: Failure) -> None:
        """Fail a tree; `drain` returns the reason. Does nothing if the tree has failed before."""
        trees = _trees([tree])
        record_id = int(self.record_ids(trees)[0])
        if record_id >= 0:
            self._reasons[record_id] = failure
            self.acker.fail(trees)

    def drain(self) -> ResolvedRecords:
        """Return the records that resolved since the last call; settle compound trees' anchors."""
        ended = self.acker.drain()
        if not ended:
            return _NOTHING
        acked, flags = [], []
        failed: list[tuple[int, Failure]] = []
        holders = self._holders() if len(ended.expired) else {}
        while ended:
            record_ids, marks = ended.acked, ended.acked_flags
            if self._compound:
                compound = record_ids >= _FIRST
                self._ack_anchors(record_ids[compound].tolist(), marks[compound])
                record_ids, marks = record_ids[~compound], marks[~compound]
            acked.append(record_ids)
            flags.append(marks)
            for record_id in ended.failed.tolist():
                self._fail_record(record_id, self._reasons.pop(record_id), failed)
            for record_id in ended.expired.tolist():
                self._fail_record(record_id, self._late(record_id, holders), failed)
            ended = self.acker.drain()
        if self._unlogged:
            count, failure = len(self._unlogged), self._unlogged[0]
            self._unlogged = []
            error = text_of(failure.error)
            log.warning("unanchored_tuples_lost", count=count, step=failure.step, error=error)
        return ResolvedRecords(np.concatenate(acked), np.concatenate(flags), failed)

    def place(self, emission: Emission) -> Placed:
        """Find or begin the tree of each emitted value. Raises TooManyTrees.

        An anchor whose tree has resolved is ignored: its record comes again, or is a dead letter.
        A value all of whose anchors have resolved is left out.
        """
        live = self.record_ids(emission.trees) >= 0
        if live.all():
            no_edges = np.zeros(len(live), np.uint64)
            return Placed(emission.values, emission.trees, no_edges, emission.tasks)
        trees, begun = emission.trees.copy(), {}
        for place, anchors in self._live_anchors(emission.several).items():
            if len(anchors) == 1:
                trees[place], live[place] = anchors[0], True
            elif anchors or not emission.several[place]:
                begun[place] = anchors
        edges = np.zeros(len(live), np.uint64)
        if begun:
            new = list(begun)
            edges[new] = self.new_edges(len(new))
            trees[new], live[new] = self._begin(list(begun.values()), edges[new]), True
        kept = np.flatnonzero(live)
        places = kept.tolist()
        values = [emission.values[place] for place in places]
        old = emission.tasks
        tasks = {n: old[place] for n, place in enumerate(places) if place in old}
        return Placed(values, trees[kept], edges[kept], tasks)

    def split(self, tree: int, edge: int, failure: Failure) -> list[tuple[int, int]]:
        """Return a tree and edge for the dead letter of each record that a tuple belongs to.

        A tuple in its record's own tree keeps its edge; one in a compound tree is acked there.
        """
        if not self._compound or int(self.record_ids(_trees([tree]))[0]) < _FIRST:
            return [(tree, edge)]
        trees = np.unique(self.with_anchors(_trees([tree])))
        record_ids = self.record_ids(trees)
        is_compound = record_ids >= _FIRST
        compound = record_ids[is_compound].tolist()
        trees = trees[(record_ids >= 0) & ~is_compound]
        if not len(trees) and not all(self._compound[each][0] for each in compound):
            self._lose(failure)
        edges = self.new_edges(len(trees))
        self.ack(trees, edges)
        self.ack(_trees([tree]), np.array([edge], np.uint64))
        return list(zip(trees.tolist(), edges.tolist(), strict=True))

    def records_of(self, trees: Trees) -> RecordIds:
        """Return the unresolved records that the compound trees among these belong to."""
        compound = trees[self.record_ids(trees) >= _FIRST]
        record_ids = self.record_ids(self.with_anchors(compound))
        return np.unique(record_ids[(record_ids >= 0) & (record_ids < _FIRST)])

    def discard(self, chosen: Callable[[RecordIds], npt.NDArray[np.bool_]]) -> set[int]:
        """Drop the trees of the chosen records, without an outcome.

        Also drops compound trees that have no anchor left, and returns their ids.
        """
        self.acker.discard(chosen)
        gone: set[int] = set()
        for record_id, (anchors, _edge) in self._compound.items():  # anchors before children
            found = self.record_ids(_trees(anchors)).tolist()
            if anchors and all(each < 0 or each in gone for each in found):
                gone.add(record_id)
        if gone:
            self.acker.discard(lambda record_ids: np.isin(record_ids, list(gone)))
        for record_id in gone:
            del self._compound[record_id]
        return gone

    def touch(self, trees: Trees, seconds: float | None = None) -> None:
        """Restart the timeout of trees and of all their anchors (`Acker.reset_timeout`)."""
        self.acker.reset_timeout(self.with_anchors(trees), seconds)

    def expire(
        self, now: float, waiting: Callable[[], Iterable[tuple[Trees, float | None]]]
    ) -> None:
        """Fail the trees that are too old, at most twice a second.

        `waiting` returns the trees of values that wait for a sink, a worker or the dead letters'
        broker, and their seconds. These are slow, not lost, so their timeout restarts; the more
        there are, the more rarely.
        """
        if now < self._expire_due:
            return
        tick_seconds = self.acker.tick_seconds
        self._expire_due = now + min(_EXPIRE_EVERY_SECONDS, tick_seconds / 4)
        if now >= self._touch_due:
            count = 0
            for trees, seconds in waiting():
                self.touch(trees, seconds)
                count += len(trees)
            self._touch_due = now + min(count * _TOUCH_SECONDS, tick_seconds / 2)
        self.acker.expire(now)

    def with_anchors(self, trees: Trees) -> Trees:
        """Return trees, the anchors of those that are compound, and so on."""
        found = [trees]
        while self._compound and len(found[-1]):
            record_ids = self.record_ids(found[-1])
            compound = np.unique(record_ids[record_ids >= _FIRST]).tolist()
            anchors = (tree for each in compound for tree in self._compound[each][0])
            found.append(_trees(list(dict.fromkeys(anchors))))
        return trees if len(found) == 1 else np.concatenate(found)

    # Compound trees

    def _begin(self, anchors: Sequence[_Anchors], edges: Edges) -> Trees:
        """Begin a compound tree for each tuple of anchors, which get its root edge, too."""
        numbers = np.arange(self._begun, self._begun + len(anchors), dtype=np.int64)
        record_ids = numbers & OFFSET_MASK | _FIRST
        trees = self.begin(record_ids)
        self._begun += len(anchors)
        self.init(trees, edges)
        compounds = list(zip(anchors, edges.tolist(), strict=True))
        self._compound.update(zip(record_ids.tolist(), compounds, strict=True))
        self.ack(*_pairs(compounds))
        self.acker.unanchored += sum(not each for each in anchors)
        return trees

    def _live_anchors(self, several: dict[int, _Anchors]) -> dict[int, _Anchors]:
        flat = [tree for anchors in several.values() for tree in anchors]
        live = dict(zip(flat, (self.record_ids(_trees(flat)) >= 0).tolist(), strict=True))
        return {
            place: tuple(tree for tree in anchors if live[tree])
            for place, anchors in several.items()
        }

    def _ack_anchors(self, record_ids: Sequence[int], flags: Flags) -> None:
        """Ack the edges of compound trees in their anchors, which take over their flags."""
        if not record_ids:
            return
        compounds = [self._compound.pop(record_id) for record_id in record_ids]
        for flag in np.unique(flags[flags > 0]).tolist():
            marked = [compounds[place] for place in np.flatnonzero(flags == flag).tolist()]
            self.mark(_pairs(marked)[0], flag)
        self.ack(*_pairs(compounds))

    def _fail_record(
        self, record_id: int, failure: Failure, failed: list[tuple[int, Failure]]
    ) -> None:
        if record_id < _FIRST:
            failed.append((record_id, failure))
            return
        anchors, _edge = self._compound.pop(record_id)
        if not anchors:
            self._lose(failure)
            return
        trees = _trees(anchors)
        record_ids = self.record_ids(trees)
        live = record_ids >= 0
        self._reasons.update(dict.fromkeys(record_ids[live].tolist(), failure))
        self.acker.fail(trees[live])

    # Why trees fail

    def _late(self, record_id: int, holders: Mapping[int, str]) -> Failure:
        """Return why a tree expired: a bolt with its own timeout fails its tuples before."""
        limit = f"message_timeout_seconds={self._timeout_seconds:g}"
        step = holders.get(record_id)
        if step is not None:
            return Failure(step, TimeoutError(late(step, limit)))
        reason = f"the record's tree was not resolved in time: {limit}"
        keepers = sorted(set(holders.values()))
        if keepers:  # a tuple of several records is held under its compound tree's id
            reason += f"; perhaps one of these bolts keeps a tuple of it: {', '.join(keepers)}"
        return Failure("topology", TimeoutError(reason))

    def _lose(self, failure: Failure) -> None:
        self.lost += 1
        self._unlogged.append(failure)


def _trees(trees: Sequence[int]) -> Trees:
    return np.array(trees, np.int64)


def _pairs(compounds: Sequence[tuple[_Anchors, int]]) -> tuple[Trees, Edges]:
    pairs = [(tree, edge) for anchors, edge in compounds for tree in anchors]
    trees = np.fromiter((tree for tree, _edge in pairs), np.int64, len(pairs))
    return trees, np.fromiter((edge for _tree, edge in pairs), np.uint64, len(pairs))


def joined_edges(keys: npt.NDArray[np.int64], edges: Edges) -> tuple[npt.NDArray[np.int64], Edges]:
    """Join the edges of neighbours that have the same key: many rows come of one record."""
    changes = keys[1:] != keys[:-1]
    if changes.all():
        return keys, edges
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    return keys[starts], np.bitwise_xor.reduceat(edges, starts)
