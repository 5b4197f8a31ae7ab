"""One life of a replica: the real Consumer and Acker, between a simulated world's two ends.

It stands in for `service.pipeline.loop`, whose threads have no place here: same order of calls,
one small event each.
"""

import random
import uuid
from concurrent.futures import Future

import numpy as np

from acker.slots import turned_back
from partition.assigned_partition import Assigned, Revoked
from partition.consumer import Consumer, Time
from partition.errors import (
    CorruptRecord,
    KafkaError,
    OffsetOutOfRange,
    PartitionError,
    ReplayDiffers,
    SourceLost,
    StoreCorrupt,
    StoreMissing,
)
from partition.records import Partition, offset_of, partition_index_of
from partition.recovery import Ways
from tests.simulation.bolts import Attempt, Bolts, Letter, Tuple
from tests.simulation.errors import Violation
from tests.simulation.kafka import SimCatalogue, SimFetcher
from tests.simulation.settings import HANDOVER_SECONDS, TIMEOUT_SECONDS, TOPICS
from tests.simulation.transacting import SimTransacting
from tests.simulation.zookeeper import SimStore
from topology.workers.key_queue import Call

EVERY_PARTITION = [Partition(topic, number) for topic in TOPICS for number in range(16)]
"""All that there can be: topics grow."""
FOR_OPERATORS = (
    SourceLost, OffsetOutOfRange, CorruptRecord, StoreMissing, StoreCorrupt, ReplayDiffers,
)  # fmt: skip

_MAX_TUPLES = 24


class Life(Bolts):
    """A process from its start to its end. The world's scheduler calls everything."""

    def __init__(self, world, name, *, heal=False):
        rng = random.Random(f"{world.settings.seed} {name}")
        super().__init__(world, rng, TIMEOUT_SECONDS)
        self.name = name
        self.fetcher = self._make_fetcher()
        process = str(uuid.uuid4())
        world.processes[process] = self
        self.store = SimStore(
            world.zookeeper, world.network, process, self, self._refused,
            lambda: world.now, world.seen, lambda: session_ended(self),
        )  # fmt: skip
        catalogue = SimCatalogue(world.cluster, world.network, self, self.fetcher)
        self._catalogue = catalogue
        topics = TOPICS[: len(world.settings.partitions)]
        self.transacting = self._make_transacting()
        policy = world.settings.policy(heal=heal)
        fences = self.transacting.fences if self.transacting is not None else None
        ways = Ways(self.store, catalogue, self.notify, fences)
        self.reader = self._make_reader(ways, topics, policy)
        if self.transacting is not None:
            self.transacting.bind(self.reader)
        self.assigned = set()  # what was told
        self.partitions = {}  # by place, whose it was last
        self.attempts = {}  # the newest of each owner
        self.alive = True
        self.frozen = False
        self.draining = False
        self.session = 0  # the store's, when its reader looked last

    def _make_fetcher(self):
        return SimFetcher(self.world.cluster, self.world.seen)

    def _make_reader(self, ways, topics, policy):
        real = Time(wall_clock=self.world.wall_clock, sleep=lambda _seconds: None)
        return Consumer(self.fetcher, ways, topics, policy, self.rng, real)

    def _make_transacting(self):
        if not self.world.settings.exactly_once:
            return None
        return SimTransacting(self, self.world.tables)

    def open(self):
        self.reader.open()
        if self.world.settings.shared:
            self.want(EVERY_PARTITION)

    def want(self, partitions):
        now = self.world.now
        self.reader.assignment.want(partitions, planned_at=now, leave_by=now + HANDOVER_SECONDS)

    def do_plan(self, dice):
        if self.world.settings.shared and not self.draining:
            known = sorted(self.reader.assignment.known or ())
            self.want([each for place, each in enumerate(known) if dice >> place & 1])

    def run(self, kind, dice):
        try:
            getattr(self, f"do_{kind}")(dice)
            # The next turn of a pipeline begins with it, before anything else can happen.
            self.hear(self.reader.assignment._take_changes())
        except PartitionError as error:
            self.world.seen(f"process_ended_by_{type(error).__name__}")
            halted = [held.error for held in self.reader.assignment]
            if any(isinstance(each, FOR_OPERATORS) for each in [error, *halted]):
                self.world.waits_for_operator = True
            self.end()

    def end(self):
        self.alive = False
        self.world.network.forget(self)
        self.world.wire.forget(self)

    def notify(self, loss):
        future = Future()
        world = self.world
        world.seen(f"loss_{loss.reason}")
        world.oracle.told_of(loss)

        def told(*, durable):
            if durable:
                self.inbox.append(lambda: future.set_result(None))
            else:
                send()

        def send():
            world.letters.send(Letter(lambda: world.oracle.declared(loss), told))

        send()
        return future

    # As `Pipeline` does

    def hear(self, changes):
        for change in changes:
            if isinstance(change, Assigned):
                self._assigned(change.partition, change.index)
            elif isinstance(change, Revoked):
                self._revoked(change.partition, change.index)
            else:
                self._lost(change.index)

    def _assigned(self, partition, place):
        self.world.oracle.assigned(self, partition)
        if self.partitions.setdefault(place, partition) != partition:
            raise Violation(9, f"{self.name} has given place {place} to {partition}, too")
        self.calls.resume(place)

    def _revoked(self, partition, place):
        self.world.oracle.revoked(self, partition)
        self.calls.suspend(place)
        if self.calls.num_waiting:
            self.world.seen("calls_held_while_suspended")

    def _lost(self, place):
        self._note_loss(place)
        self.world.oracle.lost(self, self.reader.assignment.at(place))
        self.acker.discard(lambda record_ids: partition_index_of(record_ids) == place)
        self.calls.drop(lambda call: call.partition == place)
        self.calls.resume(place)
        if self.transacting is not None:
            self.transacting.real.partition_lost(place)

    def started(self, tup):
        for attempt in tup.attempts:
            self.world.oracle.started(self, attempt.record.partition)

    def _note_loss(self, place):

        def is_of(tup):
            return any(partition_index_of(attempt.record_id) == place for attempt in tup.attempts)

        seen = self.world.seen
        if any(map(is_of, [*self.batch, *self.writing])):
            seen("lost_with_rows_at_the_sink")
        if any(map(is_of, self.buried)):
            seen("lost_with_a_letter_on_its_way")
        if any(self.calls.suspended.get(place, ())):
            seen("lost_while_suspended_with_calls_that_wait")

    def holds(self, place):
        table = self.acker._table
        places = partition_index_of(turned_back(table.owners.take(table.used())))
        groups = self.transacting.real._groups if self.transacting is not None else ()
        return bool((places == place).any()) or any(group.has(place) for group in groups)

    def _refused(self, refused):
        for partition, error in refused.items():
            self.world.oracle.refused(self, partition, error)

    # Time and offsets

    def do_poll(self, _dice):
        self.session = self.store.session
        ends = self.draining and self.transacting is not None
        self.hear(self.reader.poll(self.world.now, opens=not ends))
        if self.transacting is not None:
            self.transacting.turn(flush=False)

    def do_commit(self, dice):
        self.reader.commit(self.world.now, force=dice % 8 == 0 or self.draining)
        if self.draining:
            self.do_resolve(dice)
            self._end_drain()

    def do_expire(self, dice):
        """Fail what is too old; what waits for the sink or a letter is slow, not lost."""
        waiting = list(self.buried) if dice % 4 or self.transacting is not None else []
        if dice % 4:
            waiting += [*self.batch, *self.writing]
        if waiting:
            trees = [attempt.tree for tup in waiting for attempt in tup.attempts]
            self.acker.reset_timeout(np.array(trees, np.int64))
        self.acker.expire(self.world.now)

    def do_heartbeat(self, _dice):
        if self not in self.world.network.down:
            self.store.learn_of_session_end()

    def do_drain(self, _dice):
        """SIGTERM: emit nothing more, and end when all is resolved and stored."""
        if not self.draining:
            self.draining = True
            self.drain_ends = self.world.now + 15.0

    def _end_drain(self):
        is_idle = self.transacting is None or self.transacting.is_idle
        if self.acker.in_flight == 0 and is_idle and self.reader.offsets.is_done:
            self.world.oracle.drained(self)
            self.world.transactions.kept(self)
            self.world.seen("drained")
            self.hear(self.reader.assignment.release())
            self.reader.close()
            self.world.oracle.closed(self)
            self.end()
        elif self.world.now > self.drain_ends:
            self.world.seen("drain_ended_by_its_deadline")
            self.end()

    # Records

    def do_read(self, dice):
        at_bolts = len(self.tuples) + self.calls.num_waiting
        if at_bolts > _MAX_TUPLES or len(self.batch) > _MAX_TUPLES:
            return
        if self.draining and not self.reader.owes_emission:
            return
        now = self.world.now
        emission = self.reader.next_chunk(now)
        self.world.oracle.asked(self, emission)
        if emission is None and not self.draining:
            self.fetcher.dice = dice
            self.reader.fetch(now, 0.0)
            emission = self.reader.next_chunk(now)
            self.world.oracle.asked(self, emission)
        if emission is not None:
            self._emit(emission[0].messages, emission[1].tolist(), dice)

    def _emit(self, records, record_ids, dice):
        """Begin the trees, let the bolts behind the source answer at once, or later."""
        attempts = []
        for record, record_id in zip(records, record_ids, strict=True):
            before = self.attempts.get(record_id)
            attempt = self._attempt(record_id, record, 1 + (before.number if before else 0))
            self.world.oracle.emitted(self, attempt, before)
            self.attempts[record_id] = attempt
            attempts.append(attempt)
        trees = self.acker.begin(np.array(record_ids, np.int64)).tolist()
        for attempt, tree in zip(attempts, trees, strict=True):
            attempt.tree = tree
            tuples = [self.tuple_of([attempt]) for _ in range(dice % 4)]
            dice >>= 2
            attempt.open = len(tuples)
            attempt.emitted = True
            attempt.settle()
            root = 0
            for tup in tuples:
                root ^= tup.edge
            if tuples and dice % 8 == 0:  # an answer overtakes the first message
                self.world.seen("ack_before_init")
                self.filter(tuples.pop())
            elif tuples and dice % 32 == 3:
                self.world.seen("fail_before_init")
                self.fail(tuples.pop())
            if not tuples and not root:
                self.world.seen("filtered_record")
            self.init(tree, root)
            place = partition_index_of(attempt.record_id)
            self.calls.add(Call(tup, tree, tup.edge, attempt.record_id, place) for tup in tuples)

    def _attempt(self, record_id, record, number):
        at_end = self.transacting is None
        return Attempt(record_id, record, number, self.world.now, is_durable=at_end)

    def do_take(self, dice):
        """Take what the sink and the dead letters have told; send refused letters again."""
        if self.inbox:
            self.inbox.pop(dice % len(self.inbox))()
        now = self.world.now
        due = [tup for at, tup in self.again if at <= now]
        self.again = [entry for entry in self.again if entry[0] > now]
        for tup in due:
            self._send(tup)

    # Trees

    def do_resolve(self, _dice):
        """Take what the acker has resolved: ack it, have it tried again, or bury it."""
        resolved = self.acker.drain()
        oracle = self.world.oracle
        if len(resolved.acked):
            oracle.acked(self, resolved.acked.tolist())
            if self.transacting is None:
                self.reader.ack(resolved.acked)
            else:
                self.transacting.processed(resolved.acked, resolved.acked_flags)
        for record_id in resolved.failed.tolist():
            oracle.failed(self, record_id)
            self._retry(record_id, None)
        for record_id in resolved.expired.tolist():
            oracle.expired(self, record_id)
            self._retry(record_id, self.rng.choice([None, 0.3]))

    def _retry(self, record_id, after):
        attempt = self.attempts[record_id]
        if self.transacting is not None:
            self.transacting.void(record_id)
        index = partition_index_of(record_id)
        manager = self.reader.living(index)
        again = manager is None or manager.fail(offset_of(record_id), self.world.now, after)
        if self.reader.assignment.at(index).loss is not None:
            self.world.oracle.left(self, attempt, again=again)
            return
        self.world.oracle.retried(self, attempt, after, again=again)
        if again:
            return
        self.world.oracle.burying(self.bury_record(record_id))

    def bury_record(self, record_id):
        """Send the letter of a record that has no tree; its new tree waits for nothing else."""
        attempt = self.attempts[record_id]
        burial = self._attempt(record_id, attempt.record, attempt.number)
        burial.open, burial.emitted, burial.flight = 1, True, attempt.flight
        attempt.letter = burial
        self.attempts[record_id] = burial
        burial.tree = int(self.acker.begin(np.array([record_id], np.int64))[0])
        tup = Tuple([burial], self.edge())
        self.init(burial.tree, tup.edge)
        self.bury(tup)
        return burial


def session_ended(life):
    """Tell what a process was doing when it hears that its session has ended."""
    seen = life.world.seen
    if life.store.move_has_landed:
        seen("session_ended_after_a_move_had_landed")
    for held in life.reader.assignment:
        if held.error is not None:
            if _owes(held):
                seen("session_ended_with_a_halted_offset_not_stored")
        elif held.chain is None:
            continue
        elif held.manager is None:
            seen("session_ended_while_a_partition_opened")
        elif not held.is_owned:
            seen("session_ended_before_its_claims_ended")
        elif held.manager.ledger.waiting:
            seen("session_ended_in_a_recovery_with_records_waiting")


def urgency(life):
    """How rare what a process is in the middle of is, and what a session's end may upset."""
    if life.store.operation == "move":
        return 3
    if any(_owes(held) for held in life.reader.assignment):
        return 2
    return 1 if is_reclaiming(life) or any(_is_mended(h) for h in life.reader.assignment) else 0


def is_reclaiming(life):
    """Whether a process takes up again what was its own in an earlier session."""
    return any(
        held.manager is not None and not held.is_owned and held.chain is not None
        for held in life.reader.assignment
    )


def _owes(held):
    """Whether the source halted a partition of which not all is stored yet."""
    manager = held.manager
    if manager is None or not isinstance(held.error, KafkaError):
        return False
    return manager.last_completed_offset > manager.committed


def _is_mended(held):
    return held.chain is not None and (held.manager is None or held.manager.ledger.waiting)
