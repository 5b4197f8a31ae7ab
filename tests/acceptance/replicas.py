"""Several replicas of one pipeline under load.

The pipeline's name is the trial's. tests/faults/topologies.py has the topologies, feed.py issues
the ids, stored.py watches ZooKeeper, tests/faults/judge.py compares what was written.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from service.config.settings import EngineName
from tests.acceptance import evidence, feed
from tests.acceptance.feed import Ends, Feed, Part
from tests.acceptance.harness import Run
from tests.acceptance.stored import Plan, Stored, Watch
from tests.acceptance.trial import Trial
from tests.faults.judge import Break, Found, Guarantee, Outcome, judge
from tests.support.committed_messages import committed_values
from tests.support.patience import until

Output: TypeAlias = Literal["lines", "messages", "delta"]

TOPOLOGIES = "tests.faults.topologies"
TOPICS: Mapping[str, int] = {"in-a": 7, "in-b": 5}
BEGUN = 40  # records of each partition that are there before the first replica is
SESSION_SECONDS = 4.0
_SETTLED_SECONDS = 60.0
_ENDED_SECONDS = 60.0
_RANGES: Mapping[str, object] = {"transaction_seconds": 0.2, "poll_seconds": 0.05}


@dataclass
class Replicas:
    """One pipeline, its replicas by name, and what happened to them.

    `output` is the topology: "lines" is at-least-once, the others are exactly-once.
    """

    trial: Trial
    output: Output = "lines"
    engine: EngineName = "local"
    session_seconds: float = SESSION_SECONDS
    topics: Mapping[str, int] = field(default_factory=lambda: TOPICS)  # with their partitions
    runs: dict[str, Run] = field(default_factory=dict)  # the newest of each name
    breaks: list[Break] = field(default_factory=list)

    def __enter__(self) -> Self:
        trial = self.trial
        (trial.folder / "trouble").touch()
        self._running = ExitStack()
        self.feed = self._running.enter_context(Feed(trial.kafka))
        for topic, count in self.topics.items():
            self.feed.create(self.topic(topic), count)
        if self.output == "messages":
            trial.kafka.create_topic(self._out, 2)
        self.feed.publish(BEGUN)
        watch = Watch(trial.zookeeper.address, trial.name, lambda: self.feed.parts)
        self.nodes = self._running.enter_context(watch)
        return self

    def __exit__(self, *_error: object) -> None:
        self._running.close()

    def topic(self, name: str) -> str:
        return f"{self.trial.name}.{name}"

    def start(self, *names: str, environment: Any = None, prefix: Sequence[str] = ()) -> None:
        for name in names:
            told = {"HEADRACE_REPLICAS__NAME": name, **(environment or {})}
            self.runs[name] = self.trial.start(
                self.output, config=self._config(), environment=told, prefix=prefix
            )

    def begin(self, *names: str, **options: Any) -> Plan:
        """Start to publish and these replicas; wait until all share the partitions and go on."""
        self.feed.start()
        self.start(*names, **options)
        plan = self.settle(*self.runs)
        self.goes_on()
        return plan

    def settle(self, *names: str) -> Plan:
        """Wait until just these replicas are there and hold all partitions, within one; the plan.

        Each of its partitions is open: an offset is stored.
        """
        nodes = self.nodes

        def is_settled() -> bool:
            members, plan = nodes.members, nodes.plan
            sizes = [len(plan.owners.get(name, ())) for name in names]
            return (
                set(members) == set(names)
                and set(plan.assigned) == self.feed.parts == set(nodes.offsets)
                and not plan.leaving
                and all(
                    each.holds == plan.owners.get(name, frozenset()) and each.seen == plan.number
                    for name, each in members.items()
                )
                and max(sizes) - min(sizes) <= 1
            )

        self.until(f"{', '.join(names)} share all partitions", is_settled)
        return nodes.plan

    def until(
        self, what: str, holds: Callable[[], object], seconds: float = _SETTLED_SECONDS
    ) -> None:
        """Wait until something holds; fail when it does not, or when a replica has failed."""
        until(what, lambda: holds() or self._failed(), seconds, self._told)
        assert not self._failed(), self._told()

    def goes_on(self) -> None:
        """Wait until more of each partition is stored than was published by now."""
        ends = self.feed.ends()
        self.until(
            "all that was published is stored, and more",
            lambda: all(self.stored().get(part, 0) > end for part, end in ends.items()),
        )

    def one(self, *, leads: bool) -> str:
        leader = self.nodes.leader
        return leader if leads else min(set(self.nodes.members) - {leader})

    def stored_of(self, name: str) -> dict[Part, Stored]:
        stored = self.nodes.now()
        return {part: stored[part] for part in self.nodes.plan.owners[name]}

    def parts_of(self, name: str) -> set[Part]:
        held = self.nodes.members[name].holds if name in self.nodes.members else frozenset()
        return {*self.nodes.plan.owners.get(name, ()), *held}

    def lose(
        self, name: str, does: Callable[[Run], object], parts: Collection[Part] = ()
    ) -> dict[Part, Stored]:
        """Do what takes partitions (its own and `parts`) from a replica; return their offsets."""
        before = self.parts_of(name)
        does(self.runs[name])
        stored = dict.fromkeys(self.feed.parts, Stored(0, 0, "")) | self.nodes.now()
        lost = {part: stored[part] for part in {*parts, *before, *self.parts_of(name)}}
        self.breaks.append(Break(lost, self.feed.ends()))
        return lost

    def taken_over(self, stored: Mapping[Part, Stored], since: float) -> float:
        """Wait until others have stored more of all these; how long that took, in seconds."""
        self.until("they are taken over", lambda: self.nodes.taken_over(stored) < math.inf)
        seconds = self.nodes.taken_over(stored) - since
        print(f"taken over after {seconds:.1f} s")  # noqa: T201
        return seconds

    def finish(self) -> None:
        """End the replicas in order, and compare what they wrote with what was published."""
        outcome = self.judged(self.end())
        print(f"{outcome.duplicates} rows and letters are repeated")  # noqa: T201
        assert outcome.is_good, outcome

    @property
    def guarantee(self) -> Guarantee:
        return "at least once" if self.output == "lines" else "exactly once"

    def judged(self, ends: Ends, *said: str) -> Outcome:
        """Judge what was written of all records below `ends`; `said` are complaints besides."""
        letters = Counter(
            ((each["topic"], int(each["partition"])), int(each["offset"]))
            for each in self.trial.letters()
        )
        found = Found(self.rows(), letters, Counter(self.trial.notes("effects")))
        return judge(found, ends, self.breaks, self.guarantee, [*self.nodes.wrong, *said])

    def end(self) -> Ends:
        """Publish a last record to each partition, see all stored, end the replicas in order."""
        self.feed.stop()
        self.feed.publish(1)
        ends = self.feed.ends()
        self.until("all is stored", lambda: self.stored() == ends)
        living = {name: run for name, run in self.runs.items() if run.alive}
        for run in living.values():
            run.process.terminate()
        for name, run in living.items():
            assert run.wait(_ENDED_SECONDS) == 0, f"{name}: {run.tail()}"
        self.nodes.now()
        assert self.stored() == ends
        return ends

    def written(self, name: str) -> set[Part]:
        return {feed.place(row)[0] for row in self.trial.notes("rows", self.runs[name])}

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for run in self.runs.values() for event in run.events(name)]

    def rows(self) -> Counter[str]:
        """How often each row is there, read by nothing of the product."""
        if self.output == "lines":
            return self.trial.rows()
        if self.output == "messages":
            values = committed_values(self.trial.kafka.address, self._out)
            return Counter((value or b"").decode() for value in values)
        table = evidence.read_table(self._warehouse / "rows").to_pydict()
        return Counter(map("{} {}".format, table["id"], table["payload"]))

    def _failed(self) -> list[str]:
        return [name for name, run in self.runs.items() if (run.process.poll() or 0) > 0]

    def stored(self) -> Ends:
        return {part: each.offset for part, each in self.nodes.offsets.items()}

    @property
    def _out(self) -> str:
        return f"{self.trial.name}.rows"

    @property
    def _warehouse(self) -> Path:
        return self.trial.folder / "warehouse"

    def _config(self) -> Mapping[str, Mapping[str, object]]:
        return {
            "pipeline": {
                "commit_interval_seconds": 0.1,
                "discover_interval_seconds": 0.3,
                "drain_seconds": 15.0,
                "engine": self.engine,
            },
            "kafka": {"topic.metadata.refresh.interval.ms": 1_000},
            "zookeeper": {"session_timeout_seconds": self.session_seconds},
            "replicas": {"beat_seconds": 0.2},
            "storage": {"warehouse": str(self._warehouse)},
            "spark": _RANGES if self.engine == "spark" else {},
        }

    def _told(self) -> str:
        logs = [f"--- {name}\n{run.tail(12)}" for name, run in self.runs.items()]
        nodes, stored = self.nodes, self.stored()
        behind = {part: (stored.get(part), end) for part, end in self.feed.ends().items()}
        return "\n".join([*logs, str(nodes.plan), str(nodes.members), str(behind)])
