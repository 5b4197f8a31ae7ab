"""Suite scale: how many partitions and replicas one ZooKeeper carries, by a model; and a bit of it.

The model (`scale_model`) needs no server. Then claims, commits and heartbeats are measured on a
ZooKeeper that the suite starts, if there is Java, memory and the owner thread in this process, and
eight replicas of the service, some of which are killed (`scale_replicas`).
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.bench import Bench
from benchmarks.result import Facts, Goal, Result, Table
from benchmarks.scale_ensemble import ZooKeeper
from benchmarks.scale_measured import (
    Memory,
    OnZooKeeper,
    OwnerThread,
    memory,
    on_zookeeper,
    owner_thread,
)
from benchmarks.scale_model import (
    AS_BUILT,
    OPERATIONS,
    SPARING,
    SPLIT,
    Design,
    Found,
    steady,
    takeover,
)
from benchmarks.scale_replicas import SESSION_AND, Replicated, replicated
from benchmarks.scale_weights import Cluster, Weights, weigh
from partition.offsets.znode import MAX_BYTES
from service.devservers.java import DevServerError

SEEDS = 3
STEADY_SECONDS = 30
REFERENCE = ZooKeeper(servers=1, written_bytes_per_second=110e6, tick_seconds=0.5)
ENSEMBLE = ZooKeeper()
NOTES = """\
What is said to be of the model was calculated, the rest was measured. `5 s` is the commit
interval, where it is not one second. "Never" is not within two minutes. Takeovers are the
slowest of three seeds', and their rates those of the busiest second; "others" are reads and
syncs. In the first table: reading the plan, reading all members, and making a plan, without
and with a change."""


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster that follows a design, on an ensemble."""

    name: str
    cluster: Cluster
    design: Design
    zookeeper: ZooKeeper = ENSEMBLE


_SELDOM = Cluster(100_000, 500, 100, commit_seconds=5.0)
CASES = (
    Case("1,000 / 8, one server", Cluster(1_000, 8), AS_BUILT, REFERENCE),
    Case("1,000 / 8", Cluster(1_000, 8), AS_BUILT),
    Case("10,000 / 50", Cluster(10_000, 50, 10), AS_BUILT),
    Case("10,000 / 50, sparing", Cluster(10_000, 50, 10), SPARING),
    Case("30,000 / 150", Cluster(30_000, 150, 30), AS_BUILT),
    Case("100,000 / 500", Cluster(100_000, 500, 100), AS_BUILT),
    Case("100,000 / 500, 5 s", _SELDOM, AS_BUILT),
    Case("100,000 / 500, 5 s, sparing", _SELDOM, SPARING),
    Case("100,000 / 500, 5 s, split", _SELDOM, SPLIT),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the model says of a case."""

    case: Case
    weights: Weights
    steady: Found
    one: Found  # killed
    half: Found

    @property
    def strains(self) -> dict[str, float]:
        """How much of each limit is used; above 1 it is passed."""
        load, weights, cluster = self.steady.load, self.weights, self.case.cluster
        parts = cluster.replicas if self.case.design.plan_by_member else 1
        can = self.case.zookeeper
        # What is asked for, too: replicas that wait for answers ask for less.
        of_partition = OPERATIONS / can.operations_per_second
        of_partition += weights.offset_bytes / can.written_bytes_per_second
        commits = cluster.partitions * of_partition / cluster.commit_seconds
        plans = cluster.replicas * weights.plan_bytes / cluster.beat_seconds
        plans *= self.case.design.plan_always / can.servers / can.sent_bytes_per_second
        return {
            "the plan's node": weights.plan_bytes / parts / MAX_BYTES,
            "a member's node": weights.member_bytes / MAX_BYTES,
            "a topic's node": weights.topic_bytes / MAX_BYTES,
            "ZooKeeper's leader": max(load.leader_busy, commits),
            "ZooKeeper's answers": max(load.servers_busy, plans),
            "the leader's heartbeat": _median(self.steady.leader_beats) / cluster.beat_seconds,
            "a heartbeat": _median(self.steady.beats) / cluster.beat_seconds,
        }

    @property
    def facts(self) -> Facts:
        """For programs."""
        return {
            "case": self.case.name,
            "partitions": self.case.cluster.partitions,
            "replicas": self.case.cluster.replicas,
            "design": self.case.design.name,
            "plan_bytes": self.weights.plan_bytes,
            "next_plan_seconds": round(self.weights.next_plan_seconds, 4),
            "reads_per_second": round(self.steady.load.gets, 1),
            "syncs_per_second": round(self.steady.load.syncs, 1),
            "writes_per_second": round(self.steady.load.writes, 2),
            "sent_mb_per_second": round(self.steady.load.sent_bytes / 1e6, 3),
            "written_mb_per_second": round(self.steady.load.written_bytes / 1e6, 3),
            "takeover_seconds_of_one": _rounded(self.one.claimed_seconds),
            "takeover_seconds_of_half": _rounded(self.half.claimed_seconds),
            "strains": {name: round(value, 3) for name, value in self.strains.items()},
        }


def run(bench: Bench) -> Result:
    """Run the model, then measure."""
    outcomes = []
    weights: dict[tuple[int, int, int], Weights] = {}
    for number, case in enumerate(CASES):
        bench.progress.step(f"model: {case.name}", number, len(CASES))
        cluster = case.cluster
        shape = (cluster.partitions, cluster.replicas, cluster.topics)
        weights[shape] = weights.get(shape) or weigh(cluster)
        outcomes.append(outcome(case, weights[shape]))
    bench.progress.step("memory")
    memories = [memory(partitions) for partitions in (1_000, 10_000)]
    owners = [owner_thread(1_000, 125), owner_thread(10_000, 200)]
    bench.progress.step("claims on a ZooKeeper")
    real: OnZooKeeper | None = None
    why_not = ""
    try:
        real = on_zookeeper(partitions=1_000, members=8)
    except DevServerError as error:
        why_not = f" Nothing was measured on a ZooKeeper: {error}."
    replicas: Replicated | None = None
    if real is not None:
        replicas = replicated(bench)
    facts: Facts = {
        "model": [each.facts for each in outcomes],
        "measured": None if real is None else asdict(real),
        "replicas": None if replicas is None else replicas.facts,
        "memory": [asdict(each) for each in memories],
        "owner_thread": [asdict(each) for each in owners],
    }
    tables = [
        _weights(outcomes),
        _steady(outcomes),
        _takeovers(outcomes),
        _strains(outcomes),
        _here(memories, owners, real),
    ]
    wanted = goals(outcomes[0], real)
    if replicas is not None:
        tables.append(replicas.table)
        wanted += replicas.goals
    return Result("scale", facts, tables, wanted, NOTES + why_not)


def outcome(case: Case, weights: Weights) -> Outcome:
    """What the model says of a case: of the takeovers the slowest of some."""
    given = (case.cluster, weights, case.design, case.zookeeper)
    replicas = case.cluster.replicas

    def slowest(killed: int) -> Found:
        found = [takeover(*given, killed=killed, seed=seed) for seed in range(SEEDS)]
        return max(found, key=lambda each: (each.claimed_seconds is None, each.claimed_seconds))

    return Outcome(
        case,
        weights,
        steady(*given, seconds=STEADY_SECONDS),
        slowest(1),
        slowest(max(1, replicas // 2)),
    )


def goals(first: Outcome, real: OnZooKeeper | None) -> list[Goal]:
    """What is held to the promise: 1,000 partitions over 8 replicas."""
    limit = first.case.zookeeper.session_seconds + SESSION_AND
    claimed = first.one.claimed_seconds
    found = [Goal("takeover, s (model)", claimed or 1e9, limit, at_most=True)]
    if real is not None:
        # One of 8 replicas is gone: each of the others claims a seventh of its share.
        seconds = real.claim_seconds / real.partitions * -(-real.partitions // 8 // 7)
        found.append(Goal("claims of a takeover, s", seconds, SESSION_AND, at_most=True))
    return found


def _weights(outcomes: Sequence[Outcome]) -> Table:
    rows = [
        (
            f"{each.case.cluster.partitions:,} / {each.case.cluster.replicas}",
            f"{each.weights.plan_bytes / 1e3:,.0f}",
            f"{each.weights.plan_bytes / MAX_BYTES:.0%}",
            f"{each.weights.member_bytes / 1e3:.1f}",
            f"{each.weights.topic_bytes / 1e3:.1f}",
            f"{each.weights.decode_plan_seconds * 1e3:,.0f}",
            f"{each.weights.decode_members_seconds * 1e3:,.0f}",
            f"{each.weights.next_plan_seconds * 1e3:,.0f}",
            f"{each.weights.new_plan_seconds * 1e3:,.0f}",
        )
        for each in {one.weights.plan_bytes: one for one in outcomes}.values()
    ]
    columns = (
        "partitions / replicas", "plan kB", "of most", "member kB", "topic kB", "read ms",
        "members ms", "same ms", "new ms",
    )  # fmt: skip
    return Table("Nodes, and the work on all of the plan, measured", columns, rows)


def _steady(outcomes: Sequence[Outcome]) -> Table:
    rows = [
        (
            each.case.name,
            f"{each.steady.load.gets:,.0f}",
            f"{each.steady.load.syncs:,.0f}",
            f"{each.steady.load.writes:,.1f}",
            f"{each.steady.load.sent_bytes / 1e6:,.1f}",
            f"{each.steady.load.written_bytes / 1e6:,.1f}",
            _milliseconds(each.steady.beats),
            _milliseconds(each.steady.leader_beats),
        )
        for each in outcomes
    ]
    columns = (
        "partitions / replicas", "reads/s", "syncs/s", "writes/s", "MB/s out", "MB/s in",
        "beat ms", "leader ms",
    )  # fmt: skip
    return Table("Steady, model", columns, rows)


def _takeovers(outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for each in outcomes:
        for killed, found in (("one", each.one), ("half", each.half)):
            rows.append(
                (
                    f"{each.case.name}: {killed}",
                    _shown(found.expired_seconds),
                    _shown(found.planned_seconds),
                    _shown(found.claimed_seconds),
                    f"{found.load.writes:,.0f}",
                    f"{found.load.gets + found.load.syncs:,.0f}",
                    f"{found.load.sent_bytes / 1e6:,.0f}",
                )
            )
    columns = (
        "killed", "expired s", "planned s", "claimed s", "writes/s", "others/s", "MB/s out",
    )  # fmt: skip
    return Table("Takeover, model: seconds after the kill", columns, rows)


def _strains(outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for each in outcomes:
        first = sorted(each.strains.items(), key=lambda strain: -strain[1])[:3]
        rows.append((each.case.name, *(f"{name}: {value:.0%}" for name, value in first)))
    columns = ("partitions / replicas", "nearest its limit", "second", "third")
    return Table("What is nearest its limit, model", columns, rows)


def _here(
    memories: Iterable[Memory], owners: Iterable[OwnerThread], real: OnZooKeeper | None
) -> Table:
    found: dict[str, str] = {}
    for each in memories:
        found[f"bytes of a partition of ours that is idle, of {each.partitions:,}"] = (
            f"{each.idle_bytes:,.0f}"
        )
        found[f"bytes of a partition of another's, of {each.partitions:,}"] = (
            f"{each.known_bytes:,.0f}"
        )
    for one in owners:
        found[f"owner thread, {one.known:,} known: to learn of them, s"] = (
            f"{one.learn_seconds:.2f}"
        )
        found[f"owner thread, {one.known:,} known: a turn, ms"] = f"{one.turn_seconds * 1e3:.2f}"
        found[f"owner thread, {one.known:,} known: a report, ms"] = (
            f"{one.report_seconds * 1e3:.2f}"
        )
    found.update(_on_zookeeper(real) if real is not None else {})
    return Table("Measured here", ("what", "found"), list(found.items()))


def _on_zookeeper(real: OnZooKeeper) -> Mapping[str, str]:
    count = f"{real.partitions:,} partitions"
    return {
        f"{count} begun for the first time, s": f"{real.begin_seconds:.2f}",
        f"{count} claimed, all at once, s": f"{real.claim_seconds:.2f}",
        f"writes of {count} claimed": f"{real.claim_writes:,}",
        f"{count} committed, s": f"{real.commit_seconds:.3f}",
        f"writes of {count} committed": f"{real.commit_writes:,}",
        "an operation in a commit, µs of ZooKeeper's processor time": (
            f"{real.server_us_per_operation:.1f}"
        ),
        "an operation in a commit, µs of ours": f"{real.own_us_per_operation:.1f}",
        "one partition committed, ms": f"{real.small_commit_seconds * 1e3:.2f}",
        f"heartbeat of one of {real.members}, ms": f"{real.beat_seconds * 1e3:.1f}",
        f"heartbeat of the leader of {real.members}, ms": f"{real.leader_beat_seconds * 1e3:.1f}",
    }


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) if seconds else float(STEADY_SECONDS)  # none has ended


def _milliseconds(seconds: Sequence[float]) -> str:
    return f"{'' if seconds else '> '}{_median(seconds) * 1e3:,.0f}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _shown(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f}"
