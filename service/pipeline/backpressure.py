"""Backpressure: what holds new records back, and of which sources.

The one place where a slow bolt, sink or dead-letter topic reaches the fetching: sources whose
records may get to something full emit nothing, so their partitions fill and are paused
(`Reader`); all others go on. Every queue on the way is bounded by it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

from topology.bolt import Kind
from topology.steps import BoltStep, SinkStep, Source, Step
from topology.topology import Topology

_BACKLOG_PER_WORKER = 4
# What waits for its key at one step, or is kept by an advanced bolt of one source. As many as the
# records of a partition's window, so that only fan-outs, and many partitions, ever come to it.
_MAX_KEPT = 200_000
_MAX_LETTERS = 10_000
_MAX_TREES = 1 << 23  # half of what the acker takes

DEAD_LETTERS, TREES = "dead-letters", "trees"


class Backlogs(Protocol):
    """Says how much waits for a bolt that is called later."""

    def backlog(self, step: BoltStep) -> int:
        """Values that could start were there a free worker."""
        ...

    def num_waiting(self, step: BoltStep) -> int:
        """Values whose call has not started, also those behind their own key."""
        ...


class Keepers(Protocol):
    """Says how much advanced bolts keep."""

    def held(self, step: BoltStep) -> int:
        """Tuples that are neither acked nor failed."""
        ...

    def held_by_place(self, step: BoltStep) -> Mapping[int, int]:
        """The same, by the place of the partition whose records they are."""
        ...


class End(Protocol):
    """A sink's end, as far as backpressure goes."""

    def is_full(self, now: float) -> bool:
        """Whether nothing more should come for now."""


class Backpressure:
    """Looks at everything that can be full. The owner thread calls it."""

    def __init__(
        self,
        topology: Topology,
        outlets: Mapping[str, End],
        backlogs: Backlogs,
        keepers: Keepers,
        topic_at: Callable[[int], str | None],
    ) -> None:
        """`topic_at` gives the topic of a partition's place; None: of no partition."""
        self._sources = topology.sources
        self._source_of = topology.source_of
        self._topic_at = topic_at
        self._outlets = outlets
        self._backlogs = backlogs
        self._keepers = keepers
        self._behind = {source.label: list(_boundaries(source)) for source in topology.sources}
        self._steps = list(dict.fromkeys(s for steps in self._behind.values() for s in steps))
        self._looked_at: float | None = None
        self._full: frozenset[str] = frozenset()
        self.held_sources: frozenset[str] = frozenset()
        """Labels of the sources that emit no new records now."""
        self.silent_sources: frozenset[str] = frozenset()
        """Those among them that emit no retries either."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """How long each step, the dead letters or the trees have held records back."""

    @property
    def holds_any(self) -> bool:
        """Whether a source is held back."""
        return bool(self.held_sources)

    @property
    def silences_all(self) -> bool:
        """Whether no source emits anything."""
        return len(self.silent_sources) == len(self._sources)

    def look(self, now: float, *, letters: int, trees: int) -> None:
        """See what is full now; `letters` are on their way, `trees` in flight."""
        if self._full and self._looked_at is not None:
            for name in self._full:
                self.seconds[name] += now - self._looked_at
        self._looked_at = now
        busy = {step.name for step in self._steps if self._is_busy(step, now)}
        laden = {step.name: held for step in self._steps if (held := self._held_by(step))}
        if letters >= _MAX_LETTERS:
            busy.add(DEAD_LETTERS)
        if trees >= _MAX_TREES:
            laden[TREES] = self._leading_to({TREES})
        if not busy and not laden and not self._full:
            return
        self._full = frozenset(busy | laden.keys())
        # What is busy gets done by itself. What is kept may wait for a retry, which must come.
        self.silent_sources = self._leading_to(busy)
        self.held_sources = self.silent_sources.union(*laden.values())

    def topics_of(self, sources: frozenset[str], topics: Collection[str]) -> frozenset[str]:
        """Those of the topics that these sources read."""
        if not sources:
            return sources
        return frozenset(topic for topic in topics if self._source_of(topic).label in sources)

    def _leading_to(self, full: set[str]) -> frozenset[str]:
        if not full:
            return frozenset()
        shared = not full.isdisjoint({DEAD_LETTERS, TREES})
        return frozenset(
            label
            for label, steps in self._behind.items()
            if shared or any(step.name in full for step in steps)
        )

    def _is_busy(self, step: Step, now: float) -> bool:
        """Whether more has come than can be taken on."""
        if isinstance(step, SinkStep):
            return self._outlets[step.name].is_full(now)
        if step.kind is Kind.ADVANCED:
            return False
        most = _BACKLOG_PER_WORKER * step.workers * len(step.bolts)
        return self._backlogs.backlog(step) > most

    def _held_by(self, step: Step) -> frozenset[str]:
        """The sources of which too much waits at a step for something else than a free worker."""
        if isinstance(step, SinkStep):
            return frozenset()
        if step.kind is Kind.ADVANCED:
            return self._kept_of(step)
        is_laden = self._backlogs.num_waiting(step) > _MAX_KEPT
        return self._leading_to({step.name}) if is_laden else frozenset()

    def _kept_of(self, step: BoltStep) -> frozenset[str]:
        """The sources of which a step keeps too many tuples.

        Others go on: a join may wait for them. A tuple of several records, or of none, counts
        for every source that leads to the step.
        """
        if self._keepers.held(step) <= _MAX_KEPT:
            return frozenset()
        leading = self._leading_to({step.name})
        kept = dict.fromkeys(leading, 0)
        for place, count in self._keepers.held_by_place(step).items():
            topic = self._topic_at(place)
            labels = leading if topic is None else [self._source_of(topic).label]
            for label in labels:
                kept[label] += count
        return frozenset(label for label, count in kept.items() if count > _MAX_KEPT)


def _boundaries(source: Source) -> Iterator[Step]:
    """Every step behind a source where values may wait."""
    waiting, seen = list(source.children), set[Step]()
    while waiting:
        step = waiting.pop()
        if step in seen:
            continue
        seen.add(step)
        if isinstance(step, SinkStep):
            yield step
            continue
        if step.is_boundary:
            yield step
        waiting += step.children
