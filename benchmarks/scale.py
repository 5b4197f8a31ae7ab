"""Suite scale: claims, commits, heartbeats and memory of many partitions, and takeovers.

Claims, commits and heartbeats are measured on a ZooKeeper that the suite starts, memory and the
owner thread in this process, and eight replicas of the service as processes, some of which are
killed (`scale_replicas`).
"""

import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.bench import Bench
from benchmarks.measured import parse
from benchmarks.result import Facts, Goal, Result, Table
from benchmarks.scale_replicas import SESSION_AND, replicated, writes_of
from partition.assigned_partition import AssignedPartition
from partition.assignment import Assignment, AssignmentPolicy
from partition.delivery import AtLeastOnce
from partition.interfaces import Progress, Topic
from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits, PartitionManager
from partition.memory.ports import MemoryCatalogue, MemoryFetcher, MemoryLog, MemoryStore
from partition.offsets.holdings import NodeNames
from partition.records import Partition, Position
from partition.recovery import Ways
from partition.replicas.balance import Member
from partition.replicas.heartbeat import Heartbeats, Report
from partition.zookeeper.zookeeper_store import ZooKeeperStore
from service.devservers.servers import EmbeddedZooKeeper

ROOT, PIPELINE = "/headrace", "scale"
WAIT_SECONDS = 120.0
BEATS = 20
COMMITS = 20
OPERATIONS = 2  # of a partition's part in a write: set its node, check the one below


def run(bench: Bench) -> Result:
    bench.progress.step("memory")
    memories = [memory(partitions) for partitions in (1_000, 10_000)]
    owners = [owner_thread(1_000, 125), owner_thread(10_000, 200)]
    bench.progress.step("claims on a ZooKeeper")
    real = on_zookeeper(partitions=1_000, members=8)
    replicas = replicated(bench)
    # One of 8 replicas is gone: each of the others claims a seventh of its share.
    seconds = real["claim_seconds"] / real["partitions"] * -(-real["partitions"] // 8 // 7)
    found = {"measured": real, "replicas": replicas.facts}
    return Result(
        "scale",
        {**found, "memory": memories, "owner_thread": owners},
        [_table(memories, owners, real), replicas.table],
        [Goal("claims of a takeover, s", seconds, SESSION_AND, at_most=True), *replicas.goals],
    )


def on_zookeeper(partitions: int, members: int) -> Facts:
    """Measure on a ZooKeeper that starts for it: seconds, and the writes that the server counted.

    The processor time of an operation in a commit is that of all the server's threads, and ours.
    """
    with ExitStack() as closing:
        folder = closing.enter_context(TemporaryDirectory(prefix="headrace-bench-"))
        server = EmbeddedZooKeeper(Path(folder), heap_mb=256)
        closing.callback(server.close)
        server.open()
        names = NodeNames(ROOT, PIPELINE, PIPELINE)
        stores = [ZooKeeperStore(server.address, names) for _ in range(members)]
        for store in stores:
            closing.callback(store.close)
            store.open()
        every = [Partition("orders", number) for number in range(partitions)]
        first, second = stores[:2]
        begin = _seconds(first.claim(each) for each in every)
        begin += _seconds(first.begin(each, Position(0), partitions) for each in every)
        before = writes_of(server.port)
        claim = _seconds(second.claim(each) for each in every)
        claimed = writes_of(server.port)
        commit = _commit(second, every, 10)
        committed = writes_of(server.port)
        server_us, own_us = _processor_us(server, second, every)
        leader, beat = _beats(stores, every)
        return {
            "partitions": partitions,
            "begin_seconds": begin,
            "claim_seconds": claim,
            "claim_writes": claimed - before,
            "commit_seconds": commit,
            "commit_writes": committed - claimed,
            "server_us_per_operation": server_us,
            "own_us_per_operation": own_us,
            "small_commit_seconds": min(
                _commit(second, every[:1], at) for at in range(1_000, 1_010)
            ),
            "members": members,
            "beat_seconds": beat,
            "leader_beat_seconds": leader,
        }


def memory(partitions: int) -> Facts:
    """Bytes of Python's for each partition: another replica's, and an idle one of ours."""
    topic = Topic("orders", "Xq3vX2cJSxGZ0u1mR2Yw8A", tuple(range(partitions)))
    rng = random.Random(1)  # noqa: S311 - a retry's jitter
    keys = [Partition("orders", number) for number in range(partitions)]
    gc.collect()
    tracemalloc.start()
    try:
        began = tracemalloc.get_traced_memory()[0]
        held = [AssignedPartition(key, place, topic) for place, key in enumerate(keys)]
        known = tracemalloc.get_traced_memory()[0]
        for each in held:
            each.manager = PartitionManager(
                each.partition,
                Position(each.index, 7, topic.topic_id),
                InFlightLimits(),
                RetryPolicy(),
                rng,
                AtLeastOnce,
            )
        idle = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    return {
        "partitions": partitions,
        "known_bytes": (known - began) / partitions,
        "idle_bytes": (idle - began) / partitions,
    }


def owner_thread(known: int, own: int) -> Facts:
    """Measure what a replica does about all partitions it knows, of which some are its own.

    Seconds of processor time: once, when the topics are told; every turn (`Assignment.poll` with
    nothing to do); every heartbeat (what is known, and what is held).
    """
    log = MemoryLog({"orders": known})
    fetcher, store, catalogue = MemoryFetcher(log), MemoryStore(), MemoryCatalogue(log)
    for each in (fetcher, store, catalogue):
        each.open()
    ways = Ways(store, catalogue, lambda _loss: Future())
    rng = random.Random(1)  # noqa: S311 - a retry's jitter
    assignment = Assignment(fetcher, ways, ["orders"], AssignmentPolicy(shared=True), rng)
    learn_seconds = _processor_seconds(assignment.poll, 0.0)
    mine = frozenset(Partition("orders", number) for number in range(own))
    assignment.want(mine, planned_at=0.2, leave_by=60.0)
    for _turn in range(5):
        assignment.poll(0.3)
    if assignment.holds != mine or not assignment.is_settled:
        raise SystemExit("not every partition was opened")
    turns = sorted(_processor_seconds(assignment.poll, 0.4) for _ in range(9))
    reports = sorted(
        _processor_seconds(lambda: (assignment.holds, assignment.known)) for _ in range(9)
    )
    return {
        "known": known,
        "own": own,
        "learn_seconds": learn_seconds,
        "turn_seconds": turns[4],
        "report_seconds": reports[4],
    }


def _processor_seconds(work: Callable[..., object], *arguments: object) -> float:
    started = time.process_time()
    work(*arguments)
    return time.process_time() - started


def _commit(store: ZooKeeperStore, partitions: Sequence[Partition], offset: int) -> float:
    started = time.perf_counter()
    done = dict.fromkeys(partitions, Progress(Position(offset, 7)))
    refused = store.commit(done).result(WAIT_SECONDS)
    if refused:
        raise SystemExit(f"{len(refused)} of {len(partitions)} partitions were refused")
    return time.perf_counter() - started


def _processor_us(
    server: EmbeddedZooKeeper, store: ZooKeeperStore, partitions: Sequence[Partition]
) -> tuple[float, float]:
    """Microseconds of processor time per operation of a commit: the server's, and ours."""
    stat = Path(f"/proc/{server.pid}/stat")
    of_server, own = parse(stat.read_text(encoding="utf-8")).seconds, time.process_time()
    for turn in range(COMMITS):
        _commit(store, partitions, 100 + turn)
    own = time.process_time() - own
    of_server = parse(stat.read_text(encoding="utf-8")).seconds - of_server
    operations = COMMITS * OPERATIONS * len(partitions)
    return of_server / operations * 1e6, own / operations * 1e6


def _beats(
    stores: Sequence[ZooKeeperStore], partitions: Sequence[Partition]
) -> tuple[float, float]:
    """The leader's heartbeat and another's, each the median, all having the plan in their hands."""
    replicas = [
        (store, Heartbeats(ROOT, PIPELINE, Member(f"headrace-{place}", f"process-{place}")))
        for place, store in enumerate(stores)
    ]
    every = frozenset(partitions)
    seen = [0] * len(stores)
    holds: list[frozenset[Partition]] = [frozenset()] * len(stores)
    times: list[list[float]] = [[] for _ in stores]
    for turn in range(BEATS):
        for place, (store, heartbeats) in enumerate(replicas):
            started = time.perf_counter()
            report = Report(holds[place], seen[place], every)
            view = store.submit(heartbeats.beat(report)).result(WAIT_SECONDS)
            if turn >= BEATS // 2:  # by then everyone holds what is its own
                times[place].append(time.perf_counter() - started)
            if view.plan is not None:
                seen[place] = view.plan.number
                holds[place] = view.plan.of(f"headrace-{place}")
    if sum(map(len, holds)) != len(every):
        raise SystemExit("the replicas do not hold every partition")
    return sorted(times[0])[BEATS // 4], sorted(times[1])[BEATS // 4]


def _seconds(futures: Iterable[Future[Any]]) -> float:
    started = time.perf_counter()
    for future in list(futures):
        future.result(WAIT_SECONDS)
    return time.perf_counter() - started


def _table(memories: Iterable[Facts], owners: Iterable[Facts], real: Facts) -> Table:
    rows = []
    for each in memories:
        of = f", of {each['partitions']:,}"
        rows.append((f"bytes of an idle partition of ours{of}", f"{each['idle_bytes']:,.0f}"))
        rows.append((f"bytes of another replica's partition{of}", f"{each['known_bytes']:,.0f}"))
    for one in owners:
        of = f"owner thread, {one['known']:,} partitions known"
        rows.append((f"{of}: to learn of them, s", f"{one['learn_seconds']:.2f}"))
        rows.append((f"{of}: a turn, ms", f"{one['turn_seconds'] * 1e3:.2f}"))
        rows.append((f"{of}: a report, ms", f"{one['report_seconds'] * 1e3:.2f}"))
    of = f"{real['partitions']:,} partitions"
    what = {
        f"{of} begun for the first time, s": "{begin_seconds:.2f}",
        f"{of} claimed, all at once, s": "{claim_seconds:.2f}",
        f"writes of {of} claimed": "{claim_writes:,}",
        f"{of} committed, s": "{commit_seconds:.3f}",
        f"writes of {of} committed": "{commit_writes:,}",
        "an operation in a commit, µs of ZooKeeper's CPU": "{server_us_per_operation:.1f}",
        "an operation in a commit, µs of our CPU": "{own_us_per_operation:.1f}",
        "one partition committed, ms": f"{real['small_commit_seconds'] * 1e3:.2f}",
        f"heartbeat of one of {real['members']}, ms": f"{real['beat_seconds'] * 1e3:.1f}",
        "heartbeat of their leader, ms": f"{real['leader_beat_seconds'] * 1e3:.1f}",
    }
    rows += [(name, form.format(**real)) for name, form in what.items()]
    return Table("Measured here", ("what", "found"), rows)
