"""Joint trees: tuples that belong to several records, or to none.

Downstream of a join, a tuple that is anchored to tuples of several records travels in a tree of
its own, so that it is one tree and one edge like any other. That joint tree is the child of the
trees of its anchors: it has an edge in each, which is acked when it is acked, and they fail when
it fails or expires. A tuple without an anchor gets a joint tree of none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import structlog

from acker.acker import Acker, Edges, Flags, Owners, Resolved, Trees
from service.owners import MAX_PLACE, OFFSET_BITS, OFFSET_MASK
from topology.actions import Emission, moved
from topology.complaints import text_of
from topology.outcome import Failure

log = structlog.get_logger()

_Anchors: TypeAlias = tuple[int, ...]  # their trees

# A joint tree's owner is no record: its place is above all that partitions have.
_FIRST = MAX_PLACE << OFFSET_BITS
_LATE = Failure("topology", TimeoutError("the tuple was not processed in time"))


@dataclass(frozen=True, slots=True)
class Placed:
    """Values emitted, each with the tree it travels in.

    `edges` has a joint tree's root edge, and 0 where the tree is the anchor's own, which has an
    edge outstanding by itself. XOR the edges of what became of a value into it, and ack that.
    """

    values: list[Any]
    trees: Trees
    edges: Edges
    tasks: dict[int, int]


class Joints:
    """The joint trees under way. The owner thread calls everything.

    Truth says whether there are any. While there are, what `Acker.drain` gives goes through
    `resolve`, times are reset by `reset_timeout`, and what cannot be processed is `split`
    before it is buried.
    """

    def __init__(self, acker: Acker, failures: dict[int, Failure]) -> None:
        """`failures` says why a failed tree failed, by owner; it is the pipeline's."""
        self._acker = acker
        self._failures = failures
        self._held: dict[int, tuple[_Anchors, int]] = {}  # by owner: anchors, and the edge
        self._begun = 0
        self._lost: list[Failure] = []  # not told yet
        self.lost = 0
        """Tuples without an anchor that failed: nobody tries them again."""

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._held)

    def is_joint(self, owner: int) -> bool:
        """Whether an owner stands for a joint tree."""
        return owner >= _FIRST

    def begin(self, anchors: Sequence[_Anchors], edges: Edges) -> Trees:
        """Begin a joint tree of each tuple of anchors' trees; `()` has none.

        `edges` are new ones, one each: the edge in all of the anchors' trees, and the root edge
        of the joint tree, which is not complete before that is acked. Raises TooManyTrees.
        """
        numbers = np.arange(self._begun, self._begun + len(anchors), dtype=np.int64)
        owners = numbers & OFFSET_MASK | _FIRST
        trees = self._acker.begin(owners)
        self._begun += len(anchors)
        self._acker.init(trees, edges)
        joints = list(zip(anchors, edges.tolist(), strict=True))
        self._held.update(zip(owners.tolist(), joints, strict=True))
        self._acker.anchor(*_pairs(joints))
        self._acker.unanchored(sum(not each for each in anchors))
        return trees

    def place(self, emission: Emission, new_edges: Callable[[int], Edges]) -> Placed:
        """Find, or begin, the tree of each value emitted.

        An anchor whose tree has resolved counts no more: its record comes again, or is in the
        dead letters. A value all of whose anchors have resolved is left out.
        """
        live = self._acker.owners(emission.trees) >= 0
        if live.all():
            return Placed(emission.values, emission.trees, _none(len(live)), emission.tasks)
        trees, begun = emission.trees.copy(), {}
        left = self._live_anchors(emission.several)
        for place, anchors in left.items():
            if len(anchors) == 1:
                trees[place], live[place] = anchors[0], True
            elif anchors or not emission.several[place]:
                begun[place] = anchors
        edges = _none(len(live))
        if begun:
            joint = list(begun)
            edges[joint] = new_edges(len(joint))
            trees[joint], live[joint] = self.begin(list(begun.values()), edges[joint]), True
        kept = np.flatnonzero(live)
        places = kept.tolist()
        return Placed(
            [emission.values[place] for place in places],
            trees[kept],
            edges[kept],
            moved(emission.tasks, places),
        )

    def resolve(
        self, resolved: Resolved, overdue: "Callable[[int], Failure]" = lambda _owner: _LATE
    ) -> Resolved:
        """Take the joint trees out of what resolved, and settle their anchors.

        Returns the records only, also those that resolved by this. `overdue` says why a joint
        tree has expired, by its owner.
        """
        records: list[Resolved] = []
        while True:
            joints = [_are_joint(ended) for ended in _ends(resolved)]
            if not any(each.any() for each in joints):
                break
            acked, failed, expired = joints
            records.append(
                Resolved(
                    resolved.acked[~acked],
                    resolved.acked_flags[~acked],
                    resolved.failed[~failed],
                    resolved.expired[~expired],
                )
            )
            self._ack(resolved.acked[acked], resolved.acked_flags[acked])
            for owner in resolved.failed[failed].tolist():
                self._fail(owner, self._failures.pop(owner))
            for owner in resolved.expired[expired].tolist():
                self._fail(owner, overdue(owner))
            resolved = self._acker.drain()
        if not records:
            return resolved
        self._tell()
        records.append(resolved)
        return Resolved(
            np.concatenate([each.acked for each in records]),
            np.concatenate([each.acked_flags for each in records]),
            np.concatenate([each.failed for each in records]),
            np.concatenate([each.expired for each in records]),
        )

    def split(
        self, tree: int, edge: int, failure: Failure, new_edges: Callable[[int], Edges]
    ) -> list[tuple[int, int]]:
        """For a tuple that goes to the dead letters: tree and edge of each record's letter.

        A tuple of a record's own tree stays as it is. One in a joint tree is acked there; each
        record it belongs to gets an edge for its letter first.
        """
        if not self._held or not _are_joint(self._acker.owners(_trees([tree]))).any():
            return [(tree, edge)]
        trees, is_lost = self._records(tree)
        if is_lost:
            self._lose(failure)
        edges = new_edges(len(trees))
        self._acker.anchor(trees, edges)
        self._acker.ack(_trees([tree]), np.array([edge], np.uint64))
        return list(zip(trees.tolist(), edges.tolist(), strict=True))

    def records_of(self, trees: Trees) -> Owners:
        """The unresolved records that the joint trees among these belong to."""
        joint = trees[_are_joint(self._acker.owners(trees))].tolist()
        found = [self._records(tree)[0] for tree in joint]
        return self._acker.owners(np.concatenate([_trees([]), *found]))

    def drop_orphans(self) -> set[int]:
        """Let go of the joint trees none of whose anchors is left; returns their owners."""
        gone: set[int] = set()
        for owner, (anchors, _edge) in self._held.items():  # an anchor stands before its children
            found = self._acker.owners(_trees(anchors)).tolist()
            if anchors and all(each < 0 or each in gone for each in found):
                gone.add(owner)
        if gone:
            self._acker.discard(lambda owners: np.isin(owners, list(gone)))
        for owner in gone:
            del self._held[owner]
        return gone

    def reset_timeout(self, trees: Trees, seconds: float | None = None) -> None:
        """What `Acker.reset_timeout` does, for the trees and all they belong to."""
        self._acker.reset_timeout(self.with_anchors(trees), seconds)

    def with_anchors(self, trees: Trees) -> Trees:
        """The trees, and all they belong to."""
        found = [trees]
        while self._held and len(found[-1]):
            found.append(self._anchors(found[-1]))
        return trees if len(found) == 1 else np.concatenate(found)

    def _live_anchors(self, several: dict[int, _Anchors]) -> dict[int, _Anchors]:
        """The anchors that have not resolved, by place."""
        flat = [tree for anchors in several.values() for tree in anchors]
        live = dict(zip(flat, (self._acker.owners(_trees(flat)) >= 0).tolist(), strict=True))
        return {
            place: tuple(tree for tree in anchors if live[tree])
            for place, anchors in several.items()
        }

    def _ack(self, owners: Owners, flags: Flags) -> None:
        """Ack the joint trees' edges in their anchors, which take over their flags."""
        joints = [self._held.pop(owner) for owner in owners.tolist()]
        for flag in np.unique(flags[flags > 0]).tolist():
            marked = [joints[place] for place in np.flatnonzero(flags == flag).tolist()]
            self._acker.mark(_pairs(marked)[0], flag)
        self._acker.ack(*_pairs(joints))

    def _fail(self, owner: int, failure: Failure) -> None:
        """Fail the anchors of a joint tree that has failed."""
        anchors, _edge = self._held.pop(owner)
        if not anchors:
            self._lose(failure)
            return
        trees = _trees(anchors)
        owners = self._acker.owners(trees)
        live = owners >= 0
        self._failures.update(dict.fromkeys(owners[live].tolist(), failure))
        self._acker.fail(trees[live])

    def _lose(self, failure: Failure) -> None:
        self.lost += 1
        self._lost.append(failure)

    def _tell(self) -> None:
        """Log what was lost since this was called last, in one line."""
        if self._lost:
            count, failure = len(self._lost), self._lost[0]
            self._lost = []
            error = text_of(failure.error)
            log.warning("unanchored_tuples_lost", count=count, step=failure.step, error=error)

    def _anchors(self, trees: Trees) -> Trees:
        """The trees that the joint ones among these are children of."""
        owners = self._acker.owners(trees)
        joint = np.unique(owners[_are_joint(owners)]).tolist()
        return _trees(list(dict.fromkeys(tree for each in joint for tree in self._held[each][0])))

    def _records(self, tree: int) -> tuple[Trees, bool]:
        """The trees of the unresolved records that a joint tree belongs to.

        And whether there are none because it came from a tuple without an anchor.
        """
        records: dict[int, None] = {}
        is_anchored = True
        trees = _trees([tree])
        while len(trees):
            owners = self._acker.owners(trees)
            joint = _are_joint(owners)
            records.update(dict.fromkeys(trees[(owners >= 0) & ~joint].tolist()))
            is_anchored &= all(self._held[owner][0] for owner in owners[joint].tolist())
            trees = self._anchors(trees)
        return _trees(list(records)), not records and not is_anchored


def _are_joint(owners: Owners) -> npt.NDArray[np.bool_]:
    return owners >= _FIRST


def _ends(resolved: Resolved) -> tuple[Owners, Owners, Owners]:
    return resolved.acked, resolved.failed, resolved.expired


def _trees(trees: Sequence[int]) -> Trees:
    return np.array(trees, np.int64)


def _none(count: int) -> Edges:
    return np.zeros(count, np.uint64)


def _pairs(joints: Sequence[tuple[_Anchors, int]]) -> tuple[Trees, Edges]:
    """Trees and edges of all anchors of joint trees."""
    pairs = [(tree, edge) for anchors, edge in joints for tree in anchors]
    trees = np.fromiter((tree for tree, _edge in pairs), np.int64, len(pairs))
    return trees, np.fromiter((edge for _tree, edge in pairs), np.uint64, len(pairs))
