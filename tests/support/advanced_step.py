"""One step of advanced bolts, called without a pipeline."""

from types import SimpleNamespace

import numpy as np

from topology.advanced import AdvancedBolt, AdvancedRunner


class Scripted(AdvancedBolt):
    """A bolt that is told what to do."""

    def __init__(self, process=None, tick=None, drain=None):
        self.calls = []
        self._process, self._tick = process, tick
        if drain is not None:
            self._drain = drain

    def process(self, tuple_, collector, /):
        self.calls.append(tuple_)
        return self._process(tuple_, collector)

    def tick(self, collector, /):
        self._tick(collector)


class Draining(Scripted):
    def drain(self, collector, /):
        self._drain(collector)


class Bench:
    """One step of advanced bolts, and trees that have resolved."""

    def __init__(self, *bolts, streams=("default", "late"), timeout_seconds=None):
        self.step = SimpleNamespace(
            name="join", bolts=bolts, streams=streams, timeout_seconds=timeout_seconds
        )
        self.resolved = set()
        self.runner = AdvancedRunner(
            [self.step], self.record_ids, lambda record_ids: record_ids % 2
        )
        self.sent = 0

    def record_ids(self, trees):
        return np.array([-1 if tree in self.resolved else tree for tree in trees.tolist()], int)

    def run(self, *values, source="orders", stream="default", tasks=None, now=0.0):
        """Run values whose trees are 1, 2, 3, … and whose edges are 101, 102, 103, …."""
        trees = np.arange(self.sent + 1, self.sent + 1 + len(values))
        self.sent += len(values)
        edges = (trees + 100).astype(np.uint64)
        return self.runner.run(
            self.step, values, trees, edges, now, source=source, stream=stream, tasks=tasks
        )


def run(process, *values, **options):
    return Bench(Scripted(process), **options).run(*values)


def emitted(actions):
    return {each.stream: each.values for each in actions.emissions()}


def failures(actions):
    return [(tuple_.tree, error) for tuple_, error in actions.failed]
