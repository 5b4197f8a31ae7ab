"""One life of a replica on the spark engine: the real Reader and SparkEngine.

Only what they wait for is simulated: executors, the tables' threads, ZooKeeper, Kafka's answers.
"""

from pathlib import Path
from typing import Any

from partition.interfaces import Fetched
from service.pipeline.context import ResultQueue
from service.spark_engine import engine
from service.spark_engine.cluster import SharedFolder, TaskCluster
from service.spark_engine.engine import EngineRuntime, SparkEngine
from service.spark_engine.planner import LogEndTracker, RangeOwner
from service.spark_engine.range_buffer import RangeBuffer
from tests.simulation.kafka import SimFetcher
from tests.simulation.life import Life
from tests.simulation.mutants import put
from tests.simulation.range_tasks import SimStager, SimSubmissions, TaskRows
from tests.simulation.settings import TOPICS
from tests.simulation.transacting import SimFencing, SimWriter
from tests.support.spark_tasks import SETTINGS
from topology.sink import Sink, Staged
from topology.steps import BatchPolicy, SinkStep
from topology.topology import Topology


class _Client(SimFetcher):
    """The driver's: it delivers nothing, and knows what executors have read under which epoch."""

    def fetch(self, max_records, timeout_seconds):
        return Fetched()


class _Ends:
    """The driver's LogEndTracker, and the client that executors read by: it follows the same."""

    def __init__(self, ends, fetcher):
        self._ends = ends
        self._fetcher = fetcher

    def __getattr__(self, name):
        return getattr(self._ends, name)

    def add(self, positions):
        self._fetcher.add(positions)

    def remove(self, partitions):
        gone = list(partitions)
        self._ends.remove(gone)
        self._fetcher.remove(gone)


class _Sink(Sink[Any]):
    """A table, as the engine knows it. Of one that is spooled only the driver can stage."""

    kinds = frozenset({"transactional", "opaque"})

    def __init__(self, table, *, is_spooled):
        self.name = table.name
        self._table = table
        self._is_spooled = is_spooled

    def open(self, context):
        pass

    def fence(self, fences):
        return self._table.fence(fences)

    def stage(self, group):
        self._table.is_there()
        staged = self._table.stage(group)
        if staged.rejected:
            self._table.seen("spooled_row_refused")
        return staged

    def stager(self):
        return None if self._is_spooled else SimStager()

    def joined(self, shares, staged):
        made = {}
        for each in staged:
            made.setdefault(each.shares[0].line, []).extend(each.parts)
        parts = tuple(made.get(share.line, []) for share in shares)
        return Staged(shares, sum(share.num_rows for share in shares), parts)

    def commit(self, staged):
        raise NotImplementedError(staged)

    def discard(self, staged):
        for rows in staged.parts:
            if self._is_spooled:
                rows.clear()
                continue
            for part in rows:
                part.is_discarded = True

    def close(self):
        pass


class _Way:
    """What a writer asks of a table: staging goes by what the engine gave, in this process."""

    def __init__(self, table):
        self.table = table
        self.by = {}  # by group
        self._staged = {}  # by group: no call within a process is lost

    def __getattr__(self, name):
        return getattr(self.table, name)

    def stage(self, group):
        if group.sequence not in self._staged:
            self._staged[group.sequence] = self.by[group.sequence](group)
        return self._staged[group.sequence]


class _Writer(SimWriter):
    """Discards at once."""

    def __init__(self, table, sink, life, on_done):
        self._way = _Way(table)
        way = self._way
        super().__init__(way, life.world.wire, life, on_done)
        self._sink = sink

    def stage(self, group, by=None):
        self._way.by[group.sequence] = by or self._sink.stage
        super().stage(group)

    def discard(self, staged):
        self._sink.discard(staged)

    def let_go(self, work):
        work()


class _Engine(SparkEngine):
    """Never waits."""

    def _wait(self):
        pass


class _Letters:
    """Those of range notices are the world's own; tasks send the others."""

    def poll(self, now):
        pass


class SimRanges:
    """A process's engine, as its life knows it."""

    def __init__(self, life):
        self._life = life
        world = life.world
        self._results = ResultQueue()
        spooled = world.settings.spooled
        self._sinks = [_Sink(table, is_spooled=table.name in spooled) for table in world.tables]
        self._buffers = []
        for table, sink in zip(world.tables, self._sinks, strict=True):
            writer = _Writer(table, sink, life, self._hear)
            step = SinkStep(table.name, sink, BatchPolicy())
            self._buffers.append(RangeBuffer(step, writer))
        self.fences = SimFencing(world, self._buffers)

    def bind(self, owner):
        """Make the engine. Its threads are replaced by what the world decides about."""
        life, world = self._life, self._life.world
        topology = Topology("sim", reliability="exactly-once", transactions=world.settings.kind)
        names = TOPICS[: len(world.settings.partitions)]
        first, *others = (topology.source(name) for name in names)
        source = first.merge(*others) if others else first
        for sink in self._sinks:
            source.into(sink, name=sink.name)
        folder = SharedFolder(Path("/shared"), ())
        letters = _Letters()
        submissions = SimSubmissions(world.executors, life)
        with put(engine, "Submissions", lambda *_: submissions):
            self.engine = _Engine(
                topology, owner, letters, self._buffers, self._results,
                TaskCluster(submissions, folder, SETTINGS), world.settings.ranges,
                EngineRuntime(lambda: world.now, life.rng),
            )  # fmt: skip

    def _hear(self, done):
        self._life.inbox.append(lambda: self._results.put(done))

    @property
    def is_idle(self):
        return self.engine.is_idle

    def leftover(self):
        """What was made for this process, and is neither landed nor discarded; None: nothing."""
        for part in self._life.made:
            if not (part.is_landed or part.is_discarded or part.run.partition in self._halted):
                return f"{part.table} keeps what a task made of {part.run.partition}"
        if self._life.draining:  # when it has ended, its folder is removed
            return None
        halted = {str(partition) for partition in self._halted}
        for path, lines in self._life.spooled.items():
            if path in self._life.world.files.held and not lines & halted:
                return f"rows of {', '.join(sorted(lines))} are left in {path}"
        return None

    @property
    def _halted(self):
        return {held.partition for held in self._life.reader.assignment if held.error}


class RangeLife(Life):
    """The process. Its events are turns of its engine."""

    def __init__(self, world, name, *, heal=False):
        self.made = []
        self.spooled = {}  # lines, by file
        super().__init__(world, name, heal=heal)
        changed = self.transacting.engine._partition_changed

        def hear(change):
            super(RangeLife, self).hear([change])
            changed(change)

        self.transacting.engine._partition_changed = hear

    def _make_fetcher(self):
        return _Client(self.world.cluster, self.world.seen)

    def _make_transacting(self):
        return SimRanges(self)

    def _make_reader(self, ways, topics, policy):
        ends = _Ends(LogEndTracker(self._catalogue, 0.2), self.fetcher)
        return RangeOwner(self.fetcher, ways, ends, topics, policy, self.rng)

    def told(self, ended):
        for result in ended.results:
            for staged in getattr(result, "staged", {}).values():
                for each in staged:
                    self._request_metadata(each)
        self.inbox.append(lambda: self.transacting.engine._results.put(ended))

    def _request_metadata(self, staged):
        for part in staged.parts:
            if isinstance(part, TaskRows):
                self.made.append(part)
            else:
                self.spooled[part.path] = {share.line for share in staged.shares}

    def _assigned(self, partition, place):
        self.world.oracle.assigned(self, partition)

    def _revoked(self, partition, place):
        self.world.oracle.revoked(self, partition)

    def _lost(self, place):
        self.world.oracle.lost(self, self.reader.assignment.at(place))

    def hear(self, changes):
        for change in changes:
            self.transacting.engine._partition_changed(change)

    def holds(self, place):
        attempts = self.transacting.engine._attempts
        ran = (*attempts.groups, *attempts.running.values(), *attempts.processed.values())
        return any(member.place == place for each in ran for member in each.members)

    def do_poll(self, _dice):
        self.session = self.store.session
        self.transacting.engine.step(fetch=not self.draining, flush=self.draining)

    def do_commit(self, dice):
        self.do_poll(dice)
        if self.draining:
            self.reader.commit(self.world.now, force=True)
            self._end_drain()

    def do_bolt(self, dice):
        self.world.executors.advance(dice % 32, (dice >> 5) % 64)

    def do_take(self, dice):
        if self.inbox:
            self.inbox.pop(dice % len(self.inbox))()

    def do_read(self, dice):
        pass

    def do_seal(self, dice):
        pass

    def do_resolve(self, dice):
        pass

    def do_expire(self, dice):
        pass
