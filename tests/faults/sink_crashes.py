"""`make crash`: a pipeline of two tables whose processes end by force, for every sink.

Its records are published once; each process goes on where the one before it ended. See
docs/concepts/exactly-once.md.
"""

import argparse
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, get_args

import pytest

from examples.support.postgres_server import EmbeddedPostgres
from service.config.settings import EngineName
from tests.acceptance import evidence, processes, wanted
from tests.acceptance.evidence import Place
from tests.acceptance.harness import Run
from tests.acceptance.stored import Watch
from tests.acceptance.stores import STORES, Site
from tests.acceptance.trial import Trial, places
from tests.acceptance.wanted import OTHERS, ROWS
from tests.faults.catalogue import Play
from tests.faults.judge import GOOD, Outcome
from tests.faults.servers import Lake, Servers
from tests.support.failpoints import PLACES, VARIABLE
from tests.support.patience import Limit, until
from topology.sink import Kind

TOPOLOGIES = "tests.acceptance.crashing"
RECORDS = (2_000,) * 3
MOST_CRASHES = 4  # for which so many records are enough
CONFIG: Mapping[str, Mapping[str, object]] = {
    # Small transactions, so that there are many of them, and several open at every moment.
    "pipeline": {"max_pending": 600, "chunk_records": 100, "commit_interval_seconds": 0.05},
    "transactions": {"plan_records": 100},
    "retries": {"initial_seconds": 0.02},
}
SECONDS = 240.0  # for a process to reach its place, or the end
ANY = "any"  # no place, but any moment
_INSIDE = "sink_inside_commit"
_OF_RANGES = "range_"  # places that only the spark engine passes
_OF_RECORDS = ("letters_before_commit",)  # and those that only the local one does
OF_FAULTS = ("claim_", "plan_", "offset_", "letter_", "leaving_")
"""So begin places that `make faults` plays (tests/faults), and `make crash` does not."""
_RANGES: Mapping[str, object] = {
    # Several groups of ranges, the last two of them open at every moment.
    "transaction_records": 1_200, "transaction_seconds": 0.1, "poll_seconds": 0.05,
}  # fmt: skip
_MOST_PASSES = {"zk_before_write": 9, "zk_after_write": 9, "sink_before_fence": 2,
                "sink_after_fence": 2}  # fmt: skip
_PASSES = 3  # of any other place
_MORE = 0.05  # of the records, at most, until a crash at any moment
_LATER_SECONDS = 0.3
_SETTLED_SECONDS = 10.0
_SHOWN = 3
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a third less to start Spark


class Way(NamedTuple):
    """How a process may end: at a place, or at any moment; what is killed."""

    place: str
    action: str = "kill"

    def drawn(self, rng: random.Random) -> str:
        """A crash of this way, as `CrashPipeline.crash` takes it."""
        if self.place == ANY:
            more, later = rng.uniform(0, _MORE), rng.uniform(0, _LATER_SECONDS)
            return f"{ANY}:{more:.3f}:{later:.2f}"
        most = _MOST_PASSES.get(self.place, _PASSES)
        return f"{self.place}:{rng.randint(1, most)}:{self.action}"


def ways(engine: EngineName = "local") -> list[Way]:
    is_local = engine == "local"  # it has no JVM
    left_out = (*OF_FAULTS, *((_OF_RANGES,) if is_local else _OF_RECORDS))
    insides = [] if is_local else [Way(_INSIDE, "kill-jvm"), Way(_INSIDE, "kill-python")]
    places = [place for place in PLACES if not place.startswith(left_out)]
    return [*map(Way, places), *insides, Way(ANY)]


@dataclass(frozen=True)
class Case:
    """The stores of the two tables, the kind of transactions, and how processes end, in order.

    A crash is what a failpoint is told ("sink_after_commit:2:kill"), or any moment: "any:0.02:0.3"
    is when so much more of the records is stored, and so many seconds later.
    """

    rows: str
    others: str
    kind: Kind
    crashes: tuple[str, ...]
    engine: EngineName = "local"
    on_s3: bool = False

    @property
    def sink(self) -> str:
        if self.on_s3:
            return f"{self.rows}{ON_S3}"
        return self.rows if self.engine == "local" else f"{self.rows}{ON_SPARK}"


FAILED_ONCE: tuple[Case, ...] = ()
"""Cases that have failed; what failed is mended, and they are played in every run of the tests."""


def drawn(
    rng: random.Random,
    rows: Collection[str],
    others: Collection[str],
    kind: Kind,
    count: int,
    engine: EngineName = "local",
) -> Case:
    """One of all cases; each store is there with what it needs."""
    stores = rng.choice(sorted(rows)), rng.choice(sorted(others))
    crashes = tuple(way.drawn(rng) for way in rng.sample(ways(engine), count))
    return Case(*stores, kind, crashes, engine)


class CrashPipeline:
    """A pipeline that writes to two stores, or one, and is killed on request."""

    def __init__(
        self,
        trial: Trial,
        rows: str,
        others: str | None = None,
        server: EmbeddedPostgres | None = None,
        engine: EngineName = "local",
        conf: Mapping[str, str] | None = None,
        lake: Lake | None = None,
    ) -> None:
        """`server` is the database, where a store needs one; `conf` is Spark's, on a cluster."""
        self._engine = engine
        self._conf = conf
        self._lake = lake
        url = server.url if server else ""
        storage = lake.storage(trial.name) if lake else None
        self._trial = trial
        self._site = Site(trial.name, trial.folder, trial.kafka.address, url, server, storage)
        self._names = (rows, others or rows)
        self._stores = [STORES[rows](self._site, ROWS)]
        if others is not None:
            self._stores.append(STORES[others](self._site, OTHERS))

    def publish(self, trouble: Iterable[Place] = ()) -> None:
        """Make the topics, and publish all records; some are trouble (traces.py)."""
        (self._trial.folder / "tmp").mkdir()
        for store in self._stores:
            store.prepare(self._trial.kafka)
        self._trial.publish(*RECORDS, trouble=trouble)

    def watch(self) -> Watch:
        return self._trial.watch()

    def start(self, topology: str, failpoint: str | None = None) -> Run:
        environment = {
            **self._site.environment(),
            "CRASH_STORES": ",".join(self._names),
            "TMPDIR": str(self._trial.folder / "tmp"),
            "JDK_JAVA_OPTIONS": _JAVA_OPTIONS,
        }
        ranges = _RANGES if self._engine == "spark" else {}
        config: dict[str, Mapping[str, object]] = {
            **CONFIG,
            "storage": {"warehouse": self._site.storage.warehouse},
            "spark": ranges,
        }
        if self._lake is not None:
            config["storage"] = {**config["storage"], "endpoint": self._lake.proxy.url}
            config["storage.catalogs.default"] = {
                "type": "sql",
                "uri": f"sqlite:///{self._site.catalog}",
            }
            for name, value in self._site.storage.secrets.items():
                environment[f"HEADRACE_STORAGE__{name.upper()}"] = value
        if self._conf is not None:  # the processes of a cluster inherit nothing from here
            told = {**self._trial.environment, **environment}
            of_executors = {f"spark.executorEnv.{name}": value for name, value in told.items()}
            config["spark.conf"] = {**of_executors, **self._conf}
        if failpoint is not None:
            environment[VARIABLE] = failpoint
        options = ("--until-caught-up", "--engine", self._engine)
        return self._trial.start(topology, *options, config=config, environment=environment)

    def crash(self, topology: str, crash: str, watch: Watch) -> None:
        if crash.startswith(ANY):
            _, more, later = crash.split(":")
            run = self.start(topology)
            wanted_total = watch.total + float(more) * sum(RECORDS)
            _reach(run, "it goes on", lambda: watch.total > wanted_total)
            ends = time.monotonic() + float(later)
            _reach(run, "so long", lambda: time.monotonic() > ends)
            assert run.alive or run.process.returncode == 0, run.tail()
            _kill(run)
            return
        run = self.start(topology, crash)
        if crash.endswith(":kill-jvm"):  # the process heals, and goes on
            _reach(run, "Spark is back", lambda: '"spark_restarted"' in run.errors)
            assert '"spark_restarted"' in run.errors, run.tail()
            _kill(run)
            return
        ended = run.wait(SECONDS)
        assert ended, f"it came to the end of its records, and not to {crash}"
        assert ended == -signal.SIGKILL, run.tail()
        assert '"failpoint"' in run.errors, run.tail()

    def finish(self, topology: str) -> None:
        last = self.start(topology)
        assert last.wait(SECONDS) == 0, last.tail()

    def verdict(self, *, at_end: bool = False, of_letters: bool = True) -> Outcome:
        """Judge what is there.

        What lies below a stored offset must be there, and nothing too often; at the end the
        stored offset is behind all. What is on its way in the servers is waited for.
        """
        ends = Limit(_SETTLED_SECONDS)
        while True:
            outcome = self._verdict(at_end=at_end, of_letters=of_letters)
            if not outcome.lost or ends.passed:
                return outcome

    def _verdict(self, *, at_end: bool, of_letters: bool) -> Outcome:
        stored = self._trial.stored()  # before the tables, as an orphaned JVM may still commit
        lost = duplicated = 0
        said: list[str] = []
        if at_end and stored != dict(enumerate(RECORDS)):
            said.append(f"the stored offsets are {stored}")
        for store in self._stores:
            found = store.found(stored, places(*RECORDS))
            lost += found.missing.total()
            duplicated += found.surplus.total()
            said += _said(f"{store.table} are missing", found.missing)
            said += _said(f"{store.table} are there too often", found.surplus)
        if of_letters:
            unsent, unknown = self._letters(stored)
            lost += unsent.total()
            said += _said("letters are missing", unsent)
            said += _said("letters are of records that need none", unknown)
        return Outcome(lost, duplicated, duplicated, said=tuple(said))

    def _letters(self, stored: Mapping[int, int]) -> tuple[Counter[Place], Counter[Place]]:
        """The records that have no letter and must, and those that have one and must not."""
        found = set(evidence.dead_letters(self._trial.kafka.address, f"{self._trial.name}.dead"))
        done = (place for place in places(*RECORDS) if place[1] < stored.get(place[0], 0))
        unknown = found - wanted.letters(places(*RECORDS))
        return Counter(wanted.letters(done) - found), Counter(unknown)


def crashed(pipeline: CrashPipeline, kind: Kind, crashes: Iterable[str]) -> Outcome:
    """Crash processes one after the other; stop at the first that does harm."""
    with pipeline.watch() as watch:
        for crash in crashes:
            pipeline.crash(kind, crash, watch)
            outcome = pipeline.verdict()
            if not outcome.is_good:
                return replace(outcome, said=(f"after {crash}", *outcome.said))
        pipeline.finish(kind)
    outcome = pipeline.verdict(at_end=True)
    return replace(outcome, said=(*outcome.said, *watch.wrong))


def thawed(pipeline: CrashPipeline) -> Outcome:
    """A process stands still just before a commit, another one goes on to the end, it wakes up.

    There is one table, so that it stands still with no table's lock in its hands.
    """
    frozen = pipeline.start("single", "sink_before_commit:3:stop")
    _reach(frozen, "it stands still", lambda: "failpoint" in frozen.errors)
    assert frozen.alive, frozen.tail()
    children = processes.java_children(frozen.pid)
    pipeline.finish("single")
    outcome = pipeline.verdict(at_end=True)
    if outcome != GOOD:
        return outcome
    for pid in (*children, frozen.pid):
        processes.thaw(pid)
    _reach(frozen, "it learns of its successor", lambda: "taken over" in frozen.errors)
    if frozen.alive:
        frozen.send(signal.SIGTERM)
    frozen.wait()
    return pipeline.verdict(at_end=True)


def control(pipeline: CrashPipeline) -> Outcome:
    """See rows repeat where a process crashes between rows and their txid."""
    crash = pipeline.start("control", "sink_after_commit:3:kill")
    assert crash.wait(SECONDS) == -signal.SIGKILL, crash.tail()
    pipeline.finish("control")
    outcome = pipeline.verdict(at_end=True, of_letters=False)
    if outcome.lost or not outcome.duplicates:
        return Outcome(said=("no row is there twice, so nothing is proven", *outcome.said))
    return GOOD


FROZEN, CONTROL = "frozen", "control"
ON_SPARK = "@spark"  # behind the name of a sink that is played on the spark engine
ON_S3 = "@s3"  # and of one whose tables are in an object store
IN_LAKE = ("delta", "upserts", "iceberg", "delta-state")


def every_sink() -> list[str]:
    """Every sink on every engine and store, as `make crash CASES=` takes it."""
    on_spark = (f"{store}{ON_SPARK}" for store in STORES)
    return [*STORES, *on_spark, *(f"{store}{ON_S3}" for store in IN_LAKE)]


def plays_of(asked: str, seed: str, _minutes: float) -> dict[str, Play]:
    """The cases of the sinks and places that a text names. Raises ArgumentTypeError."""
    plays = {}
    for sink, wanted_places in chosen(asked or ",".join(every_sink())).items():
        for case in (*FAILED_ONCE, *_drawn_cases(sink, wanted_places, seed)):
            if case.sink == sink:
                name = f"{sink}+{case.others}:{case.kind}:{len(plays)}"
                plays[name] = Play(", ".join(case.crashes), partial(play, case))
        for place, judge in ((FROZEN, thawed), (CONTROL, control)):
            if place in wanted_places:
                case = replace(of_sink(sink), crashes=())
                plays[f"{sink}:{place}"] = Play(place, partial(play, case, judge=judge))
    return plays


def of_sink(sink: str) -> Case:
    """A case with that sink alone, without a crash."""
    store, _, where = sink.partition("@")
    engine: EngineName = "spark" if where == "spark" else "local"
    return Case(store, "", "transactional", (), engine, on_s3=where == "s3")


def chosen(text: str) -> dict[str, set[str]]:
    """The sinks of a text, and which places of each. Raises ArgumentTypeError."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for each in text.split(","):
        sink, _, place = each.partition(":")
        if sink not in every_sink():
            allowed = ", ".join(every_sink())
            raise argparse.ArgumentTypeError(f"sink: found '{sink}', expected one of {allowed}")
        case = of_sink(sink)
        every = list(dict.fromkeys(way.place for way in ways(case.engine)))
        every += [FROZEN, CONTROL] if STORES[case.rows].has_control else [FROZEN]
        if place and place not in every:
            allowed = ", ".join(every)
            raise argparse.ArgumentTypeError(f"place: found '{place}', expected one of {allowed}")
        found[sink] |= {place} if place else set(every)
    return found


def _drawn_cases(sink: str, places: set[str], seed: str) -> Iterator[Case]:
    """Every chosen way to end, each once for each kind, in any order, beside any other store."""
    case = of_sink(sink)
    for kind in get_args(Kind):
        rng = random.Random(f"{seed} {sink} {kind}")
        left = [way for way in ways(case.engine) if way.place in places]
        rng.shuffle(left)
        while left:
            crashes = tuple(way.drawn(rng) for way in left[:MOST_CRASHES])
            others = rng.choice([*(IN_LAKE if case.on_s3 else STORES)])
            yield replace(case, others=others, kind=kind, crashes=crashes)
            del left[:MOST_CRASHES]


def play(
    case: Case, servers: Servers, judge: Callable[[CrashPipeline], Outcome] | None = None
) -> Outcome:
    needs_database = any(
        STORES[name].needs_database for name in (case.rows, case.others or case.rows)
    )

    def crash(trial: Trial) -> Outcome:
        try:
            pipeline = CrashPipeline(
                trial, case.rows, case.others or None,
                servers.postgres() if needs_database else None,
                case.engine, lake=servers.lake() if case.on_s3 else None,
            )  # fmt: skip
            pipeline.publish()
            if judge is not None:
                return judge(pipeline)
            return crashed(pipeline, case.kind, case.crashes)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - one of many
            return Outcome(said=(f"{case}: {error}",))

    return servers.play(TOPOLOGIES, crash)


def _reach(run: Run, what: str, holds: Callable[[], object]) -> None:
    until(what, lambda: holds() or not run.alive, SECONDS, run.tail)


def _kill(run: Run) -> None:
    """Kill the JVM first, so that it finishes nothing, then Python."""
    for pid in processes.java_children(run.pid):
        os.kill(pid, signal.SIGKILL)
    run.kill()


def _said(what: str, which: Counter[Any]) -> list[str]:
    if not which:
        return []
    some = ", ".join(map(str, sorted(which, key=str)[:_SHOWN]))
    return [f"{which.total()} {what}, such as {some}"]
