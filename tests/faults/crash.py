"""The crash matrix: a replica is hit at each of eighteen points, and what is there is judged.

A point is a named failpoint (tests/support/failpoints.py), so that a replica is hit there and
nowhere else. Two replicas are "a", which is hit, and "b"; one is "a" alone, which is started again
when it has ended. The feed publishes all the while.
"""

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeAlias

from tests.acceptance import processes
from tests.acceptance.harness import Run
from tests.acceptance.replicas import SESSION_SECONDS, TOPOLOGIES, Output, Replicas
from tests.acceptance.trial import Trial
from tests.faults.judge import Guarantee, Outcome
from tests.faults.servers import Servers
from tests.support.failpoints import VARIABLE
from tests.support.patience import until

Action: TypeAlias = Literal["kill", "stop", "term"]
Moment: TypeAlias = Literal["claiming", "working", "leaving", "draining"]
TOPICS: Mapping[str, int] = {"in-a": 3, "in-b": 2}
ACTIONS: tuple[Action, ...] = ("kill", "stop", "term")
GRACE_SECONDS = 1.5  # of C18
_SECONDS = 90.0  # to reach a place, or an end
_PAST = 1.0  # so long a replica stands still past its session
_HIT, _OTHER = "a", "b"


@dataclass(frozen=True, slots=True)
class Point:
    """Where it is, by guarantee; a guarantee that has no such point is left out.

    The place is passed a random number of times first, at most `most`. `moment` is what the
    replica does then: it takes over partitions, it works, it lets partitions go, or it drains
    and cannot end.
    """

    what: str
    places: Mapping[Guarantee, str]
    most: int = 5
    moment: Moment = "working"
    repeats: frozenset[Guarantee] = frozenset()
    """Under which guarantees a kill must repeat something: else it did not hit what it says."""


def _both(place: str) -> Mapping[Guarantee, str]:
    return {"at least once": place, "exactly once": place}


POINTS: Mapping[str, Point] = {
    "C01": Point("before a partition is claimed", _both("claim_before_write"), 2, "claiming"),
    "C02": Point(
        "its epoch is raised in ZooKeeper, no sink was fenced",
        _both("claim_after_write"),
        2,
        "claiming",
    ),
    "C03": Point(
        "the sink is fenced, what it has committed was not read",
        {"exactly once": "sink_after_fence"},
        1,
        "claiming",
    ),
    "C04": Point(
        "records are fetched, their transaction is not stored",
        {"exactly once": "plan_before_store"},
    ),
    "C05": Point(
        "their transaction is stored, the answer was lost", {"exactly once": "plan_after_store"}
    ),
    "C06": Point(
        "their transaction is stored, nothing was emitted", {"exactly once": "plan_stored"}
    ),
    "C07": Point("amid the trees", _both("own_mid_tree"), 150),
    "C08": Point("a bolt's side effect is done, its ack is not", _both("own_effect_done"), 150),
    "C09": Point("the trees are done but for the sink", _both("sink_before_stage")),
    "C10": Point(
        "the sink has written, and not committed",
        {"at least once": "own_sink_writing", "exactly once": "sink_before_commit"},
    ),
    "C11": Point(
        "the sink has committed, the answer was lost",
        _both("sink_after_commit"),
        repeats=frozenset({"at least once"}),
    ),
    "C12": Point(
        "the sink is known to be done, no offset was sent",
        _both("offset_before_store"),
        repeats=frozenset({"at least once"}),
    ),
    "C13": Point("the offset is stored, the answer was lost", _both("offset_after_store")),
    "C14": Point("the answer is there, memory has not advanced", _both("offset_stored")),
    "C15": Point("a dead letter is handed to the client, not sent", _both("letter_sent"), 12),
    "C16": Point(
        "a dead letter is durable, its offset is not",
        _both("letter_durable"),
        12,
        repeats=frozenset({"at least once", "exactly once"}),
    ),
    "C17": Point("a partition is let go amid a commit", _both("leaving_offset_sent"), 1, "leaving"),
    "C18": Point(
        "SIGTERM, the drain outlasts its grace period",
        _both(""),  # nothing passes here: a bolt hangs
        1,
        "draining",
    ),
}


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


IN_DELTA = frozenset(
    {"C03:kill:2", "C09:term:1", "C10:kill:1", "C11:kill:1", "C11:stop:2", "C12:stop:2"}
)
"""Those that are played into a Delta table."""


def crash_cases() -> dict[str, Case]:
    """The crash matrix. The guarantees take turns; some points are of one alone."""
    found = {}
    for number, (name, point) in enumerate(POINTS.items()):
        variants = [(action, replicas) for action in ACTIONS for replicas in (1, 2)]
        for turn, (action, replicas) in enumerate(variants):
            is_odd = (number + turn + turn // 2) % 2  # so that no action has one guarantee alone
            guarantee: Guarantee = "at least once" if is_odd else "exactly once"
            if guarantee not in point.places or f"{name}:{action}:{replicas}" in IN_DELTA:
                guarantee = "exactly once"
            output: Output = "lines" if guarantee == "at least once" else "messages"
            case = Case(name, action, replicas, guarantee, output)
            if case.id in IN_DELTA:
                case = Case(name, action, replicas, guarantee, "delta")
            found[case.id] = case
    return found


def play(case: Case, seed: str, servers: Servers) -> Outcome:
    """Play a case; what does not come about in time is a complaint."""

    def crashed(trial: Trial) -> Outcome:
        with Replicas(trial, case.output, topics=TOPICS) as replicas:
            return _Crash(case, Random(f"{seed} {case.id}"), replicas).play()

    return servers.play(TOPOLOGIES, crashed)


class _Crash:
    def __init__(self, case: Case, rng: Random, replicas: Replicas) -> None:
        self._case = case
        self._replicas = replicas
        self._point = POINTS[case.point]
        place = self._point.places[case.guarantee]
        self._failpoint = f"{place}:{rng.randint(1, self._point.most)}:{case.action}"
        self._is_alone = case.replicas == 1

    @property
    def _run(self) -> Run:
        return self._replicas.runs[_HIT]

    @property
    def _names(self) -> list[str]:
        return [_HIT] if self._is_alone else [_HIT, _OTHER]

    def play(self) -> Outcome:
        replicas = self._replicas
        replicas.feed.start()
        getattr(self, f"_{self._point.moment}")()
        seconds = getattr(self, f"_{self._case.action}")()
        replicas.goes_on()
        ends = replicas.end()
        outcome = replace(replicas.judged(ends), recovery_seconds=round(seconds, 1))
        must_repeat = self._case.guarantee in self._point.repeats and self._case.action == "kill"
        if must_repeat and not outcome.duplicates:
            said = "nothing is repeated, so it was not hit where it should be"
            outcome = replace(outcome, said=(*outcome.said, said))
        return outcome

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

    def _kill(self) -> float:
        if self._point.moment == "draining":
            self._run.kill()
        else:
            self._reaches_its_place()
            until("it is dead", lambda: not self._run.alive, _SECONDS)
            assert self._run.process.returncode == -signal.SIGKILL, self._run.tail()
        return self._recovers(self._break())

    def _stop(self) -> float:
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

    def _term(self) -> float:
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
        parts = self._replicas.feed.parts if self._is_alone else ()
        self._replicas.lose(_HIT, lambda _: None, parts)
        return self._replicas.breaks[-1].issued

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
