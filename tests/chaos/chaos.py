"""Replicas that are started, killed, frozen and told to end at random, under load.

The oracle is the crash matrix's (tests/faults/judge.py): what is there at the end is compared with
what the ids that were issued call for. Whoever was killed or stood still opens a window, in which
rows may be there twice, at least once.
"""

import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.acceptance import processes
from tests.acceptance.feed import Part
from tests.acceptance.replica_nodes import Stored
from tests.acceptance.replicas import Break, Replicas
from tests.chaos.drawing import KINDS, MOST_HURT, NAMES, State, Step, draw
from tests.chaos.memory import resident_mb
from tests.faults.judge import Outcome, found_of, judge
from tests.faults.points import Guarantee
from tests.support.patience import until

MOST_PAUSE_SECONDS = 0.5
SESSION_SECONDS = 4.0
_NAP_SECONDS = (0.1, 1.5)
_FROZEN_SECONDS = (SESSION_SECONDS + 1.0, SESSION_SECONDS + 4.0)
_CALM_EVERY_SECONDS = 30.0
_CALM_SECONDS = 120.0  # for every partition to get on
_END_SECONDS = 90.0


@dataclass
class Replica:
    """One name, and what was done to it last."""

    state: State = "away"
    thaws_at: float = 0.0
    was_started: bool = False  # when it was told to end


@dataclass
class Chaos:
    """One pipeline's replicas for some time; `play` says what came of it."""

    replicas: Replicas
    rng: Random
    seconds: float
    steps: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    most_mb: float = 0.0
    _of: dict[str, Replica] = field(default_factory=lambda: {name: Replica() for name in NAMES})

    def play(self) -> Outcome:
        """Play it, end it in order, and judge. Raises AssertionError if it does not get on."""
        self.replicas.feed.start()
        for name in NAMES[: len(NAMES) - MOST_HURT]:
            self._start(name)
        self._gets_on()
        ends = time.monotonic() + self.seconds
        calm = time.monotonic() + _CALM_EVERY_SECONDS
        while time.monotonic() < ends:
            self._look()
            step = draw(self.rng, {name: each.state for name, each in self._of.items()})
            if step is not None:
                self._take(step)
            time.sleep(self.rng.uniform(0.0, MOST_PAUSE_SECONDS))
            if time.monotonic() > calm:
                self._gets_on()
                calm = time.monotonic() + _CALM_EVERY_SECONDS
        return self._end()

    @property
    def guarantee(self) -> Guarantee:
        """By what the replicas write."""
        return "at least once" if self.replicas.output == "lines" else "exactly once"

    def _take(self, step: Step) -> None:
        kind, name = step
        self.steps[kind] += 1
        replica, run = self._of[name], self.replicas.runs.get(name)
        if kind == "start" or run is None:
            self._start(name)
        elif kind == "term":
            replica.was_started = self._is_started(name)
            replica.state = "ending"
            run.send(signal.SIGTERM)
        elif kind == "kill":
            before = self._parts_of(name)
            run.kill()
            replica.state = "away"
            self._break(name, before)
        else:
            before = self._parts_of(name)
            processes.freeze(run.pid)
            seconds = self.rng.uniform(*(_NAP_SECONDS if kind == "nap" else _FROZEN_SECONDS))
            replica.state, replica.thaws_at = "frozen", time.monotonic() + seconds
            self._break(name, before)

    def _start(self, name: str) -> None:
        self.replicas.start(name)
        self._of[name].state = "starting"

    def _is_started(self, name: str) -> bool:
        return '"service_started"' in self.replicas.runs[name].errors

    def _look(self) -> None:
        """See who has started or ended, let go on who has stood still long enough, weigh all."""
        for name, replica in self._of.items():
            if replica.state == "away":
                continue
            run = self.replicas.runs[name]
            if not run.alive:
                code = run.process.returncode
                told = replica.state == "ending"
                if not told or code not in ((0,) if replica.was_started else (0, -signal.SIGTERM)):
                    self.said.append(f"{name} ended with {code}:\n{run.tail(8)}")
                replica.state = "away"
                continue
            if replica.state == "frozen" and time.monotonic() >= replica.thaws_at:
                processes.thaw(run.pid)
                replica.state = "up"
            elif replica.state == "starting" and self._is_started(name):
                replica.state = "up"
            self.most_mb = max(self.most_mb, resident_mb(run.pid))

    def _parts_of(self, name: str) -> set[Part]:
        nodes = self.replicas.nodes
        held = nodes.members[name].holds if name in nodes.members else frozenset()
        return {*nodes.plan.owners.get(name, ()), *held}

    def _break(self, name: str, before: set[Part]) -> None:
        """Note what a replica may have had in flight when it stopped."""
        replicas = self.replicas
        unstored = {part: Stored(0, 0, "") for part in replicas.feed.parts}
        stored = unstored | replicas.nodes.now()
        theirs = before | self._parts_of(name)
        ends = replicas.feed.ends()
        self.breaks.append(Break({part: stored[part] for part in theirs}, ends))

    def _gets_on(self) -> None:
        """Hurt nobody until more of each partition is stored than was published by now."""
        wanted = self.replicas.feed.ends()

        def is_past() -> bool:
            self._look()
            stored = self.replicas.stored()
            return all(stored.get(part, 0) > end for part, end in wanted.items())

        until("every partition gets on", is_past, _CALM_SECONDS, self._told)

    def _end(self) -> Outcome:
        """Let all go on, have two at least, and end all in order."""
        self._quiet()
        missing = [name for name, each in self._of.items() if each.state == "away"]
        for name in missing[: max(0, 2 + len(missing) - len(NAMES))]:
            self._start(name)
        self._quiet()
        self._gets_on()
        ends = self.replicas.end()
        wrong = [*self.said, *self.replicas.nodes.wrong]
        return judge(found_of(self.replicas), ends, self.breaks, self.guarantee, wrong)

    def _quiet(self) -> None:
        """Wait until nobody stands still, starts or ends."""

        def is_quiet() -> bool:
            self._look()
            return all(each.state in ("away", "up") for each in self._of.values())

        until("nobody stands still, starts or ends", is_quiet, _END_SECONDS, self._told)

    def _told(self) -> str:
        states = {name: each.state for name, each in self._of.items()}
        logs = [f"--- {name}\n{run.tail(8)}" for name, run in self.replicas.runs.items()]
        return "\n".join([str(states), *logs])

    def figures(self) -> dict[str, object]:
        """What was done, and the most memory that a replica took."""
        plans = self.replicas.nodes.plans
        return {
            "steps": {kind: self.steps[kind] for kind in KINDS},
            "plans": len(plans),
            "records": sum(self.replicas.feed.ends().values()),
            "most_mb": round(self.most_mb),
        }
