"""The oracle: checks the promises at every step, from its own account of what happened."""

from dataclasses import replace

from partition.assigned_partition import PartitionState
from partition.errors import Fenced
from tests.simulation.errors import Violation
from tests.simulation.kafka import LARGEST_DELIVERY
from tests.simulation.settings import TIMEOUT_SECONDS
from tests.simulation.stored import StoredOffsets, Unstored

_SLACK = 1e-9


class Flight:
    """What one life has under way of one partition."""

    def __init__(self, manager):
        self.ledger = manager.ledger  # another one after the manager has started anew
        self.unresolved = {}
        self.emitted = []  # offsets from the last completed offset on
        self.last = -1  # the highest emitted
        self.last_completed_offset = -1
        self.waiting = 0  # while it was ours; else at most one more fetch is taken
        self.tries = {}  # of each record the last one that was emitted
        self.retry_from = {}
        self.retry_by = {}
        self.is_lost = False  # whoever has it next begins anew


class Oracle:
    """Every check of a run. Raises Violation."""

    def __init__(self, world):
        self._world = world
        self.stored = StoredOffsets(world)
        self.unstored = Unstored(world)
        self._flights = {}
        self._told_lost = set()  # lives, and places of theirs

    # What is emitted

    def asked(self, life, emission):
        """`next` was called: nothing that may be emitted may be kept back (10, 13)."""
        if emission is not None:
            self._had_room(life, emission[0])
            return
        now = self._world.now
        for held in life.reader.assignment:
            if held.manager is None or not held.is_owned:
                continue
            flight = self.flight(life, held.partition, held.manager)
            due = min(flight.retry_by.values(), default=now + 1)
            if due <= now:
                raise Violation(10, f"{life.name} keeps a retry of {held.partition} back")
            exactly_once = self._world.settings.exactly_once
            may = held.manager.may_emit if exactly_once else not held.manager.is_full
            if held.manager.ledger.waiting and may and not held.is_leaving:
                raise Violation(10, f"{life.name} keeps records of {held.partition} back")

    def _had_room(self, life, chunk):
        """Nothing new is emitted while the window's bytes are used up, by values and keys (10)."""
        settings = self._world.settings
        manager = life.reader.assignment[chunk.partition].manager
        flight = self.flight(life, chunk.partition, manager)
        if settings.exactly_once or chunk.offsets[0] <= flight.last:
            return
        kept = [each for each in flight.emitted if each >= manager.last_completed_offset]
        records = [flight.tries[each].record for each in kept]
        used = sum(record.size + record.key_size for record in records)
        if used >= settings.max_pending_bytes:
            limit = settings.max_pending_bytes
            raise Violation(10, f"{chunk.partition}: {used} bytes of {limit} are in the window")

    def emitted(self, life, attempt, before):
        record, offset, world = attempt.record, attempt.record.offset, self._world
        partition = record.partition
        if partition not in self.stored.begun:
            raise Violation(7, f"{record} was emitted before a position of it was stored")
        self._is_owned(life, partition)
        if partition not in life.assigned:
            raise Violation(9, f"{life.name} emitted of {partition}, which it was not told is its")
        manager = life.reader.assignment[partition].manager
        flight = attempt.flight = self.flight(life, partition, manager)
        if not (before is None or before.resolved):
            raise Violation(5, f"{record} was emitted while it was in flight")
        if before is None or offset not in flight.unresolved:
            if offset <= flight.last:
                raise Violation(5, f"{record} was emitted again, after {flight.last}")
            attempt.number = 1
            flight.last = offset
            flight.emitted.append(offset)
            self.unstored.emitted(life, partition, offset)
        else:
            self._emitted_again(life, flight, attempt)
        if attempt.number > world.settings.limit + 1:
            raise Violation(13, f"{record} was tried {attempt.number} times")
        flight.unresolved[offset] = flight.tries[offset] = attempt
        if world.settings.exactly_once:
            world.transactions.emitted(life, record)
        self.check(life)
        if world.zookeeper_is_away(life):
            world.seen("emitted_with_zookeeper_away")

    def _is_owned(self, life, partition):
        """Nothing is emitted, not even a retry, of a partition that may be another's (9).

        A process that has not looked since its session ended cannot know that it did.
        """
        store = life.store
        if life.session == store.session and store.owned.get(partition) != store.session:
            raise Violation(9, f"{life.name} emitted of {partition} without owning it")

    def _emitted_again(self, life, flight, attempt):
        record, world = attempt.record, self._world
        if world.now + _SLACK < flight.retry_from.pop(record.offset, 0.0):
            raise Violation(13, f"{record} was retried before its pause was over")
        flight.retry_by.pop(record.offset, None)
        world.seen("retry")
        if world.settings.exactly_once:
            world.transactions.emitted_again(life, record)
        if record.gone:
            world.seen("retry_of_a_compacted_record")
        if len(flight.emitted) >= world.settings.max_pending:
            world.seen("retry_with_a_full_window")

    # What becomes of it

    def acked(self, life, record_ids):
        """Trees are complete: each of their tuples must have come to a good end (3, 4, 5)."""
        for record_id in record_ids:
            attempt = self._resolve(life, record_id)
            record = attempt.record
            if attempt.failed:
                raise Violation(4, f"{record} was completed after one of its tuples failed")
            if attempt.open or not attempt.emitted:
                raise Violation(3, f"{record} was completed with {attempt.open} tuples open")
            if attempt.is_durable:
                attempt.flight.unresolved.pop(record.offset, None)

    def failed(self, life, record_id):
        attempt = self._resolve(life, record_id)
        if not attempt.failed:
            raise Violation(5, f"{attempt.record} failed, though none of its tuples did")

    def expired(self, life, record_id):
        attempt = self._resolve(life, record_id)
        self._world.seen("tree_expired")
        if self._world.now + _SLACK < attempt.begun_at + TIMEOUT_SECONDS:
            raise Violation(5, f"{attempt.record} expired before its time")
        attempt.failed = True

    def _resolve(self, life, record_id):
        attempt = life.attempts.get(record_id)
        if attempt is None:
            raise Violation(5, f"{life.name} resolved a tree that never began: {record_id}")
        if attempt.resolved:
            raise Violation(5, f"{attempt.record} resolved twice")
        attempt.resolved = True
        return attempt

    def retried(self, life, attempt, after, *, again):
        """A failed record waits for its retry, or (`again` is False) is to be buried (13)."""
        limit, record = self._world.settings.limit, attempt.record
        if again != (attempt.number <= limit):
            what = "kept" if again else "given up"
            raise Violation(13, f"{record} was {what} after {attempt.number} of {limit + 1} tries")
        if not again:
            self._world.seen("retries_used_up")
            return
        flight = attempt.flight
        pause = min(0.2 * 2 ** (attempt.number - 1), 1.0)
        shortest, longest = (pause * 0.8, pause) if after is None else (after, after)
        flight.retry_from[record.offset] = self._world.now + shortest
        flight.retry_by[record.offset] = self._world.now + longest

    def left(self, life, attempt, *, again):
        """A record of a lost partition has failed: it is whose the partition is now (9)."""
        if not again:
            raise Violation(9, f"{life.name} buries {attempt.record}, which another process has")
        self._world.seen("failed_in_a_lost_partition")

    def burying(self, burial):
        """A record's dead letter is being written; it stays unresolved until it is durable."""
        flight, offset = burial.flight, burial.record.offset
        flight.unresolved[offset] = flight.tries[offset] = burial

    def declared(self, loss):
        self._world.seen("range_notice_durable")
        at, resume, logs = loss.position, loss.resume, self._world.cluster.logs
        if loss.reason == "recreated":
            was = logs.get((at.topic_id or "", loss.partition))
            if was is not None:
                _lose(was, at.offset, was.end)
            # One that came and went meanwhile is passed with it; nobody has read of it.
            cluster = self._world.cluster
            for missed in cluster.between(loss.partition, at.topic_id, resume.topic_id):
                _lose(missed, 0, missed.end)
            at = replace(resume, offset=0)
        log = logs.get((at.topic_id or resume.topic_id or "", loss.partition))
        if log is not None:  # what was below the offset is settled, if it was not cut off
            # Retention may have gone past the place where the log was cut off; nobody tells it.
            gone = loss.reason == "expired" or resume.offset <= log.start
            _lose(log, 0 if gone else at.offset, resume.offset)

    def told_of(self, loss):
        """A range notice is being written: what it says must be true (12)."""
        at, logs = loss.position, self._world.cluster.logs
        log = logs.get((at.topic_id or loss.resume.topic_id or "", loss.partition))
        if log is None:
            raise Violation(12, f"a loss in a log that never was: {loss}")
        true = {
            "recreated": at.topic_id != loss.resume.topic_id,
            "expired": at.offset < log.start,
            # A marker of a later leader looks the same as a log that was cut off there.
            "truncated": log.cut or log.epoch > 0,
            "behind": self._world.settings.max_behind is not None,
            "corrupt": any(record.rotten for record in log.history.values()),
        }
        if not true[loss.reason]:
            raise Violation(12, f"nothing was lost, but told was {loss}")

    # What is stored

    def committed(self, life, partition, offset):
        """A life's commit was carried out: nothing below it is unresolved (1)."""
        flight = self._flights.get((life.name, partition))
        if flight is None:
            raise Violation(1, f"{life.name} committed {partition}, which it never read")
        lowest = min(flight.unresolved, default=offset)
        if lowest < offset:
            raise Violation(1, f"{partition} was committed to {offset}, past unresolved {lowest}")
        self.unstored.stored(life, partition, offset)
        self._world.seen("commit")
        if not life.alive:
            self._world.seen("commit_of_a_dead_process_carried_out")

    def refused(self, life, partition, error):
        """A commit was refused: not because of a write of its own (9)."""
        now = self.stored.now.get(partition)
        if now is None or not isinstance(error, Fenced):
            return
        self._world.seen("fenced_commit")
        own = self._world.processes.get(now.process) is life
        if own and partition not in self.stored.by_hand:
            raise Violation(9, f"{life.name} was fenced off {partition} by its own write: {error}")

    def assigned(self, life, partition):
        if partition in life.assigned:
            raise Violation(9, f"{life.name} was told of {partition} twice")
        life.assigned.add(partition)

    def revoked(self, life, partition):
        if partition not in life.assigned:
            raise Violation(9, f"{life.name} lost {partition}, which it was not told is its")
        life.assigned.discard(partition)

    def lost(self, life, held):
        """A partition was told to be lost for good: what a life had of it counts no more."""
        partition = held.partition
        if partition in life.assigned:
            raise Violation(9, f"{life.name} lost {partition} before it was revoked")
        is_open = held.manager is not None
        if is_open or held.state is PartitionState.RETIRED:  # whose manager is gone
            if (life.name, held.index) in self._told_lost:
                raise Violation(9, f"{life.name} was told twice that {partition} is lost")
            self._told_lost.add((life.name, held.index))
            flight = self._flights.get((life.name, partition))
            if is_open:
                flight = self.flight(life, partition, held.manager)
            if flight is not None:
                flight.is_lost = True
        self.unstored.lost(life, partition)

    def started(self, life, partition):
        """A call has started: it may have effects, and the partition is no other's (9)."""
        if partition not in life.assigned:
            raise Violation(9, f"{life.name} called a bolt for {partition}, which is not its")

    def let_go(self, life):
        for held in life.reader.assignment._partitions:
            if held.loss is not None and life.holds(held.index):
                raise Violation(9, f"{life.name} keeps what was in flight of {held.partition}")

    def closed(self, life):
        if life.assigned:
            raise Violation(9, f"{life.name} has ended with {life.assigned}")

    def drained(self, life):
        """A life has ended by itself: all is resolved but retries, and all of it is stored."""
        assignment = life.reader.assignment
        for held in assignment:
            if held.manager is None or not held.is_owned or held.is_moving:
                continue
            if held.chain is not None:
                continue
            now = self.stored.now.get(held.partition)
            if now is None or self._world.processes.get(now.process) is not life:
                continue
            storable = held.manager.position.offset  # or where an open transaction begins
            if now.offset != storable:
                raise Violation(16, f"{held.partition} ended at {now.offset}, not at {storable}")

    # Invariants

    def told(self, life):
        """By the end of an event a process has heard of what is not its any more (9)."""
        if not life.alive:  # it hears of all when it closes
            return
        for held in life.reader.assignment:
            is_ours = held.manager is None or held.is_owned
            if life.alive and held.partition in life.assigned and not is_ours:
                raise Violation(9, f"{life.name} was not told that {held.partition} is not its")

    def check(self, life):
        """Committed <= completed <= every unresolved; the window; nothing moves back (1, 2, 10)."""
        settings = self._world.settings
        for held in life.reader.assignment:
            manager = held.manager
            if manager is None:
                continue
            flight = self.flight(life, held.partition, manager)
            completed = manager.last_completed_offset
            if completed < flight.last_completed_offset:
                raise Violation(
                    2, f"{held.partition}: {flight.last_completed_offset} went to {completed}"
                )
            flight.last_completed_offset = completed
            if manager.committed > completed:
                raise Violation(1, f"{held.partition}: {manager.committed} > {completed}")
            lowest = min(flight.unresolved, default=completed)
            if lowest < completed:
                raise Violation(1, f"{held.partition}: completed {completed} > pending {lowest}")
            if flight.emitted and flight.emitted[0] < completed:
                flight.emitted = [offset for offset in flight.emitted if offset >= completed]
            if len(flight.emitted) > settings.max_pending:
                count = len(flight.emitted)
                raise Violation(10, f"{held.partition}: {count} records in the window")
            if len(flight.emitted) == settings.max_pending:
                self._world.seen("full_window")
            self._check_what_waits(life, held, flight)

    def _check_what_waits(self, life, held, flight):
        """For the store, for its claim (10), or for what is read next: never for nothing (15)."""
        if not flight.unresolved:
            self.unstored.resolved(life, held.partition)
        is_due = held.retry_at is not None or held.state is PartitionState.RECOVERING
        goes_on = held.chain or held.trouble or is_due
        goes_on = goes_on or held.error or held.is_leaving or life.fetcher.reads(held.partition)
        if life.alive and not goes_on:
            raise Violation(15, f"{life.name} neither reads nor mends {held.partition}")
        waiting = held.manager.ledger.waiting
        if held.is_owned:
            flight.waiting = waiting
        elif waiting > flight.waiting + LARGEST_DELIVERY:
            raise Violation(10, f"{held.partition}: {waiting} records wait for its claim")

    def flight(self, life, partition, manager):
        """The account of a partition; a new one when its manager has started anew."""
        key = (life.name, partition)
        flight = self._flights.get(key)
        if flight is not None and flight.ledger is manager.ledger:
            return flight
        if flight is not None and flight.unresolved and not flight.is_lost:
            lowest = min(flight.unresolved)
            raise Violation(1, f"{partition} started anew with {lowest} unresolved")
        flight = self._flights[key] = Flight(manager)
        return flight

    def flight_at(self, life, partition):
        return self._flights[life.name, partition]

    def forget(self, life):
        """A life is over; of what it had sent, commits may still be carried out."""
        for key in [key for key in self._flights if key[0] == life.name]:
            if not (life.store.operation or self._world.settings.exactly_once):
                del self._flights[key]
        self.unstored.forget(life)

    # The end

    def everything_is_settled(self):
        """What is missing after all has healed: nothing, or the first thing that is."""
        for log in self._world.cluster.live_logs():
            now = self.stored.now.get(log.partition)
            if now is None:
                return f"{log.partition} has no offset"
            if now.topic_id != log.topic_id or now.offset != log.end:
                return f"{log.partition} ends at {log.end} of {log.topic_id}, stored is {now}"
            for record in log.records:
                if not record.settled:
                    return f"{record} is nowhere"
        return None


def _lose(log, low, high):
    for record in log.history.values():
        if low <= record.offset < high:
            record.lost = True
