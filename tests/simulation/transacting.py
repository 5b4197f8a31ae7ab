"""A process's transactions on their way to the tables: the real `TransactionCommitter`.

Only the threads that talk to a sink are simulated. The life calls it in the order in which the
pipeline does.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np

from partition.offsets.requests import ReplyLost
from service.pipeline.committers import EpochFencer, TransactionCommitter
from service.pipeline.sink_buffer import Rows, TransactionBuffer
from sinks.memory import MemorySink
from sinks.writer import BatchCommitted, BatchStaged
from tests.simulation.stored import partition_of
from tests.simulation.zookeeper import Message
from topology.errors import SinkBusy, SinkFailed, SinkFenced
from topology.sink import Committed, Staged
from topology.steps import BatchPolicy, SinkStep

_POLICY = BatchPolicy(batch_rows=12, batch_seconds=1.0)
_BAD = 30  # one of so many rows does not fit


class SimFencing:
    """The real fencer, and what situations it met."""

    def __init__(self, world, outlets):
        writers = {outlet.name: outlet.writer for outlet in outlets}
        self._real = EpochFencer(world.settings.kind, writers)
        self._world = world
        self.kind, self.fence = self._real.kind, self._real.fence

    def resume(self, partition, stored, committed):
        found = self._real.resume(partition, stored, committed)
        before = stored.transactions.open if stored.transactions is not None else ()
        seen = self._world.seen
        if len(found.transactions.open) + len(found.attempts) < len(before):
            seen("resumed_behind_what_every_table_has")
        if found.transactions.open:
            seen("transaction_replayed")
        if found.skips:
            seen("replayed_where_only_some_tables_have_it")
        if found.attempts:
            seen("planned_anew")
        return found


class SimTransacting:
    """Puts tuples into the tables as rows, and takes turns. `bind` comes before all else."""

    def __init__(self, life, tables):
        self._life = life
        self._tables = tables
        self._outlets = [self._outlet(table) for table in tables]
        self.fences = SimFencing(life.world, self._outlets)

    def bind(self, reader):
        self.real = TransactionCommitter(reader, self._outlets, ())

    def _outlet(self, table):
        def hear(done):
            self._life.inbox.append(lambda: self._take(done))

        writer = SimWriter(table, self._life.world.wire, self._life, hear)
        return TransactionBuffer(SinkStep(table.name, MemorySink(), _POLICY), writer)

    def _take(self, done):
        for refused in self.real.handle(done):
            self._life.world.seen("row_rejected_by_a_table")
            self._life.bury_record(refused.record_id)

    @property
    def is_idle(self):
        return self.real.is_idle

    def deliver(self, tuples):
        """Put tuples into the tables as rows, then ack them: a row has no edge."""
        life = self._life
        trees = np.array([tup.attempts[0].tree for tup in tuples], np.int64)
        record_ids = life.acker.owners(trees)
        for place, table in enumerate(self._tables):
            mine = [n for n, tup in enumerate(tuples) if place in tup.tables]
            piece = [
                Row(tuples[n].attempts[0], table.name, fits=life.rng.randrange(_BAD) > 0)
                for n in mine
            ]
            for row, n in zip(piece, mine, strict=True):
                if record_ids[n] >= 0:
                    row.attempt.rows.append(row)
            if piece:
                rows = Rows(piece, record_ids[mine], trees[mine], None)
                self.real.add(table.name, rows, life.world.now)
        for tup in tuples:
            tup.close()
            life.ack_tuple(tup)

    def processed(self, record_ids, flags):
        self.real.resolved(record_ids, flags)

    def void(self, record_id):
        self.real.discard_attempt(record_id)

    def leftover(self):
        """Rows that are kept though no transaction of theirs is open; None: there are none."""
        for outlet in self._outlets:
            for place, collected in outlet.rows._partitions.items():
                line = self.real._lines.get(place)
                done = [txid for txid in collected if line is None or txid <= line.committed]
                if done:
                    return f"{outlet.name} keeps rows of place {place}, txids {done}"
        return None

    def turn(self, *, flush):
        life = self._life
        flush = flush or life.draining
        self.real.step(life.world.now, flush=flush, plan=not life.draining)


class Row:
    """A row of one table, and the try at a record that made it."""

    def __init__(self, attempt, table, *, fits):
        self.attempt = attempt
        self.table = table
        self.fits = fits


class SimTable:
    """A sink that keeps transactions, as its server: what is asked twice is done once.

    A request may arrive late, or twice, or from a process that is dead: what refuses it is the
    epoch of its line, as in a real sink.
    """

    def __init__(self, name, oracle, seen):
        self.name = name
        self.busy = False
        self.lines = {}  # epoch and txid
        self.rows = 0
        self._oracle = oracle
        self.seen = seen

    def fence(self, fences):
        self.is_there()
        for line, epoch in fences:
            found, _txid = self.lines.get(line, (0, 0))
            if found > epoch:
                raise SinkFenced(line, epoch, found)
        for line, epoch in fences:
            self.raise_epoch(line, epoch)
        return self.committed([line for line, _epoch in fences])

    def raise_epoch(self, line, epoch):
        self.lines[line] = (epoch, self.lines.get(line, (0, 0))[1])
        self._oracle.fenced(self, line, epoch)

    def set_line(self, line, epoch, txid):
        self.raise_epoch(line, epoch)
        self.lines[line] = (epoch, txid)

    def committed(self, lines):
        return [Committed(line, *self.lines.get(line, (0, 0))) for line in lines]

    def stage(self, group):
        pieces = group.pieces
        rows = [row for piece in pieces for row in piece]
        rejected = {place: "it does not fit" for place, row in enumerate(rows) if not row.fits}
        parts, place = [], 0
        for share in group.shares:
            mine = range(place, place + share.num_rows)
            parts.append([rows[index] for index in mine if index not in rejected])
            place += share.num_rows
        return Staged(group.shares, group.num_rows, tuple(parts), rejected)

    def commit(self, sender, staged):
        self.is_there()
        for share in staged.shares:
            epoch, _txid = self.lines.get(share.line, (0, 0))
            if epoch > share.epoch:
                self.seen("zombie_commit_refused" if not sender.alive else "commit_fenced")
                raise SinkFenced(share.line, share.epoch, epoch)
        if self.has_all(staged.shares):
            self._oracle.said_done(self, sender, staged)
            return
        if any(map(self.has, staged.shares)):
            self._oracle.has_some(self, sender, staged)
            raise SinkFailed("only some of the shares are committed")
        for share, rows in zip(staged.shares, staged.parts, strict=True):
            self.lines[share.line] = (share.epoch, share.txid)
            self.rows += len(rows)
        self._oracle.landed(self, sender, staged)

    def has(self, share):
        return self.lines.get(share.line, (0, 0))[1] >= share.txid

    def has_all(self, shares):
        return all(map(self.has, shares))

    def is_there(self):
        if self.busy:
            raise SinkBusy(0.1)


Done = BatchStaged | BatchCommitted
_Work = Generator[Callable[[], Any], Any, Any]


class SimWriter:
    """Does what it is asked in order, and tries again what it does not know."""

    def __init__(self, table, network, life, on_done):
        self.table = table
        self._life = life
        self._on_done = on_done
        self._committing = _Hand(network, life)
        self._staging = _Hand(network, life)

    def fence(self, fence):
        answer = Future()

        def end(found):
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found[0].txid)

        self._committing.ask(self._fence((fence,)), end)
        return answer

    def stage(self, group):
        self._staging.ask(self._stage(group), self._on_done)

    def commit(self, staged):
        self._committing.ask(self._commit(staged), self._on_done)

    def discard(self, staged):
        pass

    def _fence(self, fences):
        while True:
            try:
                found = yield lambda: self.table.fence(fences)
            except (ReplyLost, SinkBusy):
                continue
            except (SinkFenced, SinkFailed) as error:
                return error
            return found

    def _stage(self, group):
        while True:
            try:
                staged = yield lambda: self.table.stage(group)
            except (ReplyLost, SinkBusy):
                continue
            except SinkFailed as error:
                return BatchStaged(self.table.name, group, None, error)
            return BatchStaged(self.table.name, group, staged, None)

    def _commit(self, staged):
        is_unknown = False
        while True:
            try:
                if is_unknown:
                    is_there = self.table.has_all(staged.shares)
                    how = "found_in_the_sink" if is_there else "sent_again"
                    self._life.world.seen(f"lost_commit_{how}")
                yield lambda: self.table.commit(self._life, staged)
            except SinkBusy:
                continue
            except ReplyLost:
                is_unknown = True
            except (SinkFenced, SinkFailed) as error:
                return BatchCommitted(self.table.name, staged, error, 0.0)
            else:
                return BatchCommitted(self.table.name, staged, None, 0.0)


class _Hand:
    """A thread of the writer: one thing after the other, each of its calls over the network."""

    def __init__(self, network, sender):
        self._network = network
        self._sender = sender
        self._queue = deque()
        self._is_busy = False

    def ask(self, work, on_done):
        self._queue.append((work, on_done))
        if not self._is_busy:
            self._next()

    def _next(self):
        if self._queue:
            self._is_busy = True
            self._go_on(None)

    def _go_on(self, reply):
        work, on_done = self._queue[0]
        try:
            call = work.throw(reply) if isinstance(reply, Exception) else work.send(reply)
        except StopIteration as stop:
            self._queue.popleft()
            self._is_busy = False
            on_done(stop.value)
            if not self._is_busy:
                self._next()
            return
        self._network.send(
            Message(
                self._sender,
                lambda: _outcome(call),
                self._go_on,
                lambda: self._go_on(ReplyLost()),
            )
        )


def _outcome(call):
    try:
        return call()
    except (SinkBusy, SinkFenced, SinkFailed) as error:
        return error


def go_on_without(world, partitions):
    """Have partitions go on behind what some table has; nobody may have them now.

    What is in no table is read again, as far as the log has it. What is only in some is given up
    in the others: their lines go on behind it.
    """
    for path, node in list(world.zookeeper.nodes.items()):
        partition = partition_of(path)
        if partition not in partitions:
            continue
        try:
            found = msgspec.json.decode(node.data)
            recorded = found["headrace"]["transactions"]
        except (msgspec.DecodeError, KeyError, TypeError):
            continue  # it is damaged, and repaired later
        partitions.discard(partition)
        known = [world.transactions.txid_of(table, partition) for table in world.tables]
        last = max(recorded["committed"], *known)
        for each in recorded["open"]:
            if each["txid"] <= last:
                found["offset"] = each["end"]
                found["headrace"]["leader_epoch"] = each.get("leader_epoch")
        recorded["committed"], recorded["open"] = last, []
        world.seen("partition_went_on_without_its_transactions")
        world.zookeeper.put(path, msgspec.json.encode(found))
        for record in world.transactions.given_up(partition, last):
            record.lost = True
        for table in world.tables:
            table.set_line(str(partition), found["headrace"]["epoch"] + 1, last)
