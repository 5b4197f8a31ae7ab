import queue

import numpy as np

from tests.support.patience import seconds, until
from topology.steps import BoltStep
from topology.workers.key_queue import Inputs, Ticked
from topology.workers.pool import WorkerPool

SECONDS = 10.0  # nothing here takes so long


class Bench:
    """A WorkerPool with one step, a clock that stands still, and what comes out of them."""

    def __init__(self, bolts, kind, general_timeout_seconds=None, **options):
        self.answers = queue.SimpleQueue()
        self.step = BoltStep("step", tuple(bolts), kind, **options)
        self.now = 0.0
        self.failed_ticks = []
        self.runners = WorkerPool([self.step], self._put, general_timeout_seconds, lambda: self.now)
        self.trees = 0

    def _put(self, result):
        if isinstance(result, Ticked):
            self.failed_ticks.append(result)
        else:
            self.answers.put(result)

    def __enter__(self):
        self.runners.open()
        return self

    def __exit__(self, *_exception):
        self.runners.stop(SECONDS)
        self.runners.close(SECONDS)

    def submit(self, *values):
        """Submit each value under a tree of its own, which is its record too."""
        count = len(values)
        trees = np.arange(self.trees, self.trees + count, dtype=np.int64)
        self.trees += count
        edges, places = (trees + 100).astype(np.uint64), np.zeros(count, np.int64)
        self.runners.submit(self.step, Inputs(list(values), trees, edges, trees, places, None))

    def take(self, count):
        ended = []
        while len(ended) < count:
            ended += self.answers.get(timeout=seconds(SECONDS)).take()
        assert len(ended) == count
        return ended

    def figures(self):
        return self.runners.statistics()[self.step.name]

    def pass_seconds(self, seconds):
        self.now += seconds
        self.runners.poll(self.now)

    def wait_until(self, condition):
        until("the condition", condition, SECONDS)
