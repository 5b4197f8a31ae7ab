"""Random topologies on two replicas, whose processes, sessions and servers come and go at random.

All servers are in memory and the clock stands still between turns. What each record must become is
known from its number, so that the oracle asks the sinks and the dead letters alone.
"""

import math
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace import SKIP, AdvancedBolt, Bolt, Record, Reject, Retry, To, Topology, bolt, fields
from headrace.sinks import Batch, MemoryDeadLetters, MemorySink
from partition.assignment import AssignmentPolicy
from partition.consumer import ConsumerPolicy
from partition.errors import PartitionError, StoreUnavailable
from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits
from partition.records import Partition
from service.membership import MembershipPolicy
from service.pipeline.build import PipelinePolicy, delivery_of
from sinks.writer import WriteRetries
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore
from tests.support.patience import Limit
from tests.support.pipeline import as_bolt
from tests.support.replicas import Replica
from topology.errors import SinkFailed
from topology.sink import BOTH_KINDS, Committed, DeadLetter, Fence, Sink, Staged
from transactions.transaction import TransactionPolicy

Guarantee = Literal["at-least-once", "at-most-once", "transactional", "opaque"]
GUARANTEES: tuple[Guarantee, ...] = (
    "at-least-once", "at-least-once", "at-most-once", "transactional", "opaque",
)  # fmt: skip
KINDS = ("function", "generator", "async", "blocking", "advanced", "pairs")
SIDE = "side"
COLUMNS = "columns"  # the sink behind a vectorised bolt
REPLICAS = ("a-0", "a-1")
SESSION_SECONDS = 10.0
TIMEOUT_SECONDS = 30.0
TURNS = 120
RECORDS = 40  # about
LONGEST_OUTAGE_SECONDS = 1_000.0
_END_TURNS = 4_000
_END_SECONDS = 30.0


@dataclass
class Step:
    """One bolt: where its values come from (a bolt's place and stream; -1 - i: source i)."""

    kind: str
    order: str
    tasks: int
    inputs: list[tuple[int, str]]
    sinks: set[str] = field(default_factory=set)  # streams that lead into one


@dataclass
class Plan:
    guarantee: Guarantee
    sources: list[str]
    steps: list[Step]
    columns: bool  # the last source goes through a vectorised bolt into a sink of its own


def planned(rng: random.Random, guarantee: Guarantee) -> Plan:
    sources = [f"in-{number}" for number in range(rng.randint(1, 3))]
    columns = len(sources) > 1 and rng.random() < 0.5
    rows = len(sources) - columns
    kinds = {"at-least-once": KINDS, "at-most-once": KINDS[:-1]}.get(guarantee, KINDS[:-2])
    steps: list[Step] = []
    for place in range(rng.randint(1, 5)):
        ends = [(-1 - number, "default") for number in range(rows)]
        ends += [(before, stream) for before in range(place) for stream in ("default", SIDE)]
        kind = rng.choice(kinds)
        is_advanced = kind in ("advanced", "pairs")
        order = "none" if is_advanced else rng.choice(("none", "key", "partition"))
        inputs = rng.sample(ends, min(len(ends), rng.randint(1, 3)))
        steps.append(Step(kind, order, 1 if is_advanced else rng.randint(1, 2), inputs))
    for number in range(rows):  # none is without a reader
        if not any((-1 - number, "default") in step.inputs for step in steps):
            steps[0].inputs.append((-1 - number, "default"))
    used = {end for step in steps for end in step.inputs}
    for place, step in enumerate(steps):
        for stream in ("default", SIDE):
            if (place, stream) not in used or rng.random() < 0.3:
                step.sinks.add(stream)
    return Plan(guarantee, sources, steps, columns)


def _goes_aside(place: int, n: int) -> bool:
    return (n + place) % 4 == 0


def _is_dropped(place: int, n: int) -> bool:
    return (n + place) % 7 == 0


def _copies(kind: str, place: int, n: int) -> int:
    return 1 + (n + place) % 2 if kind == "generator" else 1


def expected(plan: Plan, source: int, n: int) -> Counter[str]:
    """How many rows of a record each sink gets if nothing fails."""
    rows: Counter[str] = Counter()
    if plan.columns and source == len(plan.sources) - 1:
        return +Counter({COLUMNS: n & 7 != 5})
    values = Counter({(-1 - source, "default"): 1})
    for place, step in enumerate(plan.steps):
        arrived = sum(values[end] for end in step.inputs)
        given = 0 if _is_dropped(place, n) else arrived * _copies(step.kind, place, n)
        values[place, SIDE if _goes_aside(place, n) else "default"] = given
        for stream in step.sinks:
            rows[f"s{place}-{stream}"] += values[place, stream]
    return +rows


class World:
    def __init__(self, seed: int, guarantee: Guarantee | None = None) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.plan = planned(rng, guarantee or GUARANTEES[seed % len(GUARANTEES)])
        self.now = 0.0
        count = rng.randint(1, 3)
        self.log = FaultyLog(dict.fromkeys(self.plan.sources, count))
        self.partitions = [
            Partition(topic, number) for topic in self.plan.sources for number in range(count)
        ]
        self.nodes = FaultyNodes()
        self.viewer = FaultyStore(self.nodes)
        self.viewer.open()
        self.away: set[str] = set()  # sinks
        self.calm_from = 0.0  # no trouble before
        self.sinks: dict[str, MemorySink[Any]] = {}
        self.letters: list[DeadLetter] = []
        self.tried: Counter[tuple[int, int]] = Counter()
        self.records: dict[Partition, list[int]] = {each: [] for each in self.partitions}
        self.wanted: dict[int, Counter[str]] = {}
        self.found: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.buried: set[int] = set()
        self._read: Counter[str] = Counter()  # of each sink's rows
        self._done: Counter[Partition] = Counter()
        self.processes: dict[str, Process | None] = dict.fromkeys(REPLICAS)
        self.starts_at = dict.fromkeys(REPLICAS, 0.0)
        self.later: list[tuple[float, Any]] = []  # what happens at a moment
        self.told: list[str] = []
        self.lives = 0

    # What happens

    def say(self, what: str) -> None:
        self.told.append(f"{self.now:.1f} {what}")

    def send(self, count: int) -> None:
        for _ in range(count):
            partition = self.rng.choice(self.partitions)
            n = len(self.wanted)
            self.log.append(partition, b"%d" % n)
            self.records[partition].append(n)
            self.wanted[n] = expected(self.plan, self.plan.sources.index(partition.topic), n)

    def turn(self, seconds: float) -> None:
        soonest = min((moment for moment, _ in self.later), default=math.inf)
        self.now = min(self.now + seconds, max(soonest, self.now))  # one thing after the other
        for due in [each for each in self.later if each[0] <= self.now]:
            self.later.remove(due)
            due[1]()
        for name in self.rng.sample(REPLICAS, len(REPLICAS)):
            process = self.processes[name]
            if process is None and self.now >= self.starts_at[name]:
                self._start(name)
            elif process is not None and self.now >= process.frozen_until:
                try:
                    process.go_on()
                except (PartitionError, SinkFailed) as error:
                    self.say(f"{name} ends: {type(error).__name__}: {error}")
                    self.end(name, 1.0)
        self.check()

    def _start(self, name: str) -> None:
        self.lives += 1
        process = Process(self, name, self.lives)
        try:
            process.open()
        except StoreUnavailable:
            process.end()
            self.starts_at[name] = self.now + 5.0
        else:
            self.processes[name] = process
            self.say(f"{name} starts")

    def end(self, name: str, away_seconds: float) -> None:
        """Let a process be killed; another one is started later."""
        process = self.processes[name]
        self.starts_at[name] = self.now + away_seconds
        self.processes[name] = None
        if process is not None:
            process.end()
            session_ends = self.now + self.rng.uniform(0, SESSION_SECONDS)
            self.later.append((session_ends, process.store.close))

    def trouble(self) -> None:
        rng = self.rng
        does = rng.choice(
            (
                self._kill, self._stop, self._freeze, self._lose_session, self._lose_zookeeper,
                self._lose_kafka, self._lose_sinks, self._besiege, self._lose_reply,
            )
        )  # fmt: skip
        name = rng.choice(REPLICAS)
        is_long = rng.random() < 0.4
        seconds = rng.uniform(300, LONGEST_OUTAGE_SECONDS) if is_long else rng.uniform(1, 40)
        self.say(f"{does.__name__} {name} {seconds:.0f} s")
        does(name, seconds)

    def _kill(self, name: str, seconds: float) -> None:
        self.end(name, self.rng.choice((0.0, 1.0, seconds)))

    def _stop(self, name: str, seconds: float) -> None:
        if process := self.processes[name]:
            process.drain()
        self._kill(name, seconds)

    def _freeze(self, name: str, seconds: float) -> None:
        if process := self.processes[name]:
            process.frozen_until = self.now + seconds
            if seconds > SESSION_SECONDS:
                self.later.append((self.now + SESSION_SECONDS, process.store.end_session))

    def _lose_session(self, name: str, _seconds: float) -> None:
        if process := self.processes[name]:
            process.store.end_session()

    def _lose_zookeeper(self, _name: str, seconds: float) -> None:
        self.nodes.away = True
        self.later.append((self.now + seconds, self._zookeeper_is_back))

    def _lose_kafka(self, _name: str, seconds: float) -> None:
        self.log.away = True
        self.later.append((self.now + seconds, self._kafka_is_back))

    def _lose_sinks(self, _name: str, seconds: float) -> None:
        for sink in self.rng.sample(sorted(self.sinks), self.rng.randint(1, len(self.sinks))):
            self._take_away(sink, seconds)

    def _lose_reply(self, _name: str, _seconds: float) -> None:
        self.nodes.lose_replies += 1

    def _besiege(self, name: str, _seconds: float) -> None:
        """Take all sinks away for longer than anything waits, with hand-overs early and late."""
        rng = self.rng
        for sink in self.sinks:
            self._take_away(sink, LONGEST_OUTAGE_SECONDS - rng.uniform(0, 20))
        self.end(name, rng.uniform(0, 10))
        late = self.now + LONGEST_OUTAGE_SECONDS - rng.uniform(30, 80)
        self.later.append((late, lambda: self.end(name, 60.0)))
        self.calm_from = self.now + LONGEST_OUTAGE_SECONDS

    def _take_away(self, sink: str, seconds: float) -> None:
        self.away.add(sink)
        self.later.append((self.now + seconds, lambda: self.away.discard(sink)))

    def _zookeeper_is_back(self) -> None:
        for process in self.processes.values():
            if process is not None and self.rng.random() < 0.5:
                process.store.end_session()
        self.nodes.away = False

    def _kafka_is_back(self) -> None:
        self.log.away = False

    def play(self) -> None:
        """Send records and make trouble, then let all heal, and judge."""
        rng = self.rng
        try:
            for _ in range(TURNS):
                if rng.random() < RECORDS / 2 / TURNS:
                    self.send(rng.randint(1, 3))
                if self.sinks and self.now >= self.calm_from and rng.random() < 0.12:
                    self.trouble()
                is_out = self.away or self.log.away or self.nodes.away
                pause = rng.choice((0.05, 0.2, 0.5, 1.0, 3.0))
                self.turn(rng.uniform(2, 60) if is_out and rng.random() < 0.5 else pause)
            self._heal()
            self._finish()
            self._judge()
        except Exception as error:
            error.add_note(f"seed {self.seed}: {self.plan}\n" + "\n".join(self.told[-60:]))
            raise
        finally:
            for process in self.processes.values():
                if process is not None:
                    process.end()

    def _heal(self) -> None:
        self.later = [each for each in self.later if each[0] <= self.now + SESSION_SECONDS]
        self.away.clear()
        self._kafka_is_back()
        self._zookeeper_is_back()
        self.nodes.lose_replies = 0
        for process in self.processes.values():
            if process is not None:
                process.frozen_until = 0.0
        self.say("all is well again")

    def _finish(self) -> None:
        limit = Limit(_END_SECONDS)
        for _ in range(_END_TURNS):
            if all(self._stored(each) == len(self.records[each]) for each in self.partitions):
                return
            self.turn(0.5)
            if limit.passed:
                break
        left = {
            str(each): (self._stored(each), self._done[each], len(self.records[each]))
            for each in self.partitions
        }
        parts = {
            name: process
            and (
                sorted(map(str, process.reader.assignment.holds)),
                process.reader.assignment.halted,
            )
            for name, process in self.processes.items()
        }
        raise AssertionError(f"not all is stored: (stored, done, sent) {left}; {parts}")

    # What is so

    def _stored(self, partition: Partition) -> int:
        found = self.viewer.load(partition)
        return 0 if found is None else found.offset

    def check(self) -> None:
        """No offset is stored that passes a record which is not done, nor too many rows there."""
        for name, sink in self.sinks.items():
            rows = list(sink.rows[self._read[name] :])
            self._read[name] += len(rows)
            for row in rows:
                n = row["n"]
                self.found[n][name] += 1
                assert name in self.wanted[n], f"record {n} has a row in {name}, not its own"
                if self.plan.guarantee != "at-least-once":
                    count = self.found[n][name]
                    assert count <= self.wanted[n][name], f"record {n} is {count} times in {name}"
        self.buried = {int(letter.record.value or b"") for letter in list(self.letters)}
        if self.nodes.away or self.plan.guarantee == "at-most-once":
            return
        for partition, numbers in self.records.items():
            while self._done[partition] < len(numbers) and self.is_done(
                numbers[self._done[partition]]
            ):
                self._done[partition] += 1
            stored, done = self._stored(partition), self._done[partition]
            if stored > done:
                raise AssertionError(
                    f"{partition}: {stored} is stored, but record {numbers[done]} at {done} is "
                    f"neither in its sinks nor a dead letter: {self.found[numbers[done]]} of "
                    f"{self.wanted[numbers[done]]}"
                )

    def is_done(self, n: int) -> bool:
        """Whether all rows of a record are there, or its dead letter is."""
        return n in self.buried or self.found[n] >= self.wanted[n]

    def _judge(self) -> None:
        if self.plan.guarantee == "at-most-once":
            return
        lost = [n for n in self.wanted if not self.is_done(n)]
        assert not lost, f"lost: {lost}"


class Door(Sink[Any]):
    """A process's way to a sink: shut while the sink is away, and once the process is dead."""

    def __init__(self, process: "Process", name: str) -> None:
        self.name, self.kinds = name, BOTH_KINDS
        self._process = process
        self._sink = process.world.sinks.setdefault(name, MemorySink(name))
        self._rng = random.Random(f"{process.world.seed} {name} {process.number}")

    def open(self, context: Any) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        self._may()
        return self._sink.fence(fences)

    def stage(self, group: Batch) -> Staged:
        self._may()
        return self._sink.stage(group)

    def commit(self, staged: Staged) -> None:
        self._may()
        self._sink.commit(staged)
        self._answer()

    def discard(self, staged: Staged) -> None:
        self._sink.discard(staged)

    def _may(self) -> None:
        is_away = self.name in self._process.world.away
        if self._process.is_dead or is_away or self._rng.random() < 0.05:
            raise ConnectionError("the sink is away")

    def _answer(self) -> None:
        if self._rng.random() < 0.05:
            raise ConnectionError("the reply is lost")


class Process(Replica):
    def __init__(self, world: World, name: str, number: int) -> None:
        self.world, self.number = world, number
        self.is_dead = False
        self.frozen_until = 0.0
        topology = wired(self)
        topology.dead_letters.into(_Letters(self))
        topology.validate()
        transactions = TransactionPolicy(
            topology.transactions, records=5, plan_records=3, plan_seconds=0.0
        )
        assignment = AssignmentPolicy(
            limits=InFlightLimits(max_pending=8),
            retries=RetryPolicy(limit=5),
            delivery=delivery_of(topology, transactions),
            discover_interval_seconds=5.0,
            shared=True,
        )
        super().__init__(
            name,
            topology,
            world.log,
            world.nodes,
            consumer=ConsumerPolicy(
                assignment, commit_interval_seconds=0.5, fetch_records=6, chunk_records=3
            ),
            pipeline=PipelinePolicy(TIMEOUT_SECONDS, write_retries=WriteRetries(0.001, 0.005)),
            membership=MembershipPolicy(name),
            clock=lambda: world.now,
            seed=1_000 * world.seed + number,
        )

    def go_on(self) -> None:
        flush = bool(self.reader.leaving) or self.world.rng.random() < 0.5
        self.turn(self.world.now, flush=flush)

    def drain(self) -> None:
        """End as a process does that is told to: finish what can be, and commit."""
        for _ in range(20):
            if self.pipeline.is_idle:
                break
            self.pipeline.step(fetch=False, flush=True, drain=True)
        for _ in range(3):
            self.pipeline.poll(self.world.now, opens=False)
            self.reader.commit(self.world.now, force=True)

    def end(self) -> None:
        """Write and store nothing more, and leave no thread behind."""
        self.is_dead = True
        self.pipeline.close(20.0)


class _Letters(MemoryDeadLetters):
    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def send(self, letter: Any, token: int) -> None:
        if self._process.is_dead:
            return
        assert isinstance(letter, DeadLetter), f"records are given up: {letter}"
        self._process.world.letters.append(letter)
        super().send(letter, token)


@bolt
def _parsed(record: Record) -> dict[str, int]:
    return {"n": int(record.value or b"")}


@bolt(vectorised=True, columns=["value"])
def _parsed_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = pc.cast(pc.cast(batch["value"], pa.string()), pa.int64())
    kept = pc.not_equal(pc.bit_wise_and(numbers, 7), 5)
    return batch.append_column("n", numbers).drop_columns(["value"]).filter(kept)


def wired(process: Process) -> Topology:
    """Make the topology, with bolts that fail at times."""
    plan = process.world.plan
    how: dict[str, Any] = {"reliability": plan.guarantee}
    if plan.guarantee in ("transactional", "opaque"):
        how = {"reliability": "exactly-once", "transactions": plan.guarantee}
    topology = Topology("random", **how)
    streams: dict[tuple[int, str], Any] = {}
    for number, source in enumerate(plan.sources):
        read = topology.source(source)
        if plan.columns and source == plan.sources[-1]:
            read.then(_parsed_columns).into(Door(process, COLUMNS), batch_rows=3, batch_seconds=2.0)
        else:
            streams[-1 - number, "default"] = read.then(_parsed, name=f"p{number}")
    for place, step in enumerate(plan.steps):
        first, *others = (streams[end] for end in step.inputs)
        before = first.merge(*others) if others else first
        if step.order == "key":
            before = before.keyed_by("n")
        elif step.order == "partition":
            before = before.ordered()
        spread = {"tasks": step.tasks, "grouping": fields("n")} if step.tasks > 1 else {}
        own, here = BOLTS.get(step.kind), _Place(process.world, step.kind, place)
        create = partial(own, here) if own else partial(as_bolt, step.kind, here.result)
        after = before.then(create, name=f"b{place}", streams=(SIDE,), **spread)
        for stream in ("default", SIDE):
            streams[place, stream] = after[stream]
        for stream in sorted(step.sinks):
            sink = Door(process, f"s{place}-{stream}")
            after[stream].into(sink, batch_rows=3, batch_seconds=2.0)
    return topology


@dataclass(frozen=True)
class _Place:
    world: World
    kind: str
    number: int

    def fail(self, n: int) -> None:
        """Fail a fifth of the records for some times, and one of fifty for good."""
        drawn = random.Random(zlib.crc32(b"%d %d %d" % (self.world.seed, self.number, n)))
        fate = drawn.random()
        self.world.tried[self.number, n] += 1
        if fate < 0.02:
            raise Reject("never")
        if fate < 0.2 and self.world.tried[self.number, n] <= drawn.randint(1, 3):
            if fate < 0.1:
                raise Retry("later", after_seconds=drawn.uniform(0.5, 50))
            raise ValueError("this time")

    def result(self, value: Any) -> Any:
        n = value["n"]
        self.fail(n)
        if _is_dropped(self.number, n):
            return SKIP
        return To(SIDE, value) if _goes_aside(self.number, n) else value

    def emit(self, collector: Any, anchors: list[Any], value: Any) -> None:
        n = value["n"]
        self.fail(n)
        if not _is_dropped(self.number, n):
            stream = SIDE if _goes_aside(self.number, n) else "default"
            collector.emit(value, anchors=anchors, stream=stream)


class _Generator(Bolt[Any, Any]):
    def __init__(self, place: _Place) -> None:
        self.place = place

    def process(self, value: Any, /) -> Iterator[Any]:
        given = self.place.result(value)
        for _ in range(_copies(self.place.kind, self.place.number, value["n"])):
            yield given


class _Advanced(AdvancedBolt[Any, Any]):
    def __init__(self, place: _Place) -> None:
        self.place = place

    def process(self, tuple_: Any, collector: Any, /) -> None:
        self.place.emit(collector, [tuple_], tuple_.value)
        collector.ack(tuple_)


class _Pairs(AdvancedBolt[Any, Any]):
    """Anchors the values of two tuples to both; one that stays alone leaves with a tick."""

    tick_seconds = 5.0

    def __init__(self, place: _Place) -> None:
        self.place = place
        self.kept: list[Any] = []

    def process(self, tuple_: Any, collector: Any, /) -> None:
        self.kept = [*collector.pending(self.kept), tuple_]
        if len(self.kept) > 1:
            self._give(collector, self.kept)

    def tick(self, collector: Any, /) -> None:
        self._give(collector, list(collector.pending(self.kept)))

    def _give(self, collector: Any, together: list[Any]) -> None:
        self.kept = []
        for each in together:
            self.place.emit(collector, together, each.value)
        for each in together:
            collector.ack(each)


BOLTS: dict[str, type[Any]] = {"generator": _Generator, "advanced": _Advanced, "pairs": _Pairs}
