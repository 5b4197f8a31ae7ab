"""Offsets and replicas in ZooKeeper, read directly and watched.

Nothing of the product reads them, so that it does not vouch for itself.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from partition.zookeeper.zookeeper_client import KazooLog
from tests.support.patience import seconds, until

Offsets = dict[int, int]  # by partition
Part: TypeAlias = tuple[str, int]  # a topic and the number of a partition
PARTITIONS = range(4)
_POLL_SECONDS = 0.03
_ANSWER_SECONDS = seconds(2.0)


@contextmanager
def client(hosts: str) -> Iterator[KazooClient]:
    zookeeper = KazooClient(
        hosts, timeout=5.0, connection_retry={"max_tries": -1, "delay": 0.1}, logger=KazooLog()
    )
    zookeeper.start(30)
    try:
        yield zookeeper
    finally:
        zookeeper.stop()
        zookeeper.close()


def read(zookeeper: KazooClient, folder: str) -> Offsets:
    """Every partition's stored offset; a partition without one is left out."""
    found = {}
    for number in PARTITIONS:
        path = f"{folder}/partition_{number}"
        try:
            zookeeper.sync(path)
            found[number] = int(json.loads(zookeeper.get(path)[0])["offset"])
        except NoNodeError:
            continue
    return found


class Stored(NamedTuple):
    offset: int
    epoch: int
    writer: str


class Member(NamedTuple):
    """A replica that is registered; `joined` grows from one to the next."""

    process: str
    joined: int
    session: int  # of ZooKeeper
    seen: int
    holds: frozenset[Part]


class Plan(NamedTuple):
    """Owners of partitions; `leaving` is what somebody must release first."""

    number: int
    owners: Mapping[str, frozenset[Part]]
    leaving: frozenset[Part]

    @property
    def assigned(self) -> dict[Part, str]:
        return {part: name for name, parts in self.owners.items() for part in parts}


_NO_PLAN = Plan(0, {}, frozenset())


@dataclass
class Watch:
    """Reads a pipeline's nodes thirty times a second on a thread; waits while ZooKeeper is away.

    `wrong` lists what may never be: an offset, an epoch or a plan that is lower than before, a node
    that is gone, two writers in one epoch.
    """

    hosts: str
    pipeline: str
    parts: Callable[[], Collection[Part]]
    wrong: list[str] = field(default_factory=list)
    offsets: dict[Part, Stored] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    plan: Plan = _NO_PLAN
    plans: list[Plan] = field(default_factory=list)  # all that were seen
    steps: list[tuple[float, Part, Stored]] = field(default_factory=list)  # with their moments
    reads: int = 0

    def __enter__(self) -> Self:
        self._writers: dict[tuple[Part, int], str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-nodes", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join(seconds(30))

    @property
    def newest(self) -> Offsets:
        """The newest offsets, where one topic is watched."""
        return {number: each.offset for (_, number), each in self.offsets.items()}

    @property
    def total(self) -> int:
        return sum(self.newest.values())

    def passed(self, partition: int, offset: int) -> float:
        """When a stored offset past that record was first seen; infinite if never."""
        steps = (at for at, part, s in self.steps if part[1] == partition and s.offset > offset)
        return next(steps, math.inf)

    @property
    def leader(self) -> str:
        return min(self.members.items(), key=lambda each: each[1].joined)[0]

    def now(self) -> dict[Part, Stored]:
        enough = self.reads + 2  # the read that is under way may have begun before
        until("the nodes are read", lambda: self.reads >= enough)
        return self.offsets

    def taken_over(self, before: Mapping[Part, Stored]) -> float:
        """When the last of these partitions had more stored by another; infinite: not yet."""
        found: dict[Part, float] = {}
        for at, part, each in list(self.steps):
            was = before.get(part)
            if was is not None and each.writer != was.writer and each.offset > was.offset:
                found.setdefault(part, at)
        return max(found.values(), default=math.inf) if len(found) == len(before) else math.inf

    def _run(self) -> None:
        with client(self.hosts) as zookeeper:
            while not self._ended.wait(_POLL_SECONDS):
                try:
                    self._read(zookeeper)
                except (KazooException, KazooTimeoutError):
                    continue
                self.reads += 1

    def _read(self, zookeeper: KazooClient) -> None:
        base = f"/headrace/{self.pipeline}"
        offsets = {
            part: zookeeper.get_async(f"{base}/{part[0]}/partition_{part[1]}")
            for part in self.parts()
        }
        plan = zookeeper.get_async(f"{base}/@plan")
        try:
            names = zookeeper.get_children(f"{base}/@replicas")
        except NoNodeError:
            names = []
        members = {name: zookeeper.get_async(f"{base}/@replicas/{name}") for name in names}
        for part, answer in offsets.items():
            self._compare(part, _told(answer), time.monotonic())
        self._follow(_told(plan))
        found = {name: _told(answer) for name, answer in members.items()}
        self.members = {name: _member(*each) for name, each in found.items() if each is not None}

    def _compare(self, part: Part, found: tuple[dict[str, Any], Any] | None, now: float) -> None:
        before = self.offsets.get(part)
        if found is None:
            if before is not None:
                self.wrong.append(f"{part}: the node is gone")
            return
        own = found[0]["headrace"]
        after = Stored(found[0]["offset"], own["epoch"], own["writer"])
        if before == after:
            return
        if before is not None and (after.offset < before.offset or after.epoch < before.epoch):
            self.wrong.append(f"{part}: {before} -> {after}")
        writer = self._writers.setdefault((part, after.epoch), after.writer)
        if writer != after.writer:
            self.wrong.append(f"{part}: {writer} and {after.writer} write in epoch {after.epoch}")
        self.offsets = {**self.offsets, part: after}  # others may be reading the old one
        self.steps.append((now, part, after))

    def _follow(self, found: tuple[dict[str, Any], Any] | None) -> None:
        if found is None or found[0]["number"] == self.plan.number:
            return
        facts = found[0]
        leaving = [
            parts_of(topics) for held in facts["leaving"].values() for topics in held.values()
        ]
        owners = {name: parts_of(topics) for name, topics in facts["owners"].items()}
        plan = Plan(facts["number"], owners, frozenset().union(*leaving))
        if plan.number < self.plan.number:
            self.wrong.append(f"plan {self.plan.number} -> {plan.number}")
        self.plan = plan
        self.plans.append(plan)


def _told(answer: Any) -> tuple[dict[str, Any], Any] | None:
    """A node's content, and its facts; None: it is not there."""
    try:
        data, stat = answer.get(timeout=_ANSWER_SECONDS)
    except NoNodeError:
        return None
    return json.loads(data), stat


def _member(facts: Mapping[str, Any], stat: Any) -> Member:
    holds = parts_of(facts["holds"])
    return Member(facts["process"], stat.czxid, stat.ephemeralOwner, facts["seen"], holds)


def parts_of(topics: Mapping[str, str]) -> frozenset[Part]:
    """The partitions of ranges such as {"orders": "0-3,7"}."""
    found = set()
    for topic, text in topics.items():
        for each in text.split(",") if text else ():
            first, _, last = each.partition("-")
            found |= {(topic, number) for number in range(int(first), int(last or first) + 1)}
    return frozenset(found)
