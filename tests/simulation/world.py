"""The seeded world: replicas, cluster, ZooKeeper, sink, and their faults.

A tape is a list of events (kind, which, dice). Every event is valid in every world, so any part
of a tape is a tape; nothing else decides anything.
"""

from collections import Counter

from partition.errors import PartitionError
from tests.simulation.bolts import SimLetters, SimSink
from tests.simulation.errors import Violation
from tests.simulation.kafka import Cluster
from tests.simulation.life import Life, is_reclaiming, urgency
from tests.simulation.oracle import Oracle
from tests.simulation.range_life import RangeLife
from tests.simulation.range_oracle import RangeOracle
from tests.simulation.range_tasks import SimExecutors
from tests.simulation.settings import OUTAGE_SECONDS, STEP_SECONDS, TOPICS, Settings
from tests.simulation.stored import partition_of
from tests.simulation.transacting import SimTable, go_on_without
from tests.simulation.transaction_oracle import TransactionOracle
from tests.simulation.zookeeper import Network, SimZooKeeper

_MAX_LOG = 400  # records of a partition that are not read: the producers wait


class ClusterEvents:
    """The half of a world that is its cluster."""

    def _a_log(self, which):
        logs = self.cluster.live_logs()
        return logs[which % len(logs)] if logs else None

    def do_produce(self, which, dice):
        """Records are written."""
        log = self._a_log(which)
        if log is None or len(log.records) > _MAX_LOG or self.cluster.away:
            return
        for place in range(1 + dice % 5):
            log.append(1 + (dice >> place) % 9)

    def do_gap(self, which, dice):
        """Transaction markers and aborted records use up offsets."""
        if log := self._a_log(which):
            log.append_gap(1 + dice % 3)

    def do_compact(self, which, dice):
        """A record is compacted away."""
        if log := self._a_log(which):
            log.compact(-1 - dice % 8 if dice % 16 > 3 else dice)

    def do_retention(self, which, dice):
        """The log's beginning is deleted."""
        if log := self._a_log(which):
            log.delete_before(log.end - dice % 12)

    def do_truncate(self, which, dice):
        """A leader is elected that lacks the end of the log.

        A jump for being too far behind comes before the broker can tell of a cut below it.
        """
        if self.settings.max_behind is not None:
            return
        if log := self._a_log(which):
            if self._is_in_flight(log):
                self.seen("truncation_while_in_flight")
            log.truncate(log.end - 1 - dice % 6)
            for size in range(dice // 8 % 12):
                log.append(size + 1)

    def do_elect(self, which, _dice):
        """A leader is elected that has everything."""
        if log := self._a_log(which):
            log.elect()

    def do_recreate(self, which, dice):
        """A topic is deleted and created again; perhaps it soon has more records than before."""
        topic = TOPICS[which % len(self.settings.partitions)]
        count = max(len(self.cluster.partitions(topic)), 1)
        self.cluster.delete(topic)
        self.cluster.create(topic, count)
        for log in self.cluster.live_logs():
            if log.partition.topic != topic:
                continue
            for size in range(dice % 40):
                log.append(1 + size % 9)
            log.added_late = log.partition in self.oracle.stored.begun
            now = self.oracle.stored.now.get(log.partition)
            if now is not None and now.offset < log.end:
                self.seen("topic_created_again_larger_than_the_offset")

    def do_add_partition(self, which, dice):
        """A topic gets one more partition."""
        topic = TOPICS[which % len(self.settings.partitions)]
        if topic not in self.cluster.topics or len(self.cluster.partitions(topic)) > 3:
            return
        late = any(partition.topic == topic for partition in self.oracle.stored.begun)
        partition = self.cluster.add_partition(topic, late=late)
        log = self.cluster.log(partition)
        for _ in range(dice % 4):
            if log is not None:
                log.append(2)
        if late:
            self.seen("partition_added_while_running")

    def do_corrupt(self, which, dice):
        """A record's bytes rot; or they are read well again."""
        log = self._a_log(which)
        if log is None or not log.records:
            return
        if dice % 3 == 0:
            self._mend(log)
        else:
            record = log.records[-1 - dice % min(len(log.records), 6)]
            record.corrupt = record.rotten = True
            self.seen("corrupt_record")

    def do_away(self, _which, _dice):
        """The cluster stops answering."""
        self.cluster.away = True

    def _mend(self, log):
        for record in log.records:
            record.corrupt = False

    def _is_in_flight(self, log):
        return any(
            not attempt.resolved and attempt.record.partition == log.partition
            for life in self.lives
            for attempt in life.attempts.values()
        )


Event = tuple[str, int, int]

OF_A_LIFE = frozenset(
    ["poll", "read", "bolt", "seal", "take", "resolve", "commit", "expire", "heartbeat", "drain"]
) | {"plan"}
_HANDOVERS = 5
_TURNS = 10
_ALL = (1 << 30) - 1
_GOOD = 2  # the dice of a sink's step that cannot fail: see `healing`


class World(ClusterEvents):
    """One world, from its seed."""

    def __init__(self, seed, files):
        self.settings = Settings.of(seed)
        self.files = files
        self.now = 100.0
        self.steps = 0
        self.situations = Counter()
        self.seen = self._seen
        self.oracle = Oracle(self)
        by_ranges = self.settings.by_ranges
        self.transactions = RangeOracle(self) if by_ranges else TransactionOracle(self)
        self.executors = SimExecutors(self)
        self.network = Network(self.seen)
        self.wire = Network(self.seen)  # to the tables
        count = self.settings.tables if self.settings.exactly_once else 0
        self.tables = [SimTable(f"table-{n}", self.transactions, self.seen) for n in range(count)]
        self.zookeeper = SimZooKeeper(self.oracle.stored.written)
        self.cluster = Cluster()
        self.sink = SimSink(self.seen)
        self.letters = SimLetters(self.seen)
        self.processes = {}
        self.lives = []
        self.waits_for_operator = False
        self.unreplayable = set()  # halted with ReplayDiffers
        self._started = 0
        self._wall_offset = 0.0
        self._hidden = {}  # good data of nodes that were damaged
        for topic, count in zip(TOPICS, self.settings.partitions, strict=False):
            self.cluster.create(topic, count)
        for log in self.cluster.live_logs():
            for size in range(3):
                log.append(size + 1)

    def _seen(self, situation):
        self.situations[situation] += 1

    def wall_clock(self):
        return 1.0e9 + self.now + self._wall_offset

    def zookeeper_is_away(self, life):
        return life in self.network.down

    def step(self, event):
        """Let one event happen, and check what can be checked. Raises Violation."""
        kind, which, dice = event
        self.steps += 1
        self.now += STEP_SECONDS
        try:
            if kind in OF_A_LIFE:
                lives = [life for life in self.lives if not life.frozen]
                if lives:
                    life = lives[which % len(lives)]
                    life.run(kind, dice)
                    self.oracle.check(life)
                    self.oracle.told(life)
                    if self.settings.exactly_once:
                        self.unreplayable |= self.transactions.halted(life)
                    self._bury_the_dead()
            else:
                getattr(self, f"do_{kind}")(which, dice)
        except (Violation, PartitionError):
            raise
        except Exception as error:
            raise Violation(0, f"{kind} raised {type(error).__name__}: {error}") from error

    def _bury_the_dead(self):
        for life in [life for life in self.lives if not life.alive]:
            self.lives.remove(life)
            self.oracle.forget(life)

    # What goes on by itself

    def do_net(self, which, dice):
        """Some messages get a step further."""
        for _ in range(1 + dice % 3):
            self.network.advance(which)
            which //= 3

    def do_sink(self, which, dice):
        """A batch gets a step further; or a request to a table does, is lost, or comes twice."""
        if not self.settings.exactly_once:
            self.sink.advance(which, dice)
            return
        how, dice = dice % 16, dice >> 4
        if how == 0:
            self.wire.lose(which)
        elif how == 1:
            self.wire.give_up(which)
        elif how == _GOOD:
            self.wire.double(which)
        else:
            for _ in range(1 + dice % 3):
                self.wire.advance(which)
                which //= 3

    def do_letter(self, which, dice):
        """A dead letter becomes durable, or is refused."""
        self.letters.advance(which, dice)

    def do_tick(self, _which, dice):
        """Time passes."""
        self.now += (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)[dice % 6]
        for life in self.lives:
            if not life.frozen:
                life.store.wake()

    # Processes

    def do_supervise(self, _which, _dice):
        """A process is started when there is none."""
        if not self.lives:
            self.start()

    def do_start(self, _which, _dice):
        """A process starts, while others live: there is no membership."""
        if len(self.lives) < self.settings.replicas:
            self.start()

    def start(self, *, heal=False):
        self._started += 1
        life = (RangeLife if self.settings.by_ranges else Life)(
            self, f"process-{self._started}", heal=heal
        )
        self.lives.append(life)
        life.open()
        return life

    def do_crash(self, which, _dice):
        """kill -9."""
        if not self.lives:
            return
        life = self.lives[which % len(self.lives)]
        if life.store.operation == "commit":
            self.seen("crash_inside_a_commit")
        if life.inbox:
            self.seen("crash_between_sink_and_ack")
        if any(not attempt.resolved and attempt.record.done for attempt in life.attempts.values()):
            self.seen("crash_between_sink_and_commit")
        life.end()
        self._bury_the_dead()

    def do_pause(self, which, _dice):
        """SIGSTOP."""
        if self.lives:
            self.lives[which % len(self.lives)].frozen = True
            self._update_down()

    def do_thaw(self, which, dice):
        """SIGCONT; a second may have passed, or a minute."""
        frozen = [life for life in self.lives if life.frozen]
        if frozen:
            life = frozen[which % len(frozen)]
            life.frozen = False
            self._update_down()
            if dice % 2:
                self.now += 20.0
            if life.store.session not in self.zookeeper.sessions:
                self.seen("thawed_after_its_session")

    def _update_down(self):
        frozen = {life for life in self.lives if life.frozen}
        self.network.frozen = self.wire.frozen = frozen

    # ZooKeeper and the network

    def do_lose(self, which, _dice):
        """A request or a reply is lost."""
        self.network.lose(which)

    def do_give_up(self, which, _dice):
        """A sender stops waiting; its request is still on its way."""
        self.network.give_up(which)

    def do_double(self, which, _dice):
        """A request is carried out twice."""
        self.network.double(which)

    def do_expire_session(self, which, _dice):
        """A session ends; its process hears of it later."""
        if self.lives:
            life = self.lives[which % len(self.lives)]
            if life.store.operation == "commit":
                self.seen("session_expired_inside_a_commit")
            self.zookeeper.end_session(life.store.session)

    def do_flap(self, which, dice):
        """A session ends and its process hears so at once, in the middle of something if it can.

        It may lose ZooKeeper again before it has its partitions back.
        """
        lives = [life for life in self.lives if not life.frozen]
        most = max(map(urgency, lives), default=0)
        lives = [life for life in lives if urgency(life) == most]
        if not lives:
            return
        life = lives[which % len(lives)]
        if dice % 8 > 2:
            self.network.carry_out(life)
        self.zookeeper.end_session(life.store.session)
        self.network.down.discard(life)
        life.run("heartbeat", 0)
        if dice % 2:
            life.run("poll", 0)
            self._bury_the_dead()
        if dice % 4 == 3 and life.alive:
            self._cut_off(life)

    def do_interrupt(self, which, dice):
        """The same, but only inside a move, or where a halted partition owes a commit."""
        if any(urgency(life) > 1 for life in self.lives if not life.frozen):
            self.do_flap(which, dice)

    def do_cut_off(self, which, _dice):
        """A process reaches neither ZooKeeper nor the cluster's answers."""
        if self.lives:
            self._cut_off(self.lives[which % len(self.lives)])

    def _cut_off(self, life):
        if is_reclaiming(life):
            self.seen("zookeeper_away_again_before_the_claims_ended")
        self.network.down.add(life)

    def do_mend(self, _which, dice):
        """One of the things that are away comes back."""
        if dice % 4 == 0:
            self.network.down.clear()
        elif dice % 4 == 1:
            self.cluster.away = False
        elif dice % 4 == 2:
            self._be_busy(is_busy=False)
        else:
            self.letters.away = False

    def do_damage(self, which, dice):
        """An operator deletes a node, or writes what is no offset; or makes it anew at once.

        Not while a process is claiming: what it has read by then it can never tell apart.
        """
        if any(life.store.operation == "claim" for life in self.lives):
            return
        nodes = self.zookeeper.nodes
        paths = sorted(path for path in nodes if partition_of(path) is not None)
        if not paths or self._hidden:
            return
        path = paths[which % len(paths)]
        version = nodes[path].version
        self._hidden[path] = nodes[path].data
        if dice % 4:
            self.seen("node_deleted")
            for below in [below for below in nodes if below.startswith(path + "/")]:
                self.zookeeper.delete(below)
            self.zookeeper.delete(path)
            if dice % 4 > 1:
                self.do_repair(0, 0)
            if dice % 4 > 2:  # and it is written until its version is nearly what it was
                while nodes[path].version < version - 1:
                    self.zookeeper.put(path, nodes[path].data)
        else:
            self.seen("node_damaged")
            self.zookeeper.put(path, (b"{", b"", b'{"offset": "0"}', b"null")[dice // 4 % 4])

    def do_repair(self, _which, _dice):
        """The operator puts back what was there, and has go on what cannot be replayed."""
        for path, data in self._hidden.items():
            if path not in self.zookeeper.nodes:
                self.seen("node_created_again_by_hand")
            self.zookeeper.put(path, data)
        self._hidden.clear()
        if self.unreplayable:
            self._go_on_without()

    def _go_on_without(self):
        for life in self.lives:
            life.end()
        self._bury_the_dead()
        go_on_without(self, self.unreplayable)

    def do_busy(self, _which, dice):
        """The sink or the dead-letter topic stops taking anything."""
        if dice % 2:
            self._be_busy(is_busy=True)
        else:
            self.letters.away = True

    def _be_busy(self, *, is_busy):
        self.sink.busy = is_busy
        for table in self.tables:
            table.busy = is_busy

    def do_outage(self, which, dice):
        """Sink and letters are away for longer than any time-out, and hand-overs are meanwhile.

        Time passes in a few large steps: a process whose loop turns lets what waits wait.
        """
        lives = [life for life in self.lives if not life.frozen and life.acker.in_flight]
        if not (lives and self.settings.shared):
            return
        life = lives[which % len(lives)]
        self._be_busy(is_busy=True)
        self.letters.away = True
        if life.batch or life.writing or life.buried:
            self.seen("outage_longer_than_any_time_out")
        for turn in range(_HANDOVERS):  # some partitions are taken away, and come back
            life.run("plan", dice if turn % 2 else _ALL)
            for _ in range(_TURNS):
                self.now += OUTAGE_SECONDS / _TURNS
                for kind in ("poll", "expire", "read", "bolt", "seal"):
                    if life.alive:
                        life.run(kind, 1)  # the bolt's value goes to the sink
                    self.do_net(which, 2)
        self._bury_the_dead()

    def do_jump(self, _which, dice):
        """The wall clock jumps, by up to a year."""
        self.seen("wall_clock_jumped")
        self._wall_offset = (dice % 1000 - 500) * 86400.0

    def heal(self):
        self.network.down.clear()
        self.network.frozen = self.wire.frozen = set()
        self.cluster.away = self.letters.away = False
        self._be_busy(is_busy=False)
        for log in self.cluster.live_logs():
            self._mend(log)
        self.do_repair(0, 0)
