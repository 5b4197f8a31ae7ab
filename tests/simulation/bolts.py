"""Bolts, the sink and the dead-letter topic: tuples on their way, and acks to the real acker."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from acker.acker import Acker
from partition.records import DEAD_LETTERED
from tests.simulation.kafka import SimRecord
from topology.workers.key_queue import CallQueue

_RESEND_SECONDS = 0.5
_WORKERS = 6


class Bolts:
    """The half of a process that lies behind the reader."""

    def __init__(self, world, rng, timeout_seconds):
        self.world = world
        self.rng = rng
        self.acker = Acker(timeout_seconds=timeout_seconds, capacity=16)
        self.calls = CallQueue()  # calls for first tuples that have not started
        self.tuples = []  # at a bolt
        self.batch = []
        self.writing = []
        self.buried = []  # whose letters are not durable yet
        self.again = []
        self.inbox = []
        self.spent = []  # trees and edges that were acked once
        self.transacting = None  # where the world runs exactly once

    def do_bolt(self, dice):
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

    def _start_calls(self):
        """Start what waits: as much as there are workers, where partitions are shared."""
        workers = _WORKERS if self.world.settings.shared else sys.maxsize
        while len(self.tuples) < workers and (call := self.calls.take()) is not None:
            self.started(call.value)
            self.tuples.append(call.value)

    def started(self, tup):
        raise NotImplementedError

    def _replace(self, old, count):
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

    def _say_again(self, dice):
        """Ack once more what was acked, when its tree has resolved: late and repeated."""
        if not self.spent:
            return
        tree, edge = self.spent.pop(dice % len(self.spent))
        if int(self.acker.owners(np.array([tree], np.int64))[0]) < 0:
            self.world.seen("late_ack")
            self.ack(tree, edge)

    def filter(self, tup):
        tup.close()
        self.ack_tuple(tup)

    def fail(self, tup):
        for attempt in tup.attempts:
            if not attempt.resolved:
                attempt.failed = True
            self.acker.fail(np.array([attempt.tree], np.int64))

    def bury(self, tup):
        """Send a tuple's dead letter; its edge is acked when the letter is durable."""
        trees = np.array([attempt.tree for attempt in tup.attempts], np.int64)
        if (self.acker.owners(trees) < 0).all():
            return
        self.acker.mark(trees, DEAD_LETTERED)
        for attempt in tup.attempts:
            attempt.letter = attempt
        self.buried.append(tup)
        self._send(tup)

    def _send(self, tup):
        def told(*, durable):
            if durable:
                self.inbox.append(lambda: self._lettered(tup))
            else:
                self.again.append((self.world.now + _RESEND_SECONDS, tup))

        self.world.letters.send(Letter(tup.close, told))

    def _lettered(self, tup):
        self.world.seen("dead_letter")
        self.buried.remove(tup)
        self.ack_tuple(tup)

    # The sink

    def do_seal(self, dice):
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

    def _note(self, rows, rejected):
        self.inbox.append(lambda: self._written(rows, rejected))

    def _written(self, rows, rejected):
        self.writing = []
        for place, tup in enumerate(rows):
            if place in rejected:
                self.bury(tup)
            else:
                self.ack_tuple(tup)

    # The acker

    def tuple_of(self, attempts):
        count = len(self.world.tables)
        tables = frozenset(range(count))
        if count > 1 and self.rng.randrange(2):
            tables = frozenset({self.rng.randrange(count)})
        return Tuple(attempts, self.edge(), tables=tables)

    def edge(self):
        return self.rng.getrandbits(64) | 1

    def init(self, tree, edges):
        self.acker.init(np.array([tree], np.int64), np.array([edges], np.uint64))

    def ack(self, tree, edges):
        self.acker.ack(np.array([tree], np.int64), np.array([edges], np.uint64))

    def ack_tuple(self, tup):
        for attempt in tup.attempts:
            if attempt.resolved and attempt.failed:
                self.world.seen("late_ack_after_failure_or_expiry")
            self.ack(attempt.tree, tup.edge)
            self.spent = [*self.spent[-7:], (attempt.tree, tup.edge)]


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at one record: one tree. Complete when no tuple is open and none has failed."""

    record_id: int
    record: SimRecord
    number: int  # which try, from 1
    begun_at: float
    tree: int = -1
    open: int = 0  # tuples that are neither durable, nor filtered, nor lettered
    emitted: bool = False  # every first tuple is counted
    failed: bool = False
    resolved: bool = False
    complete: bool = False  # every tuple has come to a good end
    is_durable: bool = True  # at that end; else its record is done with its transaction
    flight: Any = None  # the oracle's account of its partition
    letter: "Attempt | None" = None  # that told that a part of it could not be done
    rows: list[Any] = field(default_factory=list)  # that go to tables, exactly once

    def close(self):
        self.open -= 1
        self.settle()

    def settle(self):
        if self.emitted and self.open == 0 and not self.failed:
            self.complete = True
            if self.is_durable:
                self.record.done = True


@dataclass(slots=True, eq=False)
class Tuple:
    """A tuple that travels, anchored to one tree or more under one edge."""

    attempts: list[Attempt]
    edge: int
    closed: bool = False
    tables: frozenset[int] = frozenset()  # that get a row of it, exactly once

    def close(self):
        if not self.closed:
            self.closed = True
            for attempt in self.attempts:
                attempt.close()


@dataclass(slots=True, eq=False)
class Write:
    """A batch on its way to the sink. `told` hears of its end: the places that were rejected."""

    rows: list[Any]
    durable: Callable[[Any], None]  # called once for each row that is durable, at that moment
    told: Callable[[frozenset[int]], None]
    tries: int = 0
    rejected: frozenset[int] = frozenset()
    landed: bool = False


@dataclass(slots=True)
class SimSink:
    """Batches of all replicas; a batch goes on being written when its writer has died."""

    seen: Callable[[str], None]
    busy: bool = False
    writes: list[Write] = field(default_factory=list)
    rows: int = 0

    def submit(self, write):
        self.writes.append(write)

    def advance(self, which, how):
        """Let one batch go a step on: fail, become durable, be told, lose its reply."""
        if not self.writes or self.busy:
            return
        write = self.writes[which % len(self.writes)]
        write.tries += 1
        if not write.landed:
            if how % 8 == 0:
                self.seen("sink_write_failed_and_was_tried_again")
                return
            if how % 8 == 1:
                write.rejected = frozenset({how % len(write.rows)})
            self._land(write)
            return
        if how % 8 == 0:
            self.seen("sink_reply_lost_and_batch_written_again")
            write.landed = False
            return
        self.writes.remove(write)
        write.told(write.rejected)

    def _land(self, write):
        write.landed = True
        for place, row in enumerate(write.rows):
            if place not in write.rejected:
                write.durable(row)
                self.rows += 1


@dataclass(slots=True, eq=False)
class Letter:
    """A dead letter or a range notice on its way."""

    durable: Callable[[], None]
    told: Callable[..., None]  # (durable=...)


@dataclass(slots=True)
class SimLetters:
    """The dead-letter topic of all replicas."""

    seen: Callable[[str], None]
    away: bool = False
    letters: list[Letter] = field(default_factory=list)
    written: int = 0

    def send(self, letter):
        self.letters.append(letter)

    def advance(self, which, how):
        if not self.letters:
            return
        letter = self.letters.pop(which % len(self.letters))
        if self.away or how % 8 == 0:
            self.seen("dead_letter_refused")
            letter.told(durable=False)
            return
        letter.durable()
        self.written += 1
        letter.told(durable=True)
