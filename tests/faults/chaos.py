"""`make chaos`: replicas that come and go at random under load, and one that must stay small.

Whoever was killed or stood still opens a window in which rows may be there twice, at least once.
"""

import argparse
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Literal, NamedTuple, TypeAlias

import pytest

from benchmarks import measured
from tests.acceptance import processes
from tests.acceptance.harness import Run
from tests.acceptance.replicas import SESSION_SECONDS, TOPOLOGIES, Output, Replicas
from tests.acceptance.trial import Trial
from tests.faults.catalogue import Play
from tests.faults.judge import Outcome
from tests.faults.servers import Servers
from tests.support.patience import until

State: TypeAlias = Literal["away", "starting", "up", "frozen", "ending"]
Kind: TypeAlias = Literal["start", "kill", "term", "nap", "freeze"]

NAMES = ("a", "b", "c", "d", "e")
MOST_HURT = 3  # of the five, 60 %: so many may be anything but up
KINDS: tuple[Kind, ...] = ("start", "kill", "term", "nap", "freeze")

TOPICS: Mapping[str, int] = {"in-a": 7, "in-b": 5}
OUTPUTS: Mapping[str, Output] = {"messages": "messages", "lines": "lines", "soak": "lines"}
MOST_PAUSE_SECONDS = 0.5
_NAP_SECONDS = (0.1, 1.5)
_FROZEN_SECONDS = (SESSION_SECONDS + 1.0, SESSION_SECONDS + 4.0)
_CALM_EVERY_SECONDS = 30.0
_CALM_SECONDS = 120.0  # for every partition to get on
_END_SECONDS = 90.0
MOST_GROWTH = 1.05  # the last third to the one before
_EVERY_SECONDS = 2.0
_KILL_EVERY_SECONDS = 60.0
_STAYS, _DIES = "a", "b"
_FEWEST = 30  # samples, of which each third says something


def plays_of(asked: str, seed: str, minutes: float) -> dict[str, Play]:
    """A pipeline for each output, for `minutes` together. Raises ArgumentTypeError."""
    names = asked.split(",") if asked else ["messages", "lines"]
    if wrong := [name for name in names if name not in OUTPUTS]:
        raise argparse.ArgumentTypeError(
            f"case: found {', '.join(wrong)}, expected {', '.join(OUTPUTS)}"
        )
    seconds = 60 * minutes / len(names)
    return {
        name: Play(
            "memory stays flat" if name == "soak" else "replicas come and go",
            partial(played, output=OUTPUTS[name], seed=seed, seconds=seconds, soak=name == "soak"),
        )
        for name in names
    }


def played(
    servers: Servers, output: Output, seed: str, seconds: float, *, soak: bool = False
) -> Outcome:
    """Play one pipeline. In a soak each process is a new interpreter, so that its memory counts."""

    def play(trial: Trial) -> Outcome:
        replicas = Replicas(trial, output, topics=TOPICS)
        case: Chaos | Soak = Chaos(replicas, Random(f"{seed} {output}"), seconds)
        if soak:
            case = Soak(replicas, seconds)
        try:
            with replicas:
                outcome = case.play()
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is told
            outcome = Outcome(said=(f"{type(error).__name__}: {error}",))
        return replace(outcome, figures=case.figures())

    return servers.play(TOPOLOGIES, play, subprocess.Popen if soak else None)


def resident_mb(pid: int) -> float:
    """Megabytes that a process has of the machine's memory; 0 once it is gone."""
    try:
        return measured.resident_mb(pid)
    except (OSError, IndexError):
        return 0.0


class Step(NamedTuple):
    """What is done to whom; a nap is within the session, to freeze is past it."""

    kind: Kind
    name: str


def draw(rng: Random, states: Mapping[str, State]) -> Step | None:
    """A step, or None when no one may be hurt more, and those who are start or end."""
    of_kind: dict[Kind, list[str]] = {kind: [] for kind in KINDS}
    of_kind["start"] = [name for name, state in states.items() if state == "away"]
    if sum(state != "up" for state in states.values()) < MOST_HURT:
        up = [name for name, state in states.items() if state == "up"]
        starting = [name for name, state in states.items() if state == "starting"]
        of_kind |= {"kill": up + starting, "term": up, "nap": up, "freeze": up}
    else:
        of_kind["kill"] = [name for name, state in states.items() if state == "frozen"]
    kinds = [kind for kind, names in of_kind.items() if names]
    if not kinds:
        return None
    kind = rng.choice(kinds)
    return Step(kind, rng.choice(of_kind[kind]))


@dataclass
class Replica:
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
            self.replicas.lose(name, Run.kill)
            replica.state = "away"
        else:
            seconds = self.rng.uniform(*(_NAP_SECONDS if kind == "nap" else _FROZEN_SECONDS))
            self.replicas.lose(name, lambda run: processes.freeze(run.pid))
            replica.state, replica.thaws_at = "frozen", time.monotonic() + seconds

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
        return self.replicas.judged(self.replicas.end(), *self.said)

    def _quiet(self) -> None:
        def is_quiet() -> bool:
            self._look()
            return all(each.state in ("away", "up") for each in self._of.values())

        until("nobody stands still, starts or ends", is_quiet, _END_SECONDS, self._told)

    def _told(self) -> str:
        states = {name: each.state for name, each in self._of.items()}
        logs = [f"--- {name}\n{run.tail(8)}" for name, run in self.replicas.runs.items()]
        return "\n".join([str(states), *logs])

    def figures(self) -> dict[str, object]:
        plans = self.replicas.nodes.plans
        return {
            "steps": {kind: self.steps[kind] for kind in KINDS},
            "plans": len(plans),
            "records": sum(self.replicas.feed.ends().values()),
            "most_mb": round(self.most_mb),
        }


@dataclass
class Soak:
    """One pipeline for a long time. `memory` are megabytes of the replica that stays."""

    replicas: Replicas
    seconds: float
    memory: list[float] = field(default_factory=list)
    kills: int = 0

    def play(self) -> Outcome:
        """Play it, end it in order, and judge what was written and how memory went."""
        replicas = self.replicas
        replicas.feed.start()
        replicas.start(_STAYS, _DIES)
        replicas.settle(_STAYS, _DIES)
        ends = time.monotonic() + self.seconds
        kill_at = time.monotonic() + _KILL_EVERY_SECONDS
        while time.monotonic() < ends:
            time.sleep(_EVERY_SECONDS)
            self.memory.append(resident_mb(replicas.runs[_STAYS].pid))
            if time.monotonic() > kill_at:
                replicas.lose(_DIES, Run.kill)
                self.kills += 1
                replicas.goes_on()
                replicas.start(_DIES)
                replicas.settle(_STAYS, _DIES)
                kill_at = time.monotonic() + _KILL_EVERY_SECONDS
        return replicas.judged(replicas.end(), *self._grown())

    @property
    def growth(self) -> float:
        """The median of the last third of the samples to that of the third before; 0: too few."""
        third = len(self.memory) // 3
        if len(self.memory) < _FEWEST:
            return 0.0
        middle, last = self.memory[third : 2 * third], self.memory[-third:]
        return statistics.median(last) / statistics.median(middle)

    def _grown(self) -> list[str]:
        if self.growth > MOST_GROWTH:
            return [f"memory has grown to {self.growth:.3f} of what it was"]
        return []

    def figures(self) -> dict[str, object]:
        third = len(self.memory) // 3
        parts = (self.memory[:third], self.memory[third : 2 * third], self.memory[-third:])
        return {
            "kills": self.kills,
            "records": sum(self.replicas.feed.ends().values()),
            "memory_mb": [round(statistics.median(part), 1) for part in parts if part],
            "growth": round(self.growth, 4),
        }
