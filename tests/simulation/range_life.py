"""One life of a replica on the spark engine: the real Reader and SparkEngine.

Only what they wait for is simulated: executors, the tables' threads, ZooKeeper, Kafka's answers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partition.assigned_partition import PartitionChange
from partition.consumer import ConsumerPolicy
from partition.interfaces import Fetched
from partition.records import Partition, Position
from partition.recovery import Ways
from service.pipeline.context import ResultQueue
from service.pipeline.sink_buffer import WriterEvent
from service.spark_engine import engine
from service.spark_engine.cluster import SharedFolder, TasksEnded
from service.spark_engine.engine import SparkEngine
from service.spark_engine.planner import LogEndTracker, RangeOwner
from service.spark_engine.range_buffer import RangeBuffer
from tests.simulation.fetching import SimFetcher
from tests.simulation.life import Life
from tests.simulation.mutants import put
from tests.simulation.range_tasks import SimStager, SimSubmissions, TaskRows
from tests.simulation.settings import TOPICS
from tests.simulation.transacting import SimFencing
from tests.simulation.transaction_writer import SimWriter
from tests.support.spark_tasks import SETTINGS
from topology.sink import Batch, Committed, Fence, Share, Sink, SinkContext, Staged
from topology.steps import BatchPolicy, SinkStep
from topology.topology import Topology

if TYPE_CHECKING:
    from tests.simulation.transaction_sink import SimTable
    from tests.simulation.world import World


class _Client(SimFetcher):
    """The driver's: it delivers nothing, and knows what executors have read under which epoch."""

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        """Nothing."""
        return Fetched()


class _Ends:
    """The driver's LogEndTracker, and the client that executors read by: it follows the same."""

    def __init__(self, ends: LogEndTracker, fetcher: SimFetcher) -> None:
        self._ends = ends
        self._fetcher = fetcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ends, name)

    def add(self, positions: Mapping[Partition, Position]) -> None:
        """See `LogEndTracker.add`."""
        self._fetcher.add(positions)

    def remove(self, partitions: Iterable[Partition]) -> None:
        """See `LogEndTracker.remove`."""
        gone = list(partitions)
        self._ends.remove(gone)
        self._fetcher.remove(gone)


class _Sink(Sink[Any]):
    """A table, as the engine knows it. Of one that is spooled only the driver can stage."""

    kinds = frozenset({"transactional", "opaque"})

    def __init__(self, table: "SimTable", *, is_spooled: bool) -> None:
        self.name = table.name
        self._table = table
        self._is_spooled = is_spooled

    def open(self, context: SinkContext) -> None:
        """Do nothing."""

    def fence(self, fences: "Sequence[Fence]") -> list[Committed]:
        """See `SimTable.fence`."""
        return self._table.fence(fences)

    def stage(self, group: Batch) -> Staged:
        """See `SimTable.stage`: tasks have spooled the rows."""
        self._table.is_there()
        staged = self._table.stage(group)
        if staged.rejected:
            self._table.seen("spooled_row_refused")
        return staged

    def stager(self) -> SimStager | None:
        """What tasks stage with."""
        return None if self._is_spooled else SimStager()

    def joined(self, shares: tuple[Share, ...], staged: "Sequence[Staged]") -> Staged:
        """One list of what tasks made for each share."""
        made: dict[str, list[TaskRows]] = {}
        for each in staged:
            made.setdefault(each.shares[0].line, []).extend(each.parts)
        parts = tuple(made.get(share.line, []) for share in shares)
        return Staged(shares, sum(share.num_rows for share in shares), parts)

    def commit(self, staged: Staged) -> None:
        """Not called: see `_Way`."""
        raise NotImplementedError(staged)

    def discard(self, staged: Staged) -> None:
        """See `Sink.discard`."""
        for rows in staged.parts:
            if self._is_spooled:
                rows.clear()
                continue
            for part in rows:
                part.is_discarded = True

    def close(self) -> None:
        """Do nothing."""


class _Way:
    """What a writer asks of a table: staging goes by what the engine gave, in this process."""

    def __init__(self, table: "SimTable") -> None:
        self.table = table
        self.by: dict[int, Callable[[Batch], Staged]] = {}  # by group
        self._staged: dict[int, Staged] = {}  # by group: no call within a process is lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def stage(self, group: Batch) -> Staged:
        """See `RangeWork.stage`."""
        if group.sequence not in self._staged:
            self._staged[group.sequence] = self.by[group.sequence](group)
        return self._staged[group.sequence]


class _Writer(SimWriter):
    """Discards at once."""

    def __init__(self, table: "SimTable", sink: _Sink, life: "RangeLife", on_done: Any) -> None:
        self._way = _Way(table)
        way: Any = self._way
        super().__init__(way, life.world.wire, life, on_done)
        self._sink = sink

    def stage(self, group: Batch, by: Callable[[Batch], Staged] | None = None) -> None:
        """See `SinkWriter.stage`."""
        self._way.by[group.sequence] = by or self._sink.stage
        super().stage(group)

    def discard(self, staged: Staged) -> None:
        """See `SinkWriter.discard`."""
        self._sink.discard(staged)

    def let_go(self, work: Callable[[], object]) -> None:
        """See `SinkWriter.let_go`."""
        work()


class _Engine(SparkEngine):
    """Never waits."""

    def _wait(self) -> None:
        """Do nothing."""


class _Letters:
    """Those of range notices are the world's own; tasks send the others."""

    def poll(self, now: float) -> None:
        """Do nothing."""


class SimRanges:
    """A process's engine, as its life knows it."""

    def __init__(self, life: "RangeLife") -> None:
        self._life = life
        world = life.world
        self._results = ResultQueue()
        spooled = world.settings.spooled
        self._sinks = [_Sink(table, is_spooled=table.name in spooled) for table in world.tables]
        self._buffers: list[RangeBuffer] = []
        for table, sink in zip(world.tables, self._sinks, strict=True):
            writer: Any = _Writer(table, sink, life, self._hear(table.name))
            step = SinkStep(table.name, sink, BatchPolicy())
            self._buffers.append(RangeBuffer(step, writer, sink))
        self.fences = SimFencing(world, self._buffers)

    def bind(self, owner: RangeOwner) -> None:
        """Make the engine. Its threads are replaced by what the world decides about."""
        life, world = self._life, self._life.world
        topology = Topology("sim", reliability="exactly-once", transactions=world.settings.kind)
        names = TOPICS[: len(world.settings.partitions)]
        first, *others = (topology.source(name) for name in names)
        source: Any = first.merge(*others) if others else first
        for sink in self._sinks:
            source.into(sink, name=sink.name)
        folder = SharedFolder(Path("/shared"), ())
        executors: Any = None
        letters: Any = _Letters()
        submissions = SimSubmissions(world.executors, life)
        with put(engine, "Submissions", lambda *_: submissions):
            self.engine = _Engine(
                topology, owner, letters, self._buffers, self._results, executors, folder,
                SETTINGS, ranges=world.settings.ranges,
                clock=lambda: world.now, rng=life.rng,
            )  # fmt: skip

    def _hear(self, sink: str) -> Any:
        return lambda done: self._life.inbox.append(
            lambda: self._results.put(WriterEvent(sink, done))
        )

    @property
    def is_idle(self) -> bool:
        """See `SparkEngine.is_idle`."""
        return self.engine.is_idle

    def leftover(self) -> str | None:
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
    def _halted(self) -> set[Partition]:
        return {held.partition for held in self._life.reader.assignment if held.error}


class RangeLife(Life):
    """The process. Its events are turns of its engine."""

    fetcher: _Client
    transacting: Any

    def __init__(self, world: "World", name: str, *, heal: bool = False) -> None:
        self.made: list[TaskRows] = []
        self.spooled: dict[str, set[str]] = {}  # lines, by file
        super().__init__(world, name, heal=heal)
        changed = self.transacting.engine._partition_changed

        def hear(change: PartitionChange) -> None:
            super(RangeLife, self).hear([change])
            changed(change)

        self.transacting.engine._partition_changed = hear

    def _make_fetcher(self) -> Any:
        return _Client(self.world.cluster, self.world.seen)

    def _make_transacting(self) -> Any:
        return SimRanges(self)

    def _make_reader(self, ways: Ways, topics: Sequence[str], policy: ConsumerPolicy) -> Any:
        ends: Any = _Ends(LogEndTracker(self._catalogue, 0.2), self.fetcher)
        return RangeOwner(self.fetcher, ways, ends, topics, policy, self.rng)

    def told(self, ended: TasksEnded) -> None:
        """Executors tell of a try's end."""
        for result in ended.results:
            for staged in getattr(result, "staged", {}).values():
                for each in staged:
                    self._hear_of(each)
        self.inbox.append(lambda: self.transacting.engine._results.put(ended))

    def _hear_of(self, staged: Staged) -> None:
        for part in staged.parts:
            if isinstance(part, TaskRows):
                self.made.append(part)
            else:
                self.spooled[part.path] = {share.line for share in staged.shares}

    def _assigned(self, partition: Partition, place: int) -> None:
        self.world.oracle.assigned(self, partition)

    def _revoked(self, partition: Partition, place: int) -> None:
        self.world.oracle.revoked(self, partition)

    def _lost(self, place: int) -> None:
        self.world.oracle.lost(self, self.reader.assignment.at(place))

    def hear(self, changes: Iterable[PartitionChange]) -> None:
        """Let the engine learn of it, too."""
        for change in changes:
            self.transacting.engine._partition_changed(change)

    def holds(self, place: int) -> bool:
        """Whether a group still has a partition."""
        return bool(self.transacting.engine._attempts.holds(place))

    def do_poll(self, _dice: int) -> None:
        """One turn of the engine."""
        self.session = self.store.session
        self.transacting.engine.step(fetch=not self.draining, flush=self.draining)

    def do_commit(self, dice: int) -> None:
        """Another one; and the end, when all is done and stored."""
        self.do_poll(dice)
        if self.draining:
            self.reader.commit(self.world.now, force=True)
            self._end_drain()

    def do_bolt(self, dice: int) -> None:
        """Executors get a step further, whosever tasks they run."""
        self.world.executors.advance(dice % 32, (dice >> 5) % 64)

    def do_take(self, dice: int) -> None:
        """Hear of one thing that was done."""
        if self.inbox:
            self.inbox.pop(dice % len(self.inbox))()

    def do_read(self, dice: int) -> None:
        """Do nothing: executors read."""

    def do_seal(self, dice: int) -> None:
        """Do nothing: there are no batches."""

    def do_resolve(self, dice: int) -> None:
        """Do nothing: there are no trees."""

    def do_expire(self, dice: int) -> None:
        """The same."""
