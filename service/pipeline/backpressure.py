"""Backpressure: hold new records back while something on their way is full, by source.

Sources whose records may get to something full emit nothing, so their partitions fill and are
paused (`FlowControl`); all others go on. Every queue on the way is bounded by it.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from acker.acker import Acker
from partition.consumer import Consumer
from service.pipeline.committers import SinkCommitter
from service.pipeline.dead_letter_sender import DeadLetterSender
from topology.advanced import AdvancedRunner
from topology.bolt import Kind
from topology.steps import BoltStep, SinkStep, Source, Step
from topology.topology import Topology
from topology.workers.pool import WorkerPool

_BACKLOG_PER_WORKER = 4
# What waits for its key at one step, or is kept by an advanced bolt of one source. As many as the
# records of a partition's in-flight limit, so that only fan-outs, and many partitions, come to it.
_MAX_KEPT = 200_000
_MAX_LETTERS = 10_000
_MAX_TREES = 1 << 23  # half of what the acker takes

DEAD_LETTERS, TREES = "dead-letters", "trees"


class HeldTopics(NamedTuple):
    """Topics that emit nothing new, and those among them that emit no retries either."""

    topics: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    everything: bool = False  # no source emits anything


_NOTHING = HeldTopics()


class Backpressure:
    def __init__(
        self,
        topology: Topology,
        committer: SinkCommitter,
        runners: WorkerPool,
        advanced: AdvancedRunner,
        acker: Acker,
        dead_letters: DeadLetterSender,
        consumer: Consumer,
    ) -> None:
        self._source_of = topology.source_of
        self._committer = committer
        self._runners = runners
        self._advanced = advanced
        self._acker = acker
        self._dead_letters = dead_letters
        self._consumer = consumer
        self._leading: defaultdict[Step, set[str]] = defaultdict(set)
        """The labels of the sources whose records get to a step."""
        for source in topology.sources:
            for step in _boundaries(source):
                self._leading[step].add(source.label)
        self._every = {source.label for source in topology.sources}
        self._updated_at = 0.0
        self._full: set[str] = set()
        self.held_sources: set[str] = set()
        """Labels of the sources that emit no new records now."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Seconds for which each step, the dead letters or the trees have held records back."""

    def update(self, now: float) -> HeldTopics:
        for name in self._full:
            self.seconds[name] += now - self._updated_at
        self._updated_at, self._full = now, set()
        held, silent = set[str](), set[str]()
        for step, labels in self._leading.items():
            # What is busy finishes. What is kept may wait for a retry, which must come.
            if self._is_busy(step):
                self._full.add(step.name)
                silent |= labels
            elif overloading := self._overloading_sources(step, labels):
                self._full.add(step.name)
                held |= overloading
        if self._dead_letters.pending >= _MAX_LETTERS:
            self._full.add(DEAD_LETTERS)
            silent |= self._every
        if self._acker.in_flight >= _MAX_TREES:
            self._full.add(TREES)
            held |= self._every
        self.held_sources = held | silent
        if not self.held_sources:
            return _NOTHING
        label_of = {topic: self._source_of(topic).label for topic in self._consumer.topics}
        return HeldTopics(
            frozenset(topic for topic in label_of if label_of[topic] in self.held_sources),
            frozenset(topic for topic in label_of if label_of[topic] in silent),
            everything=silent == self._every,
        )

    def _is_busy(self, step: Step) -> bool:
        if isinstance(step, SinkStep):
            return self._committer.is_full(step.name)
        if step.kind is Kind.ADVANCED:
            return False
        most = _BACKLOG_PER_WORKER * step.workers * len(step.bolts)
        return self._runners.backlog(step) > most

    def _overloading_sources(self, step: Step, leading: set[str]) -> set[str]:
        """Return the sources with too many tuples that wait at a step, but not for a worker.

        Of an advanced bolt others go on: a join may wait for them. A tuple of several records, or
        of none, counts for every source that leads to the step.
        """
        if isinstance(step, SinkStep):
            return set()
        if step.kind is not Kind.ADVANCED:
            return leading if self._runners.num_waiting(step) > _MAX_KEPT else set()
        if len(self._advanced.kept[step.name]) <= _MAX_KEPT:
            return set()
        kept = dict.fromkeys(leading, 0)
        for index, count in self._advanced.kept[step.name].by_partition.items():
            manager = self._consumer.living(index)
            labels = leading
            if manager is not None:
                labels = {self._source_of(manager.partition.topic).label}
            for label in labels:
                kept[label] += count
        return {label for label, count in kept.items() if count > _MAX_KEPT}


def _boundaries(source: Source) -> Iterator[Step]:
    waiting, seen = list(source.children), set[Step]()
    while waiting:
        step = waiting.pop()
        if step in seen:
            continue
        seen.add(step)
        if isinstance(step, SinkStep) or step.is_boundary:
            yield step
        if isinstance(step, BoltStep):
            waiting += step.children
