"""One life of a replica: the real Consumer and Acker, between a simulated world's two ends.

It stands in for `service.pipeline.loop`, whose threads have no place here: same order of calls,
one small event each.
"""

import random
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from partition.assigned_partition import Assigned, PartitionChange, Revoked
from partition.consumer import Consumer, ConsumerPolicy, Time
from partition.errors import (
    CorruptRecord,
    OffsetOutOfRange,
    PartitionError,
    ReplayDiffers,
    SourceLost,
    StoreCorrupt,
    StoreMissing,
)
from partition.records import Partition, partition_index_of, partition_indexes_of
from partition.recovery import Loss, Ways
from tests.simulation.bolts import Bolts
from tests.simulation.fetching import SimCatalogue, SimFetcher
from tests.simulation.kafka import SimRecord
from tests.simulation.sessions import session_ended
from tests.simulation.settings import HANDOVER_SECONDS, TIMEOUT_SECONDS, TOPICS
from tests.simulation.sink import Letter
from tests.simulation.store import SimStore
from tests.simulation.transacting import SimTransacting
from tests.simulation.tuples import Attempt, Tuple
from topology.workers.call import Call

if TYPE_CHECKING:
    from tests.simulation.world import World

EVERY_PARTITION = [Partition(topic, number) for topic in TOPICS for number in range(16)]
"""All that there can be: topics grow."""
FOR_OPERATORS = (
    SourceLost, OffsetOutOfRange, CorruptRecord, StoreMissing, StoreCorrupt, ReplayDiffers,
)  # fmt: skip

_MAX_TUPLES = 24


class Life(Bolts):
    """A process from its start to its end. The world's scheduler calls everything."""

    def __init__(self, world: "World", name: str, *, heal: bool = False) -> None:
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
        self.reader: Any = self._make_reader(ways, topics, policy)
        if self.transacting is not None:
            self.transacting.bind(self.reader)
        self.assigned: set[Partition] = set()  # what was told
        self.partitions: dict[int, Partition] = {}  # by place, whose it was last
        self.attempts: dict[int, Attempt] = {}  # the newest of each owner
        self.alive = True
        self.frozen = False
        self.draining = False
        self.session = 0  # the store's, when its reader looked last

    def _make_fetcher(self) -> Any:
        return SimFetcher(self.world.cluster, self.world.seen)

    def _make_reader(self, ways: Ways, topics: Sequence[str], policy: ConsumerPolicy) -> Any:
        real = Time(wall_clock=self.world.wall_clock, sleep=lambda _seconds: None)
        return Consumer(self.fetcher, ways, topics, policy, self.rng, real)

    def _make_transacting(self) -> Any:
        if not self.world.settings.exactly_once:
            return None
        return SimTransacting(self, self.world.tables)

    def open(self) -> None:
        """Start."""
        self.reader.open()
        if self.world.settings.shared:
            self.want(EVERY_PARTITION)

    def want(self, partitions: Collection[Partition]) -> None:
        """Follow a plan that is made now."""
        now = self.world.now
        self.reader.assignment.want(partitions, planned_at=now, leave_by=now + HANDOVER_SECONDS)

    def do_plan(self, dice: int) -> None:
        """A new plan gives this process some of the partitions."""
        if self.world.settings.shared and not self.draining:
            known = sorted(self.reader.assignment.known or ())
            self.want([each for place, each in enumerate(known) if dice >> place & 1])

    def run(self, kind: str, dice: int) -> None:
        """One event. What cannot heal ends the process, as the service does."""
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

    def end(self) -> None:
        """The process is gone; what it sent is still on its way."""
        self.alive = False
        self.world.network.forget(self)
        self.world.wire.forget(self)

    def notify(self, loss: Loss) -> "Future[None]":
        """Send a range notice; the future ends when it is durable."""
        future: Future[None] = Future()
        world = self.world
        world.seen(f"loss_{loss.reason}")
        world.oracle.told_of(loss)

        def told(*, durable: bool) -> None:
            if durable:
                self.inbox.append(lambda: future.set_result(None))
            else:
                send()

        def send() -> None:
            world.letters.send(Letter(lambda: world.oracle.declared(loss), told))

        send()
        return future

    # As `Pipeline` does

    def hear(self, changes: Iterable[PartitionChange]) -> None:
        """Learn what has become of partitions."""
        for change in changes:
            if isinstance(change, Assigned):
                self._assigned(change.partition, change.index)
            elif isinstance(change, Revoked):
                self._revoked(change.partition, change.index)
            else:
                self._lost(change.index)

    def _assigned(self, partition: Partition, place: int) -> None:
        self.world.oracle.assigned(self, partition)
        if self.partitions.setdefault(place, partition) != partition:
            self.world.seen("place_used_again")
            self.partitions[place] = partition
        self.calls.resume(place)

    def _revoked(self, partition: Partition, place: int) -> None:
        self.world.oracle.revoked(self, partition)
        self.calls.suspend(place)
        if self.calls.num_waiting:
            self.world.seen("calls_held_while_suspended")

    def _lost(self, place: int) -> None:
        self._note_loss(place)
        self.world.oracle.lost(self, self.reader.assignment.at(place))
        self.acker.discard(lambda record_ids: partition_indexes_of(record_ids) == place)
        self.calls.drop(lambda call: call.partition == place)
        self.calls.resume(place)
        if self.transacting is not None:
            self.transacting.real.partition_lost(place)

    def started(self, tup: Tuple) -> None:
        """A call starts: its partition must be ours."""
        for attempt in tup.attempts:
            self.world.oracle.started(self, attempt.record.partition)

    def _note_loss(self, place: int) -> None:
        """Tell what is in flight of a partition that is lost."""

        def is_of(tup: Tuple) -> bool:
            return any(partition_index_of(attempt.record_id) == place for attempt in tup.attempts)

        seen = self.world.seen
        if any(map(is_of, [*self.batch, *self.writing])):
            seen("lost_with_rows_at_the_sink")
        if any(map(is_of, self.buried)):
            seen("lost_with_a_letter_on_its_way")
        if any(self.calls.suspended.get(place, ())):
            seen("lost_while_suspended_with_calls_that_wait")

    def holds(self, place: int) -> bool:
        """Whether anything is left that names a record of a place."""
        held = self.acker.holds(lambda record_ids: partition_indexes_of(record_ids) == place)
        if self.transacting is not None:
            held |= self.transacting.real.holds(place)
        if not held:  # the next of its records are another partition's
            for record_id in [
                record_id for record_id in self.attempts if partition_index_of(record_id) == place
            ]:
                del self.attempts[record_id]
        return held

    def _refused(self, refused: Mapping[Partition, PartitionError]) -> None:
        for partition, error in refused.items():
            self.world.oracle.refused(self, partition, error)

    # Time and offsets

    def do_poll(self, _dice: int) -> None:
        """Let partitions open, mend and halt."""
        self.session = self.store.session
        ends = self.draining and self.transacting is not None
        self.hear(self.reader.poll(self.world.now, opens=not ends))
        for index in self.reader.given_up(self.world.now):
            if not self.holds(index):
                self.reader.forget(index)
        if self.transacting is not None:
            self.transacting.turn(flush=False)

    def do_commit(self, dice: int) -> None:
        """Store the frontiers that moved."""
        self.reader.commit(self.world.now, force=dice % 8 == 0 or self.draining)
        if self.draining:
            self.do_resolve(dice)
            self._end_drain()

    def do_expire(self, dice: int) -> None:
        """Fail what is too old; what waits for the sink or a letter is slow, not lost."""
        waiting = list(self.buried) if dice % 4 or self.transacting is not None else []
        if dice % 4:
            waiting += [*self.batch, *self.writing]
        if waiting:
            trees = [attempt.tree for tup in waiting for attempt in tup.attempts]
            self.acker.reset_timeout(np.array(trees, np.int64))
        self.acker.expire(self.world.now)

    def do_heartbeat(self, _dice: int) -> None:
        """Hear from ZooKeeper."""
        if self not in self.world.network.down:
            self.store.learn_of_session_end()

    def do_drain(self, _dice: int) -> None:
        """SIGTERM: emit nothing more, and end when all is resolved and stored."""
        if not self.draining:
            self.draining = True
            self.drain_ends = self.world.now + 15.0

    def _end_drain(self) -> None:
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

    def do_read(self, dice: int) -> None:
        """Emit one chunk; fetch when there is none."""
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

    def _emit(self, records: list[Any], record_ids: list[int], dice: int) -> None:
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

    def _attempt(self, record_id: int, record: SimRecord, number: int) -> Attempt:
        at_end = self.transacting is None
        return Attempt(record_id, record, number, self.world.now, is_durable=at_end)

    def do_take(self, dice: int) -> None:
        """Take what the sink and the dead letters have told; send refused letters again."""
        if self.inbox:
            self.inbox.pop(dice % len(self.inbox))()
        now = self.world.now
        due = [tup for at, tup in self.again if at <= now]
        self.again = [entry for entry in self.again if entry[0] > now]
        for tup in due:
            self._send(tup)

    # Trees

    def do_resolve(self, _dice: int) -> None:
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

    def _retry(self, record_id: int, after: float | None) -> None:
        attempt = self.attempts[record_id]
        if self.transacting is not None:
            self.transacting.void(record_id)
        again = self.reader.fail(record_id, self.world.now, after)
        if self.reader.assignment.at(partition_index_of(record_id)).loss is not None:
            self.world.oracle.left(self, attempt, again=again)
            return
        self.world.oracle.retried(self, attempt, after, again=again)
        if again:
            return
        self.world.oracle.burying(self.bury_record(record_id))

    def bury_record(self, record_id: int) -> Attempt:
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
