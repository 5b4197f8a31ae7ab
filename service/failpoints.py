"""Failpoints: end this process at a named place, for tests of crashes.

`HEADRACE_FAILPOINT=name:n:action`: when the place is passed for the n-th time, this process is
killed, as by `kill -9`, or stopped, or gets SIGTERM, or an error is raised. Ports are decorated
with their places at wiring; only ZooKeeper's client and the spark engine get a callable.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

from partition.errors import StoreError
from partition.interfaces import Claimed, Progress
from partition.offsets.offset_store import OffsetStore
from partition.records import Partition, Position, Transactions
from service.errors import BadConfig
from topology import sink

Port = TypeVar("Port", sink.Sink[Any], sink.DeadLetterSink)
Owner = TypeVar("Owner")

VARIABLE = "HEADRACE_FAILPOINT"
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


class FailpointReached(RuntimeError):
    """Raised by the action `raise`."""


def failpoints(environment: Mapping[str, str]) -> Callable[[str], None]:
    """Return the callable to call at each place, on any thread. Raises BadConfig."""
    wanted = environment.get(VARIABLE)
    if not wanted:
        return nowhere
    place, _, rest = wanted.partition(":")
    count, _, action = rest.partition(":")
    is_place = place in PLACES or place.startswith(OWN)
    is_good = is_place and count.isdecimal() and int(count) > 0 and action in ACTIONS
    if not is_good or (place in _UNHEARD and action == "raise"):
        places = ", ".join((*PLACES, f"{OWN}..."))
        allowed = f"place:n:action; places: {places}; actions: {', '.join(ACTIONS)}"
        raise BadConfig("environment", VARIABLE, wanted, allowed)
    return _Failpoint(place, int(count), action)


class _Failpoint:
    def __init__(self, place: str, count: int, action: str) -> None:
        self._place = place
        self._place_passed = _INSIDE_BEGINS if place == _INSIDE else place
        self._left = count
        self._action = action
        self._lock = threading.Lock()

    def __call__(self, place: str) -> None:
        if place != self._place_passed:
            return
        with self._lock:
            self._left -= 1
            if self._left != 0:
                return
        if self._place == _INSIDE:
            seconds = random.SystemRandom().uniform(0.0, _INSIDE_SECONDS)
            acting = threading.Timer(seconds, self._act)
            acting.daemon = True
            acting.start()
        else:
            self._act()

    def _act(self) -> None:
        # Not by the log, whose thread may not come to write it.
        os.write(2, f'{{"event": "failpoint", "place": "{self._place}"}}\n'.encode())
        if self._action == "raise":
            raise FailpointReached(self._place)
        if self._action == "term":
            os.kill(os.getpid(), signal.SIGTERM)
            return
        number = signal.SIGSTOP if self._action == "stop" else signal.SIGKILL
        if self._action != "kill-python":
            for pid in _jvms():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if self._action != "kill-jvm":
            os.kill(os.getpid(), number)
            time.sleep(_STOPS_SECONDS)  # another thread may be the one that takes the signal


def _jvms() -> Iterator[int]:
    """Return our children that run Java; none where /proc is missing."""
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):
            for pid in (task / "children").read_text().split():
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/exe").resolve().name == "java":
                        yield int(pid)


class _FailpointPort:
    """A port that passes its places; everything else is the port's own."""

    def __init__(self, port: Any, at: Callable[[str], object]) -> None:
        self._port = port
        self._at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


class FailpointSink(_FailpointPort):
    _port: sink.Sink[Any]

    def fence(self, fences: Sequence[sink.Fence]) -> list[sink.Committed]:
        self._at("sink_before_fence")
        committed = self._port.fence(fences)
        self._at("sink_after_fence")
        return committed

    def stage(self, batch: sink.Batch) -> sink.Staged:
        self._at("sink_before_stage")
        return self._port.stage(batch)

    def joined(self, shares: tuple[sink.Share, ...], staged: Sequence[sink.Staged]) -> sink.Staged:
        self._at("sink_before_stage")
        return self._port.joined(shares, staged)

    def commit(self, staged: sink.Staged) -> None:
        if staged.rejected and staged.shares:  # exactly once, letters are waited for
            self._at("letters_before_commit")
        self._at("sink_before_commit")
        self._port.commit(staged)
        self._at("sink_after_commit")


class FailpointDeadLetters(_FailpointPort):
    _port: sink.DeadLetterSink

    def send(self, letter: sink.DeadLetter | sink.RangeNotice, token: int) -> None:
        self._port.send(letter, token)
        self._at("letter_sent")

    def poll(self) -> list[sink.Delivered]:
        delivered = self._port.poll()
        for each in delivered:
            if each.error is None:
                self._at("letter_durable")
        return delivered


class FailpointStore(_FailpointPort):
    """An offset store that passes its places.

    A commit moves an offset, or stores a plan, or both: what is beyond the stored state tells.
    The owner calls everything; answers come on the store's thread.
    """

    _port: OffsetStore

    def __init__(self, store: OffsetStore, at: Callable[[str], object]) -> None:
        super().__init__(store, at)
        self._stored: dict[Partition, tuple[int, int]] = {}  # offset, and end of what is planned
        self.moved: list[Partition] = []
        """The partitions whose offsets the newest commit moves."""

    def claim(self, partition: Partition, **options: bool) -> Future[Claimed]:
        self._at("claim_before_write")

        def claimed(claim: Claimed) -> None:
            stored = claim.stored
            if stored is not None:
                self._stored[partition] = _reach(stored.offset, stored.transactions)
            self._at("claim_after_write")

        return _once(self._port.claim(partition, **options), claimed)

    def begin(
        self,
        partition: Partition,
        position: Position,
        partitions: int | None = None,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        self._stored[partition] = _reach(position.offset, transactions)
        return self._port.begin(partition, position, partitions, transactions)

    def commit(
        self, progress: Mapping[Partition, Progress]
    ) -> Future[Mapping[Partition, StoreError]]:
        reached = {
            p: _reach(each.position.offset, each.transactions) for p, each in progress.items()
        }
        before = {p: self._stored.get(p, (-1, -1)) for p in reached}
        self.moved = [p for p in reached if reached[p][0] > before[p][0]]
        is_planned = any(reached[p][1] > before[p][1] for p in reached)
        kinds = ["plan"] * is_planned + ["offset"] * bool(self.moved)
        for kind in kinds:
            self._at(f"{kind}_before_store")

        def stored(refused: Mapping[Partition, StoreError]) -> None:
            self._stored |= {p: each for p, each in reached.items() if p not in refused}
            for kind in kinds:
                self._at(f"{kind}_after_store")

        def was_read() -> None:
            for kind in reversed(kinds):
                self._at(f"{kind}_stored")

        return _once(self._port.commit(progress), stored, was_read)


class FailpointConsumer(_FailpointPort):
    """A consumer that passes the place of a commit for a partition that leaves."""

    def __init__(self, consumer: Any, store: FailpointStore, at: Callable[[str], object]) -> None:
        super().__init__(consumer, at)
        self._passing = store

    def commit(self, now: float, *, force: bool = False) -> None:
        self._passing.moved = []
        self._port.commit(now, force=force)
        assignment = self._port.assignment
        moved = [assignment[partition] for partition in self._passing.moved]
        if moved and (assignment.ends or any(each.is_leaving for each in moved)):
            self._at("leaving_offset_sent")


class _Answer(Future[Any]):
    """A future that calls back when its result is read."""

    def __init__(self, on_read: Callable[[], object]) -> None:
        super().__init__()
        self._on_read = on_read

    def result(self, timeout: float | None = None) -> Any:
        found = super().result(timeout)
        self._on_read()
        return found


def _once(
    asked: Future[Any],
    answered: Callable[[Any], object],
    on_read: Callable[[], object] = lambda: None,
) -> Future[Any]:
    """Return a future of the same result; `answered` runs before it ends, `on_read` on reading."""
    answer = _Answer(on_read)

    def end(ended: Future[Any]) -> None:
        try:
            found = ended.result()
            answered(found)
        except BaseException as error:  # noqa: BLE001 - it is the answer
            answer.set_exception(error)
        else:
            answer.set_result(found)

    asked.add_done_callback(end)
    return answer


def _reach(offset: int, transactions: Transactions | None) -> tuple[int, int]:
    planned = transactions.open if transactions is not None else ()
    return offset, planned[-1].range.end if planned else -1


def with_places(port: Port, at: Callable[[str], object]) -> Port:
    if at is nowhere:
        return port
    make: Any = FailpointDeadLetters if isinstance(port, sink.DeadLetterSink) else FailpointSink
    passing: Port = make(port, at)
    return passing


def consumer_with_places(
    make: Callable[[OffsetStore], Owner], store: OffsetStore, at: Callable[[str], object]
) -> Owner:
    """Make what owns partitions on a store; both pass their places, if there are any to pass."""
    if at is nowhere:
        return make(store)
    passing = FailpointStore(store, at)
    owner: Any = FailpointConsumer(make(cast("OffsetStore", passing)), passing, at)
    passed: Owner = owner
    return passed


def nowhere(_place: str) -> None:
    """Do nothing."""
