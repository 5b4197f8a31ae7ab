"""Plays one case of the crash matrix on real servers, and judges what is there at the end.

Two replicas are "a", which is hit, and "b"; one is "a" alone, which is started again when it has
ended. The feed publishes all the while.
"""

import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

import pytest

from service.failpoints import VARIABLE
from tests.acceptance import processes
from tests.acceptance.harness import Run
from tests.acceptance.replica_nodes import Stored
from tests.acceptance.replicas import Break, Output, Replicas
from tests.faults.judge import Outcome, found_of, judge
from tests.faults.points import POINTS, Guarantee
from tests.faults.servers import Servers
from tests.support.patience import until

Action: TypeAlias = Literal["kill", "stop", "term"]

TOPOLOGIES = "tests.faults.topologies"
TOPICS: Mapping[str, int] = {"in-a": 3, "in-b": 2}
ACTIONS: tuple[Action, ...] = ("kill", "stop", "term")
SESSION_SECONDS = 4.0
GRACE_SECONDS = 1.5  # of C18
_SECONDS = 90.0  # to reach a place, or an end
_PAST = 1.0  # so long a replica stands still past its session
_HIT, _OTHER = "a", "b"


@dataclass(frozen=True, slots=True)
class Case:
    """A crash point, what happens there, of how many replicas, and what is promised."""

    point: str
    action: Action
    replicas: int
    guarantee: Guarantee
    output: Output

    @property
    def id(self) -> str:
        """As it is asked for: C07:kill:2."""
        return f"{self.point}:{self.action}:{self.replicas}"


def play(case: Case, seed: str, servers: Servers) -> Outcome:
    """Play a case; what does not come about in time is a complaint."""
    with servers.trial(TOPOLOGIES) as trial:
        replicas = Replicas(trial, case.output, session_seconds=SESSION_SECONDS, topics=TOPICS)
        try:
            with replicas:
                outcome = _Crash(case, Random(f"{seed} {case.id}"), replicas).play()
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - one of many
            outcome = Outcome(said=(f"{type(error).__name__}: {error}",))
        if servers.keep is not None and not outcome.is_good:
            shutil.copytree(trial.folder, servers.keep / case.id.replace(":", "-"))
        return outcome


class _Crash:
    """One case under way."""

    def __init__(self, case: Case, rng: Random, replicas: Replicas) -> None:
        self._case = case
        self._replicas = replicas
        self._point = POINTS[case.point]
        place = self._point.places[case.guarantee]
        self._failpoint = f"{place}:{rng.randint(1, self._point.most)}:{case.action}"
        self._is_alone = case.replicas == 1
        self._breaks: list[Break] = []

    @property
    def _run(self) -> Run:
        return self._replicas.runs[_HIT]

    @property
    def _names(self) -> list[str]:
        return [_HIT] if self._is_alone else [_HIT, _OTHER]

    def play(self) -> Outcome:
        replicas = self._replicas
        replicas.feed.start()
        begin = {
            "claiming": self._claiming,
            "working": self._working,
            "leaving": self._leaving,
            "draining": self._draining,
        }[self._point.moment]
        begin()
        seconds = {"kill": self._killed, "stop": self._stopped, "term": self._told}[
            self._case.action
        ]()
        replicas.goes_on()
        ends = replicas.end()
        outcome = judge(
            found_of(replicas), ends, self._breaks, self._case.guarantee, replicas.nodes.wrong
        )
        said = outcome.said
        must_repeat = self._case.guarantee in self._point.repeats and self._case.action == "kill"
        if must_repeat and not outcome.duplicates:
            said += ("nothing is repeated, so it was not hit where it should be",)
        return Outcome(
            outcome.lost,
            outcome.duplicates,
            outcome.unexplained_duplicates,
            round(seconds, 1),
            said,
        )

    # Until it is hit

    def _claiming(self) -> None:
        """Another one has stored offsets of what is taken over; it works on, if there are two."""
        first = _HIT if self._is_alone else _OTHER
        self._replicas.start(first)
        self._replicas.settle(first)
        self._replicas.goes_on()
        if self._is_alone:
            self._end_in_order()
        self._start_to_be_hit()

    def _working(self) -> None:
        if not self._is_alone:
            self._replicas.start(_OTHER)
            self._replicas.settle(_OTHER)
        self._start_to_be_hit()

    def _leaving(self) -> None:
        """What is let go goes to the other one; alone, it goes when the run ends."""
        self._start_to_be_hit()
        self._replicas.settle(_HIT)
        self._replicas.goes_on()
        if self._is_alone:
            self._run.send(signal.SIGTERM)
        else:
            self._replicas.start(_OTHER)

    def _draining(self) -> None:
        """Its bolt hangs when it is told to end, and its grace period passes."""
        self._replicas.start(*self._names)
        self._replicas.settle(*self._names)
        self._replicas.goes_on()
        (self._replicas.trial.folder / f"stuck-{_HIT}").touch()
        ends = self._replicas.feed.ends()
        until(
            "records hang",
            lambda: all(end > ends[p] + 5 for p, end in self._replicas.feed.ends().items()),
        )
        self._run.send(signal.SIGTERM)
        until("it drains", lambda: '"service_draining"' in self._run.errors, _SECONDS, self._tail)
        over = time.monotonic() + GRACE_SECONDS
        until("its grace period is over", lambda: time.monotonic() > over)
        assert self._run.alive, self._run.tail()

    def _start_to_be_hit(self) -> None:
        self._replicas.start(_HIT, environment={VARIABLE: self._failpoint})

    def _end_in_order(self) -> None:
        self._run.send(signal.SIGTERM)
        assert self._run.wait(_SECONDS) == 0, self._run.tail()

    # It is hit, and what comes after; each gives the seconds until all is well again

    def _killed(self) -> float:
        if self._point.moment == "draining":
            self._run.kill()
        else:
            self._reaches_its_place()
            until("it is dead", lambda: not self._run.alive, _SECONDS)
            assert self._run.process.returncode == -signal.SIGKILL, self._run.tail()
        return self._recovers(self._break())

    def _stopped(self) -> float:
        """It stands still past its session, and goes on."""
        if self._point.moment == "draining":
            processes.freeze(self._run.pid)
        else:
            self._reaches_its_place()
        stopped = time.monotonic()
        children = processes.java_children(self._run.pid)
        issued = self._break()
        nodes = self._replicas.nodes
        until(
            "its session is over",
            lambda: (
                time.monotonic() > stopped + SESSION_SECONDS + _PAST and _HIT not in nodes.members
            ),
            _SECONDS,
        )
        seconds = None if self._is_alone else self._stored_of(issued, stopped)
        thawed = time.monotonic()
        for pid in (*children, self._run.pid):
            processes.thaw(pid)
        if self._point.moment == "draining":
            self._run.kill()
        if self._point.moment == "draining" or (self._is_alone and self._is_told):
            again = self._recovers(issued)
            return again if seconds is None else seconds
        self._replicas.settle(*self._names)
        return self._stored_of(issued, thawed) if seconds is None else seconds

    def _told(self) -> float:
        """It is told to end; where it was told before, it ends at once."""
        if self._point.moment == "draining":
            self._run.send(signal.SIGTERM)
        else:
            self._reaches_its_place()
        issued = self._replicas.feed.ends()
        if not self._is_told:
            return self._recovers(issued, ended=0)
        until("it ends at once", lambda: not self._run.alive, _SECONDS, self._tail)
        assert self._run.process.returncode == -signal.SIGTERM, self._run.tail()
        return self._recovers(self._break())

    @property
    def _is_told(self) -> bool:
        """Whether it has had SIGTERM before it is hit."""
        moment = self._point.moment
        return moment == "draining" or (moment == "leaving" and self._is_alone)

    def _reaches_its_place(self) -> None:
        until(
            f"it is at {self._failpoint}",
            lambda: '"failpoint"' in self._run.errors or not self._run.alive,
            _SECONDS,
            self._tail,
        )
        assert '"failpoint"' in self._run.errors, self._run.tail()

    def _break(self) -> Mapping[tuple[str, int], int]:
        """Note what its partitions may repeat; how far each partition was published."""
        replicas = self._replicas
        stored = {part: Stored(0, 0, "") for part in replicas.feed.parts} | replicas.nodes.now()
        theirs = set(stored)
        if not self._is_alone:
            theirs = set(replicas.nodes.plan.owners.get(_HIT, ()))
            if _HIT in replicas.nodes.members:
                theirs |= replicas.nodes.members[_HIT].holds
        issued = replicas.feed.ends()
        self._breaks.append(Break({part: stored[part] for part in theirs}, issued))
        return issued

    def _recovers(self, issued: Mapping[tuple[str, int], int], ended: int | None = None) -> float:
        """It has ended, or does: whoever is there goes on."""
        since = time.monotonic()
        if ended is not None:
            assert self._run.wait(_SECONDS) == ended, self._run.tail()
        until("it has ended", lambda: not self._run.alive, _SECONDS, self._tail)
        (self._replicas.trial.folder / f"stuck-{_HIT}").unlink(missing_ok=True)
        if self._is_alone:
            self._replicas.start(_HIT)
        return self._stored_of(issued, since)

    def _stored_of(self, issued: Mapping[tuple[str, int], int], since: float) -> float:
        """Wait until all that was published by then is stored; the seconds until it was."""
        stored = self._replicas.stored
        self._replicas.until(
            "what was published is stored",
            lambda: all(stored().get(part, 0) >= end for part, end in issued.items()),
            _SECONDS,
        )
        steps = list(self._replicas.nodes.steps)
        reached = {
            part: next((at for at, p, s in steps if p == part and s.offset >= issued[part]), since)
            for part in issued
        }
        return max(0.0, *(at - since for at in reached.values()))

    def _tail(self) -> str:
        return self._run.tail()
