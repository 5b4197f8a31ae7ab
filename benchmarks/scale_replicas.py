"""Real replicas on a real broker and ZooKeeper: what they write, take and take over.

Every replica is a process, `headrace run` with shared partitions and a commit each second.
What they have done is read from ZooKeeper's nodes, by nothing of the product.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.bench import Bench
from benchmarks.result import Facts, Goal, Table
from benchmarks.scale_processes import COMMIT_SECONDS, SESSION_SECONDS, Processes, wait_for
from service.cli.embedded import Servers

FEW, MANY = 100, 1_000
REPLICAS, KILLS = 8, 3
SESSION_AND = 2.0  # seconds within which a takeover is to be complete, after the time-out
_REPORTS_PER_SECOND = 0.1  # what a replica holds, and plans, while all is settled
_APART_SECONDS = 1.0  # between two starts


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds after a kill until the last of its partitions was claimed, and committed again."""

    partitions: int
    claimed_seconds: float
    committed_seconds: float  # a record that was published after the kill


@dataclass(frozen=True, slots=True)
class OfReplicas:
    """What so many replicas of so many partitions did."""

    partitions: int
    replicas: int
    held: tuple[int, ...]  # partitions of each
    settled_seconds: float  # since the first was started
    idle_writes_per_second: float
    loaded_writes_per_second: float  # with a record of each partition four times a second
    resident_mb: float  # of a replica, the median
    takeovers: tuple[Taken, ...]


@dataclass(frozen=True, slots=True)
class Replicated:
    """The same replicas with few partitions and with many, and some kills."""

    few: OfReplicas
    many: OfReplicas

    @property
    def idle_bytes(self) -> float:
        """Resident bytes for each partition that a process holds more."""
        more = statistics.mean(self.many.held) - statistics.mean(self.few.held)
        return (self.many.resident_mb - self.few.resident_mb) * 1e6 / more

    @property
    def facts(self) -> Facts:
        """For programs."""
        return {
            "few": asdict(self.few),
            "many": asdict(self.many),
            "idle_bytes": round(self.idle_bytes),
        }

    @property
    def goals(self) -> list[Goal]:
        """What is held to the promise: takeovers, and writes that do not grow with partitions."""
        slowest = max(each.claimed_seconds for each in self.many.takeovers)
        most = self.many.replicas * (1 / COMMIT_SECONDS + _REPORTS_PER_SECOND)
        return [
            Goal("takeover by processes, s", slowest, SESSION_SECONDS + SESSION_AND, at_most=True),
            Goal("writes/s under load", self.many.loaded_writes_per_second, most, at_most=True),
        ]

    @property
    def table(self) -> Table:
        """For people."""
        many, few = self.many, self.few
        rows = [
            ("partitions", f"{few.partitions:,}", f"{many.partitions:,}"),
            ("of each", f"{few.held[0]} to {few.held[-1]}", f"{many.held[0]} to {many.held[-1]}"),
            ("all claimed after, s", f"{few.settled_seconds:.0f}", f"{many.settled_seconds:.0f}"),
            (
                "writes/s of all, idle",
                f"{few.idle_writes_per_second:.1f}",
                f"{many.idle_writes_per_second:.1f}",
            ),
            (
                "writes/s of all, under load",
                f"{few.loaded_writes_per_second:.1f}",
                f"{many.loaded_writes_per_second:.1f}",
            ),
            ("MB of a process, median", f"{few.resident_mb:.1f}", f"{many.resident_mb:.1f}"),
            ("kB of a process for an idle partition", "", f"{self.idle_bytes / 1e3:.1f}"),
        ]
        for number, each in enumerate(many.takeovers, 1):
            rows += [
                (f"kill {number}: all of it claimed after, s", "", f"{each.claimed_seconds:.1f}"),
                ("and a fresh record of each committed, s", "", f"{each.committed_seconds:.1f}"),
            ]
        columns = (f"{many.replicas} processes", "few partitions", "many")
        return Table(f"{many.replicas} replicas of the service, measured", columns, rows)


def replicated(bench: Bench) -> Replicated:
    """Measure; a run that is only to show that it works takes two replicas, and kills one."""
    is_short = bench.options.records is not None
    few, many = (4, 12) if is_short else (FEW, MANY)
    replicas, kills = (2, 1) if is_short else (REPLICAS, KILLS)
    bench.progress.step(f"{replicas} replicas of {few:,} partitions")
    fewer = of_replicas(bench.servers, few, replicas, kills=0)
    bench.progress.step(f"{replicas} replicas of {many:,} partitions")
    return Replicated(fewer, of_replicas(bench.servers, many, replicas, kills=kills))


def of_replicas(servers: Servers, partitions: int, replicas: int, kills: int) -> OfReplicas:
    """Start them, look at them, kill some one after the other, and end them in order.

    Raises SystemExit if what is expected does not come, or a record is not committed at the end.
    """
    with Processes(servers, f"scale-{partitions}", partitions) as cluster:
        began = time.monotonic()
        names = [f"r{number}" for number in range(replicas)]
        for name in names:
            cluster.start(name)
            time.sleep(_APART_SECONDS)
        cluster.publish()
        cluster.settle(names)
        cluster.wait_until_stored()
        settled = time.monotonic() - began
        held = tuple(sorted(map(len, cluster.owners().values())))
        idle = cluster.writes_per_second(load=False)
        loaded = cluster.writes_per_second(load=True)
        cluster.wait_until_stored()
        resident = statistics.median(cluster.resident_mb(name) for name in names)
        taken = tuple(_taken(cluster, name, names) for name in names[:kills])
        cluster.end()
        return OfReplicas(partitions, replicas, held, settled, idle, loaded, resident, taken)


def _taken(cluster: Processes, victim: str, names: Sequence[str]) -> Taken:
    """Kill a replica, time the takeover, start it again and let all settle."""
    theirs = cluster.owners()[victim]
    before = cluster.stored(theirs)
    cluster.kill(victim)
    killed = time.monotonic()
    cluster.publish()
    claimed: set[int] = set()
    committed: set[int] = set()
    claimed_at = killed

    def is_done() -> bool:
        nonlocal claimed_at
        now = time.monotonic()
        for number, found in cluster.stored(theirs - committed).items():
            if found.epoch > before[number].epoch and number not in claimed:
                claimed.add(number)
                claimed_at = now
            if number in claimed and found.offset > before[number].offset:
                committed.add(number)
        return committed == theirs

    wait_for(f"the partitions of {victim} are taken over", is_done)
    found = Taken(len(theirs), claimed_at - killed, time.monotonic() - killed)
    cluster.start(victim)
    cluster.settle(names)
    cluster.wait_until_stored()
    return found
