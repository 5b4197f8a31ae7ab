"""What bolts and sinks do with tuples, and how their answers reach the acker."""

import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from acker.acker import Acker
from service.pipeline.trees import DEAD_LETTERED
from tests.simulation.sink import Letter, Write
from tests.simulation.tuples import Attempt, Tuple
from topology.workers.key_queue import CallQueue

if TYPE_CHECKING:
    from tests.simulation.transacting import SimTransacting
    from tests.simulation.world import World

_RESEND_SECONDS = 0.5
_WORKERS = 6


class Bolts:
    """The half of a process that lies behind the reader."""

    def __init__(self, world: "World", rng: random.Random, timeout_seconds: float) -> None:
        self.world = world
        self.rng = rng
        self.acker = Acker(timeout_seconds=timeout_seconds, capacity=16)
        self.calls = CallQueue()  # calls for first tuples that have not started
        self.tuples: list[Tuple] = []  # at a bolt
        self.batch: list[Tuple] = []
        self.writing: list[Tuple] = []
        self.buried: list[Tuple] = []  # whose letters are not durable yet
        self.again: list[tuple[float, Tuple]] = []
        self.inbox: list[Callable[[], None]] = []
        self.spent: list[tuple[int, int]] = []  # trees and edges that were acked once
        self.transacting: SimTransacting | None = None  # where the world runs exactly once

    def do_bolt(self, dice: int) -> None:
        """One bolt answers for one tuple."""
        self._start_calls()
        if not self.tuples:
            return
        place, dice = dice % len(self.tuples), dice >> 5
        choice, dice = dice % 64, dice >> 6
        tup = self.tuples.pop(place)
        if choice < 36:
            self.batch.append(tup)
        elif choice < 44:
            self._replace([tup], 1 + dice % 3)
        elif choice < 48 and self.tuples and self.transacting is None:
            self.world.seen("multi_anchored_emit")
            self._replace([tup, self.tuples.pop(dice % len(self.tuples))], 1)
        elif choice < 52:
            self.filter(tup)
        elif choice < 59:
            self.fail(tup)
        elif choice < 61:
            self.bury(tup)
        elif choice < 62:
            self.world.seen("bolt_never_answered")
        else:
            self._say_again(dice)
            self.tuples.append(tup)

    def _start_calls(self) -> None:
        """Start what waits: as much as there are workers, where partitions are shared."""
        workers = _WORKERS if self.world.settings.shared else sys.maxsize
        while len(self.tuples) < workers and (call := self.calls.take()) is not None:
            self.started(call.value)
            self.tuples.append(call.value)

    def started(self, tup: Tuple) -> None:
        """Look at a call that starts."""
        raise NotImplementedError

    def _replace(self, old: list[Tuple], count: int) -> None:
        """Emit children anchored to all of `old`, then ack these."""
        attempts = list({id(a): a for tup in old for a in tup.attempts}.values())
        children = [self.tuple_of(attempts) for _ in range(count)]
        for attempt in attempts:
            attempt.open += count
        for tup in old:
            tup.close()
        edges = 0
        for child in children:
            edges ^= child.edge
        for attempt in attempts:
            mine = edges
            for tup in old:
                if attempt in tup.attempts:
                    mine ^= tup.edge
            self.ack(attempt.tree, mine)
        self.tuples += children

    def _say_again(self, dice: int) -> None:
        """Ack once more what was acked, when its tree has resolved: late and repeated."""
        if not self.spent:
            return
        tree, edge = self.spent.pop(dice % len(self.spent))
        if int(self.acker.owners(np.array([tree], np.int64))[0]) < 0:
            self.world.seen("late_ack")
            self.ack(tree, edge)

    def filter(self, tup: Tuple) -> None:
        """Drop a tuple on purpose."""
        tup.close()
        self.ack_tuple(tup)

    def fail(self, tup: Tuple) -> None:
        """Fail a tuple, and with it every tree that it is anchored to."""
        for attempt in tup.attempts:
            if not attempt.resolved:
                attempt.failed = True
            self.acker.fail(np.array([attempt.tree], np.int64))

    def bury(self, tup: Tuple) -> None:
        """Send a tuple's dead letter; its edge is acked when the letter is durable."""
        trees = np.array([attempt.tree for attempt in tup.attempts], np.int64)
        if (self.acker.owners(trees) < 0).all():
            return
        self.acker.mark(trees, DEAD_LETTERED)
        for attempt in tup.attempts:
            attempt.letter = attempt
        self.buried.append(tup)
        self._send(tup)

    def _send(self, tup: Tuple) -> None:
        def told(*, durable: bool) -> None:
            if durable:
                self.inbox.append(lambda: self._lettered(tup))
            else:
                self.again.append((self.world.now + _RESEND_SECONDS, tup))

        self.world.letters.send(Letter(tup.close, told))

    def _lettered(self, tup: Tuple) -> None:
        self.world.seen("dead_letter")
        self.buried.remove(tup)
        self.ack_tuple(tup)

    # The sink

    def do_seal(self, dice: int) -> None:
        """Hand the batch to the sink, one at a time; or put it into the open transactions."""
        if self.transacting is not None:
            batch, self.batch = self.batch, []
            if batch:
                self.transacting.deliver(batch)
            self.transacting.turn(flush=dice % 32 == 0)
            return
        if self.writing or not self.batch:
            return
        self.writing, self.batch = self.batch, []
        rows = self.writing
        self.world.sink.submit(Write(rows, Tuple.close, lambda bad: self._note(rows, bad)))

    def _note(self, rows: list[Tuple], rejected: frozenset[int]) -> None:
        self.inbox.append(lambda: self._written(rows, rejected))

    def _written(self, rows: list[Tuple], rejected: frozenset[int]) -> None:
        self.writing = []
        for place, tup in enumerate(rows):
            if place in rejected:
                self.bury(tup)
            else:
                self.ack_tuple(tup)

    # The acker

    def tuple_of(self, attempts: list[Attempt]) -> Tuple:
        """A new tuple; exactly once, its row goes to one table or to each."""
        count = len(self.world.tables)
        tables = frozenset(range(count))
        if count > 1 and self.rng.randrange(2):
            tables = frozenset({self.rng.randrange(count)})
        return Tuple(attempts, self.edge(), tables=tables)

    def edge(self) -> int:
        """A random id, never 0."""
        return self.rng.getrandbits(64) | 1

    def init(self, tree: int, edges: int) -> None:
        """Tell the acker of a tree's first edges."""
        self.acker.init(np.array([tree], np.int64), np.array([edges], np.uint64))

    def ack(self, tree: int, edges: int) -> None:
        """Tell the acker of edges."""
        self.acker.ack(np.array([tree], np.int64), np.array([edges], np.uint64))

    def ack_tuple(self, tup: Tuple) -> None:
        """Ack a tuple in each of its trees."""
        for attempt in tup.attempts:
            if attempt.resolved and attempt.failed:
                self.world.seen("late_ack_after_failure_or_expiry")
            self.ack(attempt.tree, tup.edge)
            self.spent = [*self.spent[-7:], (attempt.tree, tup.edge)]
