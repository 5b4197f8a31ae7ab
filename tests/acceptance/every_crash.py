"""`make crash`: every sink, kind and way to end; see docs/concepts/exactly-once.md."""
# ruff: noqa: T201 - it tells people what it finds

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from examples.support.postgres_server import EmbeddedPostgres
from service.config import EngineName
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests import spark_classes
from tests.acceptance.crashes import (
    FAILED_ONCE,
    GOOD,
    MOST_CRASHES,
    TOPOLOGIES,
    Case,
    Lake,
    Play,
    Verdict,
    crashed,
    thawed,
    ways,
    without_txid,
)
from tests.acceptance.stores import STORES
from tests.acceptance.trial import Trial
from tests.support.near_a_store import StoreProxy
from tests.support.seaweed import EmbeddedSeaweed
from tests.support.store_faults import weather
from topology.sink import Kind

FROZEN, CONTROL = "frozen", "control"
ON_SPARK = "@spark"  # behind the name of a sink that is played on the spark engine
ON_S3 = "@s3"  # and of one whose tables are in an object store
IN_LAKE = ("delta", "upserts", "iceberg", "delta-state")
_BAD_SHARE = 0.03  # of all requests to the object store
_MINUTES = 180.0
_JOBS = 2


@dataclass(frozen=True)
class Servers:
    """What all plays share."""

    kafka: EmbeddedKafka
    zookeeper: EmbeddedZooKeeper
    postgres: EmbeddedPostgres
    lake: Lake
    folder: Path

    @contextmanager
    def play(
        self,
        rows: str,
        others: str | None = None,
        engine: EngineName = "local",
        *,
        on_s3: bool = False,
    ) -> Iterator[Play]:
        """A pipeline of its own."""
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            trial = Trial(self.kafka, self.zookeeper, Path(folder), topologies=TOPOLOGIES)
            try:
                lake = self.lake if on_s3 else None
                play = Play(trial, rows, others, self.postgres, engine, lake=lake)
                play.publish()
                yield play
            finally:
                trial.end()


@dataclass
class Results:
    """What came of every crash; any thread may add. Nothing begins after `ends` (monotonic)."""

    ends: float
    cases: int = 0
    passed: int = 0
    lost: int = 0
    duplicated: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.ends

    def add(self, name: str, verdict: Verdict, since: float) -> None:
        """Count one, and tell of it."""
        is_good = verdict == GOOD
        with self._lock:
            self.cases += 1
            self.passed += is_good
            self.lost += verdict.lost
            self.duplicated += verdict.duplicated
            if not is_good:
                self.failed.append(name)
        said = "; ".join(verdict.said) or "as it must be"
        seconds = time.monotonic() - since
        print(f"{'ok' if is_good else 'FAILED'} {name}: {said} ({seconds:.1f} s)", flush=True)

    def skip(self, count: int) -> None:
        """Count what was not played."""
        with self._lock:
            self.skipped += count


Job = Callable[[Servers, Results], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what the arguments say; 1 if a row was lost or repeated, or not all was played."""
    asked = _arguments(arguments)
    print(f"CRASH_SEED={asked.seed}", flush=True)
    spark_classes.use()
    started = time.monotonic()
    results = Results(ends=started + 60 * asked.minutes)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-crash-")))
        kafka, zookeeper, postgres, seaweed = every = (
            EmbeddedKafka(folder / "kafka"),
            EmbeddedZooKeeper(folder / "zookeeper"),
            EmbeddedPostgres(folder / "postgres"),
            EmbeddedSeaweed(folder / "seaweed"),
        )
        stack.callback(postgres.remove_data)
        for server in every:
            stack.callback(server.close)
            server.open()
        proxy = stack.enter_context(StoreProxy(seaweed.address).running())
        proxy.fault = weather(asked.seed, _BAD_SHARE)
        servers = Servers(kafka, zookeeper, postgres, Lake(seaweed, proxy), folder)
        pool = stack.enter_context(ThreadPoolExecutor(asked.jobs))
        for done in [pool.submit(job, servers, results) for job in _jobs(asked.cases, asked.seed)]:
            done.result()
    figures = {
        "cases": results.cases,
        "passed": results.passed,
        "lost": results.lost,
        "duplicated": results.duplicated,
        "skipped": results.skipped,
        "failed": results.failed,
        "seed": asked.seed,
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(figures))
    return 0 if results.cases and not (results.failed or results.skipped) else 1


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.every_crash")
    parser.add_argument(
        "--cases",
        type=_chosen,
        default=",".join(_every_sink()),
        help="sinks, or some of their places as SINK:PLACE, with commas between them; all. "
        f"SINK{ON_SPARK} is played on the spark engine, SINK{ON_S3} with tables in SeaweedFS",
    )
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="nothing begins later")
    parser.add_argument("--jobs", type=int, default=_JOBS, help="pipelines at the same time")
    return parser.parse_args(arguments)


def _every_sink() -> list[str]:
    on_spark = (f"{store}{ON_SPARK}" for store in STORES)
    return [*STORES, *on_spark, *(f"{store}{ON_S3}" for store in IN_LAKE)]


def _name_of(case: Case) -> str:
    place = ON_S3 if case.on_s3 else ""
    return f"{case.rows}{place}" if case.engine == "local" else f"{case.rows}{ON_SPARK}"


def _store_and_engine(sink: str) -> tuple[str, EngineName]:
    return sink.partition("@")[0], "spark" if sink.endswith(ON_SPARK) else "local"


def _chosen(text: str) -> dict[str, set[str]]:
    """The sinks, and which places of each."""
    chosen: defaultdict[str, set[str]] = defaultdict(set)
    for case in text.split(","):
        sink, _, place = case.partition(":")
        if sink not in _every_sink():
            allowed = ", ".join(_every_sink())
            raise argparse.ArgumentTypeError(f"sink '{sink}'; allowed are {allowed}")
        store, engine = _store_and_engine(sink)
        every = list(dict.fromkeys(way.place for way in ways(engine)))
        every += [FROZEN, CONTROL] if STORES[store].has_control else [FROZEN]
        if place and place not in every:
            raise argparse.ArgumentTypeError(f"place '{place}'; allowed are {', '.join(every)}")
        chosen[sink] |= {place} if place else set(every)
    return chosen


def _jobs(chosen: Mapping[str, set[str]], seed: str) -> Iterator[Job]:
    """What can be played beside one another."""
    for case in FAILED_ONCE:
        if _name_of(case) in chosen:
            yield partial(_play_case, case)
    for sink, places in chosen.items():
        for kind in get_args(Kind):
            rng = random.Random(f"{seed} {sink} {kind}")
            yield from (partial(_play_case, case) for case in _cases(sink, kind, places, rng))
        if FROZEN in places:
            yield partial(_play_frozen, sink)
        if CONTROL in places:
            yield partial(_play_control, sink)


def _cases(sink: str, kind: Kind, places: set[str], rng: random.Random) -> Iterator[Case]:
    """Every way that is chosen, each once, in any order; beside any other store."""
    store, engine = _store_and_engine(sink)
    left = [way for way in ways(engine) if way.place in places]
    rng.shuffle(left)
    while left:
        crashes = tuple(way.drawn(rng) for way in left[:MOST_CRASHES])
        on_s3 = sink.endswith(ON_S3)
        others = rng.choice([*(IN_LAKE if on_s3 else STORES)])
        yield Case(store, others, kind, crashes, engine, on_s3)
        del left[:MOST_CRASHES]


def _play_case(case: Case, servers: Servers, results: Results) -> None:
    """Play it, or what comes before the first crash that does harm."""
    name = f"{case.engine}: {_name_of(case)}+{case.others} {case.kind}"
    left = [*case.crashes, "the end"]
    since = time.monotonic()
    verdict = GOOD
    try:
        if not results.is_over:
            with servers.play(case.rows, case.others, case.engine, on_s3=case.on_s3) as play:
                for crash, verdict in crashed(play, case.kind, case.crashes):
                    results.add(f"{name} {crash}", verdict, since)
                    since = time.monotonic()
                    left.remove(crash)
                    if verdict != GOOD:
                        break
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - one of many
        verdict = Verdict(said=(f"{error}",))
        results.add(f"{name} {left.pop(0)}", verdict, since)
    if verdict != GOOD:
        print(f"it was {case}", flush=True)
    results.skip(len(left))


def _play_frozen(sink: str, servers: Servers, results: Results) -> None:
    _play_one(sink, FROZEN, thawed, servers, results)


def _play_control(sink: str, servers: Servers, results: Results) -> None:
    """Where rows and txids are not committed together, rows must be seen twice."""

    def harmless(play: Play) -> Verdict:
        verdict = without_txid(play)
        if verdict.lost or not verdict.duplicated:
            return Verdict(said=("no row is there twice, so nothing is proven", *verdict.said))
        return GOOD

    _play_one(sink, CONTROL, harmless, servers, results)


def _play_one(
    sink: str,
    place: str,
    judge: Callable[[Play], Verdict],
    servers: Servers,
    results: Results,
) -> None:
    if results.is_over:
        results.skip(1)
        return
    store, engine = _store_and_engine(sink)
    since = time.monotonic()
    try:
        with servers.play(store, engine=engine, on_s3=sink.endswith(ON_S3)) as play:
            verdict = judge(play)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - one of many
        verdict = Verdict(said=(f"{error}",))
    results.add(f"{sink} {place}", verdict, since)


if __name__ == "__main__":
    sys.exit(main())
