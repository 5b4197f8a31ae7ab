"""Failpoints: end this process at a named place.

`FAILPOINT=name:n:action`: when the place is passed for the n-th time, this process is killed, as by
`kill -9`, or stopped, or gets SIGTERM, or an error is raised. A module of topologies calls
`install`; what is wired after that passes the places.
"""

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, MutableMapping
from concurrent.futures import Future
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeAlias

from partition.offsets.requests import Write
from partition.records import Partition, Transactions
from partition.recovery import Ways
from tests.acceptance import processes
from topology.sink import DeadLetterSink, Sink
from topology.steps import SinkStep

At: TypeAlias = Callable[[str], object]

VARIABLE = "FAILPOINT"
PLACES = (
    "zk_before_write",
    "zk_after_write",  # it is stored, and nobody was told
    "sink_before_fence",
    "sink_after_fence",
    "sink_before_stage",
    "sink_before_commit",
    "sink_inside_commit",  # at any moment of it, or shortly after
    "sink_after_commit",  # it is durable, and nobody was told
    "range_after_plan",  # planned ranges are stored, and nothing of them has run
    "range_before_seal",  # they were processed, and nobody was told what they held
    "range_after_seal",  # that is stored, and no sink has their rows
    "letters_before_commit",  # of rows that were rejected: durable, their transaction is not
    "claim_before_write",  # a partition is about to be claimed
    "claim_after_write",  # its epoch is raised, and no sink was told
    "plan_before_store",  # records are fetched and planned, and nothing of it is stored
    "plan_after_store",  # their transactions are stored, and the owner was not told
    "plan_stored",  # it was, and has emitted nothing of them
    "offset_before_store",  # what the sinks have is about to be stored
    "offset_after_store",  # it is stored, and the owner was not told
    "offset_stored",  # it was, and still knows the offsets of before
    "letter_sent",  # the client has it, the broker need not
    "letter_durable",  # the broker has it, and its record is not resolved
    "leaving_offset_sent",  # of a partition that is let go
)
OWN = "own_"
"""So begin the places that a topology passes itself, in its bolts and sinks."""
ACTIONS = (
    "kill",  # every JVM that this process has started, then the process
    "kill-jvm",  # its JVMs alone
    "kill-python",  # the process alone: a JVM may finish what it was asked
    "stop",  # both, as a machine that stands still; SIGCONT lets them go on
    "term",  # the process gets SIGTERM, and goes on
    "raise",
)
_UNHEARD = ("sink_inside_commit", "plan_after_store", "offset_after_store")  # nobody catches there
_INSIDE, _INSIDE_BEGINS = "sink_inside_commit", "sink_before_commit"
_INSIDE_SECONDS = 0.06  # about the length of a commit
_STOPS_SECONDS = 2.0  # until then the process stands still


def install(environment: MutableMapping[str, str]) -> At:
    """If the variable is set, have everything that is made from now on pass its places.

    Return what places of one's own call. The variable is removed, so that no process that this
    one starts is hit, such as an executor. Raises ValueError.
    """
    wanted = environment.pop(VARIABLE, None)
    if not wanted:
        return nowhere
    at = failpoint(wanted)
    for path, with_places in MAKERS.items():
        module_name, _, name = path.rpartition(".")
        module = import_module(module_name)
        setattr(module, name, with_places(getattr(module, name), at))
    return at


def nowhere(_place: str) -> None:
    """Do nothing."""


def failpoint(wanted: str) -> At:
    """Return what is called at each place, on any thread. Raises ValueError."""
    place, _, rest = wanted.partition(":")
    count, _, action = rest.partition(":")
    is_place = place in PLACES or place.startswith(OWN)
    is_good = is_place and count.isdecimal() and int(count) > 0 and action in ACTIONS
    if not is_good or (place in _UNHEARD and action == "raise"):
        places = ", ".join((*PLACES, f"{OWN}..."))
        allowed = f"place:n:action; places: {places}; actions: {', '.join(ACTIONS)}"
        raise ValueError(f"{VARIABLE}: found '{wanted}', expected {allowed}")
    begins = _INSIDE_BEGINS if place == _INSIDE else place
    passes = itertools.count(1)

    def at(passed: str) -> None:
        if passed != begins or next(passes) != int(count):
            return
        if place == _INSIDE:
            seconds = random.SystemRandom().uniform(0.0, _INSIDE_SECONDS)
            acting = threading.Timer(seconds, _act, (place, action))
            acting.daemon = True
            acting.start()
        else:
            _act(place, action)

    return at


def _act(place: str, action: str) -> None:
    # Not by the log, whose thread may not come to write it.
    os.write(2, f'{{"event": "failpoint", "place": "{place}"}}\n'.encode())
    if action == "raise":
        raise RuntimeError(place)
    if action == "term":
        os.kill(os.getpid(), signal.SIGTERM)
        return
    number = signal.SIGSTOP if action == "stop" else signal.SIGKILL
    for pid in processes.java_children(os.getpid()) if action != "kill-python" else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    if action != "kill-jvm":
        os.kill(os.getpid(), number)
        time.sleep(_STOPS_SECONDS)  # another thread may be the one that takes the signal


def port_with_places(port: Any, at: At) -> Any:
    """Return a sink, or its step, that passes its places; anything else as it is."""
    if at is nowhere:
        return port
    if isinstance(port, SinkStep):
        return replace(port, sink=_FailpointSink(port.sink, at))
    if isinstance(port, Sink):
        return _FailpointSink(port, at)
    return _FailpointDeadLetters(port, at) if isinstance(port, DeadLetterSink) else port


def owner_with_places(make: Callable[..., Any], at: At) -> Callable[..., Any]:
    """Return what makes an owner of partitions on a store; both pass their places."""

    def made(client: Any, ways: Ways, *others: Any) -> Any:
        store: Any = _FailpointStore(ways.store, at)
        return _FailpointOwner(make(client, replace(ways, store=store), *others), store, at)

    return make if at is nowhere else made


def groups_with_places(groups: Any, at: At) -> Any:
    """Return the groups of the spark engine, which its owner thread calls."""

    class FailpointGroups(groups):
        def next_run(self, now):
            group = super().next_run(now)
            if group is not None:
                at("range_after_plan")
            return group

        def ran(self, *attempt):
            at("range_before_seal")
            return super().ran(*attempt)

        def next_commit(self):
            group = super().next_commit()
            if group is not None:
                at("range_after_seal")
            return group

    return FailpointGroups


def _connection_with_places(connection: Any, at: At) -> Any:
    class FailpointConnection(connection):
        def begin(self, request, **until):
            pass_ = at if until and isinstance(request, Write) else nowhere  # no heartbeat does
            pass_("zk_before_write")
            reply = super().begin(request, **until)

            def replied():
                found = reply()
                pass_("zk_after_write")
                return found

            return replied

    return FailpointConnection


def _with_ports(make: Callable[..., Any], at: At) -> Callable[..., Any]:
    return lambda *given, **more: make(*(port_with_places(each, at) for each in given), **more)


MAKERS = {
    "partition.zookeeper.zookeeper_store.ZooKeeperConnection": _connection_with_places,
    "service.wiring.Consumer": owner_with_places,
    "service.pipeline.build.SinkWriter": _with_ports,
    "service.pipeline.build.DeadLetterSender": _with_ports,
    "service.spark_engine.engine.RangeOwner": owner_with_places,
    "service.spark_engine.engine.TransactionGroups": groups_with_places,
    "service.spark_engine.engine.RangeBuffer": _with_ports,
    "service.spark_engine.engine.SinkWriter": _with_ports,
    "service.spark_engine.engine.DeadLetterSender": _with_ports,
}


class _FailpointPort:
    """A port that passes its places; everything else is the port's own."""

    def __init__(self, port, at):
        self._port, self._at = port, at

    def __getattr__(self, name):
        return getattr(self._port, name)


class _FailpointSink(_FailpointPort):
    def fence(self, fences):
        self._at("sink_before_fence")
        committed = self._port.fence(fences)
        self._at("sink_after_fence")
        return committed

    def stage(self, batch):
        self._at("sink_before_stage")
        return self._port.stage(batch)

    def joined(self, shares, staged):
        self._at("sink_before_stage")
        return self._port.joined(shares, staged)

    def commit(self, staged):
        if staged.rejected and staged.shares:  # exactly once, letters are waited for
            self._at("letters_before_commit")
        self._at("sink_before_commit")
        self._port.commit(staged)
        self._at("sink_after_commit")


class _FailpointDeadLetters(_FailpointPort):
    def send(self, letter, token):
        self._port.send(letter, token)
        self._at("letter_sent")

    def poll(self):
        delivered = self._port.poll()
        for each in delivered:
            if each.error is None:
                self._at("letter_durable")
        return delivered


class _FailpointStore(_FailpointPort):
    """A commit moves an offset, or stores a plan, or both: what is beyond the stored state tells.

    The owner calls everything; answers come on the store's thread.
    """

    def __init__(self, store, at):
        super().__init__(store, at)
        self._stored: dict[Partition, tuple[int, int]] = {}  # offset, and end of what is planned
        self.moved: list[Partition] = []
        """The partitions whose offsets the newest commit moves."""

    def claim(self, partition, **options):
        self._at("claim_before_write")

        def claimed(claim):
            if claim.stored is not None:
                self._stored[partition] = _reach(claim.stored.offset, claim.stored.transactions)
            self._at("claim_after_write")

        return _Answer(self._port.claim(partition, **options), claimed)

    def begin(self, partition, position, partitions=None, transactions=None):
        self._stored[partition] = _reach(position.offset, transactions)
        return self._port.begin(partition, position, partitions, transactions)

    def commit(self, progress):
        reached = {p: _reach(new.position.offset, new.transactions) for p, new in progress.items()}
        before = {p: self._stored.get(p, (-1, -1)) for p in reached}
        self.moved = [p for p in reached if reached[p][0] > before[p][0]]
        is_planned = any(reached[p][1] > before[p][1] for p in reached)
        kinds = ["plan"] * is_planned + ["offset"] * bool(self.moved)
        for kind in kinds:
            self._at(f"{kind}_before_store")

        def stored(refused):
            self._stored |= {p: each for p, each in reached.items() if p not in refused}
            for kind in kinds:
                self._at(f"{kind}_after_store")

        def was_read():
            for kind in reversed(kinds):
                self._at(f"{kind}_stored")

        return _Answer(self._port.commit(progress), stored, was_read)


def _reach(offset: int, transactions: Transactions | None) -> tuple[int, int]:
    planned = transactions.open if transactions is not None else ()
    return offset, planned[-1].range.end if planned else -1


class _Answer(Future[Any]):
    """The same result as another future's; `answered` runs before it is there."""

    def __init__(self, asked, answered, on_read=lambda: None):
        super().__init__()
        self._answered, self._on_read = answered, on_read
        asked.add_done_callback(self._end)

    def _end(self, asked):
        try:
            found = asked.result()
            self._answered(found)
        except BaseException as error:  # noqa: BLE001 - it is the answer
            self.set_exception(error)
        else:
            self.set_result(found)

    def result(self, timeout=None):
        found = super().result(timeout)
        self._on_read()
        return found


class _FailpointOwner(_FailpointPort):
    """Passes the place of a commit for a partition that leaves."""

    def __init__(self, owner, store, at):
        super().__init__(owner, at)
        self._passing = store

    def commit(self, now, *, force=False):
        self._passing.moved = []
        self._port.commit(now, force=force)
        assignment = self._port.assignment
        moved = [assignment[partition] for partition in self._passing.moved]
        if moved and (assignment.ends or any(each.is_leaving for each in moved)):
            self._at("leaving_offset_sent")
