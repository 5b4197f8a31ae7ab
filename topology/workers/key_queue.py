"""Calls of bolts, and the queues that say which of them may start, and in which order.

The queues are pure and not thread-safe.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from types import CoroutineType, GeneratorType, NoneType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acker.acker import Edges, Trees
from topology.bolt import Bolt, yields_later, yields_many
from topology.calls import misreturned, no_value
from topology.errors import BoltError, NothingReturned
from topology.record import SIGNALS, SKIP, Reject
from topology.steps import BoltStep

_NO_VALUES = frozenset({NoneType, GeneratorType, CoroutineType, *SIGNALS})


@dataclass(slots=True)
class Inputs:
    """Values for one step, as columns. A record keeps its id when it is retried."""

    values: list[Any]
    trees: Trees
    edges: Edges
    record_ids: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int64]
    tasks: list[int] | None = None  # of a step with several

    def take(self, indices: list[int]) -> "Inputs":
        return Inputs(
            [self.values[index] for index in indices],
            self.trees[indices],
            self.edges[indices],
            self.record_ids[indices],
            self.partitions[indices],
            None if self.tasks is None else [self.tasks[index] for index in indices],
        )


class Call(msgspec.Struct, eq=False):
    """One value on its way through a bolt.

    `value` is the input, and once the call has ended without an `error` its result: a Many for a
    generator.
    """

    value: Any
    tree: int
    edge: int
    record_id: int
    partition: int
    key: Hashable = None
    error: Exception | None = None

    @property
    def comes_again(self) -> bool:
        """Whether the record is retried: it failed, and not permanently."""
        return self.error is not None and not isinstance(self.error, (Reject, BoltError))


class Many(list[Any]):
    """The values of one call of a generator: they leave together."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """A tick ended: it emits values, or has an error. The next one is not affected."""

    step: str
    values: Sequence[Any] = ()
    error: BaseException | None = None


def values_of_tick(returned: Any) -> list[Any]:
    """Return what a tick emits: nothing, one value, or those of a generator. Raises BoltError."""
    if returned is None:
        return []
    if isinstance(returned, bool | pa.RecordBatch | AsyncIterator):
        expected = "expected a value, such as a row, or a generator of values"
        raise BoltError(f"tick returned {type(returned).__name__}, {expected}")
    return list(returned) if isinstance(returned, Iterator) else [returned]


class Answers:
    """Ended calls of one step, until the owner thread takes them. Any thread adds.

    It announces itself once until it is taken: a busy owner gets many calls at once.
    """

    def __init__(self, step: BoltStep, announce: "Callable[[Answers], object]") -> None:
        self.step = step
        self._announce = announce
        self._ended: list[Call] = []
        self._announced = False

    def add(self, call: Call) -> None:
        if self.add_quietly(call):
            self._announce(self)

    def add_quietly(self, call: Call) -> bool:
        """Add a call; return whether `announce` must follow."""
        self._ended.append(call)
        if self._announced:
            return False
        self._announced = True
        return True

    def announce(self) -> None:
        self._announce(self)

    def take(self) -> list[Call]:
        self._announced = False  # first, so that a call added from now on is announced again
        count = len(self._ended)
        ended = self._ended[:count]
        del self._ended[:count]
        return ended


def process_of(step: str, bolt: Bolt[Any, Any]) -> Callable[[Any], Any]:
    """Return the function to call, or to await, per value: it gives a value, SKIP or a Many."""
    function: Callable[[Any], Any] = bolt.process
    if yields_many(bolt):
        return lambda value: _many(step, list(function(value)))
    if not yields_later(bolt):
        return function

    async def gather(value: Any) -> Many:
        return _many(step, [out async for out in function(value)])

    return gather


def _many(step: str, values: list[Any]) -> Many:
    for value in values:
        if value is None:
            raise NothingReturned(step)
        if type(value) in SIGNALS:
            raise no_value(step, value)
    return Many(value for value in values if value is not SKIP)


def finish(step: str, call: Call, value: Any) -> None:
    """End a call with the result of its bolt, or with the error of a result that is no value."""
    if type(value) not in _NO_VALUES:
        call.value = value
    elif value is None:
        call.error = NothingReturned(step)
    elif type(value) in SIGNALS:
        call.error = no_value(step, value)
    else:
        call.error = misreturned(step, value)


class CallQueue:
    """Calls in any order: each may start at once."""

    def __init__(self) -> None:
        self.ready: deque[Call] = deque()  # may start now
        self.suspended: dict[int, list[Call]] = {}  # by partition: what else might start
        self.held: dict[int, set[Hashable]] = {}
        """The keys that wait for the retry of a record, by its id. Any thread may read it."""

    @property
    def num_waiting(self) -> int:
        """Number of calls that have not started. Any thread."""
        suspended = list(self.suspended.values())
        return len(self.ready) + sum(map(len, suspended))

    def waiting(self) -> list[int]:
        """Return the trees of the calls that have not started."""
        suspended = chain.from_iterable(self.suspended.values())
        return [call.tree for call in [*self.ready, *suspended]]

    def add(self, calls: Iterable[Call]) -> None:
        """Add calls in the order of their arrival."""
        if self.suspended:
            for call in calls:
                self._make_ready(call)
        else:
            self.ready.extend(calls)

    def _make_ready(self, call: Call) -> None:
        self.suspended.get(call.partition, self.ready).append(call)

    def take(self) -> Call | None:
        """Remove and return the next call to start, if any."""
        try:  # without an order another thread may suspend a partition meanwhile
            return self.ready.popleft()
        except IndexError:
            return None

    def end(self, call: Call) -> None:
        """Note that a call has ended; its `error` is set if it failed."""

    def suspend(self, partition: int) -> None:
        """Start no call of a partition until `resume`."""
        if partition in self.suspended:
            return
        self.suspended[partition] = []
        for call in self._take_ready():
            self._make_ready(call)

    def resume(self, partition: int) -> None:
        """Let the calls of a partition start again."""
        self.ready.extend(self.suspended.pop(partition, ()))

    def _take_ready(self) -> list[Call]:
        found = []
        while self.ready:
            with suppress(IndexError):  # the thread that takes may be faster
                found.append(self.ready.popleft())
        return found

    def release(self, record_ids: Iterable[int]) -> None:
        """Free the keys that these records hold: they are not retried."""

    def drop(self, is_gone: Callable[[Call], bool]) -> list[Call]:
        """Drop and return calls that have not started, and free the keys that such calls hold."""
        ready = self._take_ready()
        self.ready.extend(call for call in ready if not is_gone(call))
        dropped = [call for call in ready if is_gone(call)]
        for partition, calls in self.suspended.items():
            dropped += [call for call in calls if is_gone(call)]
            self.suspended[partition] = [call for call in calls if not is_gone(call)]
        return dropped

    def blocked(self) -> "list[WaitingCalls]":
        """Return the calls that cannot start before a record is retried, by key."""
        return []


class WaitingCalls:
    """The calls that wait for one key, in the order in which they start.

    That is the order of arrival of their records: the values of one record stay together. Those of
    the tree that `lead` named go first. A record that is retried while it waits keeps its position,
    and the calls of its earlier attempt are dropped: at most one attempt of a record is alive.
    """

    __slots__ = ("_again", "_calls", "_count", "_first", "_leading")

    def __init__(self) -> None:
        self._first: int | None = None  # the tree of the record that leads
        self._leading: deque[Call] = deque()  # its calls
        self._calls: OrderedDict[int, Call | deque[Call]] = OrderedDict()  # all others, by record
        self._again: set[int] = set()  # of these records, those that lead when it is their turn
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Call]:
        yield from self._leading
        for calls in self._calls.values():
            if isinstance(calls, Call):
                yield calls
            else:
                yield from calls

    def add(self, call: Call) -> None:
        self._count += 1
        record_id = call.record_id
        if call.tree == self._first:
            self._leading.append(call)
        elif self._leading and self._leading[0].record_id == record_id:
            self._count -= len(self._leading)
            self._lead(deque((call,)))
        elif record_id not in self._calls:
            self._calls[record_id] = call
        else:
            calls = self._of(record_id)
            if calls[0].tree != call.tree:  # a later attempt
                self._count -= len(calls)
                calls.clear()
                self._again.add(record_id)
            calls.append(call)
            self._calls[record_id] = calls

    def take(self) -> Call | None:
        """Remove and return the next call, if any."""
        if not self._leading and self._calls:
            record_id = next(iter(self._calls))
            if record_id not in self._again:
                self._count -= 1
                calls = self._of(record_id)
                call = calls.popleft()
                if not calls:
                    del self._calls[record_id]
                return call
            self._lead(self._remove(record_id))
        if not self._leading:
            return None
        self._count -= 1
        return self._leading.popleft()

    def lead(self, tree: int) -> None:
        """Start the calls of this tree before all others."""
        self._first = tree

    def fail(self, failed: Call) -> bool:
        """Drop the calls that failed along with a call; return whether its retry waits already.

        Then the retry leads: it was caused by a failure elsewhere.
        """
        if self._leading and self._leading[0].record_id != failed.record_id:
            leading = self._leading[0].record_id  # leads again after the one that failed
            self._calls[leading] = self._leading
            self._calls.move_to_end(leading, last=False)
            self._again.add(leading)
            self._leading = deque()
        calls = self._leading or self._remove(failed.record_id)
        if calls and calls[0].tree != failed.tree:
            self._lead(calls)
            return True
        self._count -= len(calls)
        self._leading = deque()
        self._first = None
        return False

    def drop(self, is_gone: Callable[[Call], bool]) -> list[Call]:
        """Drop and return calls; of a record all or none."""
        dropped = [call for call in self if is_gone(call)]
        if self._leading and is_gone(self._leading[0]):
            self._leading = deque()
        for record_id in {call.record_id for call in dropped}:
            self._remove(record_id)
        self._count -= len(dropped)
        return dropped

    def _lead(self, calls: deque[Call]) -> None:
        self._leading = calls
        self._first = calls[0].tree

    def _of(self, record_id: int) -> deque[Call]:
        calls = self._calls.get(record_id)
        if calls is None:
            return deque()
        return deque((calls,)) if isinstance(calls, Call) else calls

    def _remove(self, record_id: int) -> deque[Call]:
        calls = self._of(record_id)
        self._calls.pop(record_id, None)
        self._again.discard(record_id)
        return calls


class _Key:
    """A key with more than one call, or with a hold."""

    __slots__ = ("holder", "waiting")

    def __init__(self) -> None:
        self.waiting = WaitingCalls()  # behind the call that may run, or behind the hold
        self.holder: Call | None = None  # the failed call whose record must come again first


class KeyQueue(CallQueue):
    """One call at a time per key, in the order of arrival; keys do not wait for each other.

    A call that fails and is retried holds its key until its record comes again, which then goes
    first, or until the record is released. Waiting calls of the failed tree are dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        # Each key with a call that is ready or runs, or with a hold. Most have nothing else.
        self._keys: dict[Hashable, _Key | None] = {}
        self._behind = 0  # calls that wait for their keys

    @property
    def num_waiting(self) -> int:
        return super().num_waiting + self._behind

    def waiting(self) -> list[int]:
        return super().waiting() + [call.tree for key in self._states() for call in key.waiting]

    def add(self, calls: Iterable[Call]) -> None:
        keys = self._keys
        for call in calls:
            if call.key not in keys:
                keys[call.key] = None
                self._make_ready(call)
            else:
                self._add_behind(call)

    def _add_behind(self, call: Call) -> None:
        key = self._keys[call.key]
        if key is None:
            key = self._keys[call.key] = _Key()
        holder = key.holder
        if holder is None or holder.record_id != call.record_id:
            before = len(key.waiting)
            key.waiting.add(call)
            self._behind += len(key.waiting) - before
        elif holder.tree != call.tree:  # else it is late: the record comes under another tree
            self._free(call.key, key)
            key.waiting.lead(call.tree)
            self._make_ready(call)

    def end(self, call: Call) -> None:
        key = self._keys[call.key]
        if call.error is not None and call.comes_again:
            if key is None:
                key = self._keys[call.key] = _Key()
            before = len(key.waiting)
            waits_again = key.waiting.fail(call)
            self._behind += len(key.waiting) - before
            if not waits_again:
                key.holder = call
                self.held.setdefault(call.record_id, set()).add(call.key)
                return
        self._start_next(call.key, key)

    def release(self, record_ids: Iterable[int]) -> None:
        for record_id in record_ids:
            for key in tuple(self.held.get(record_id, ())):
                self._release_key(key)

    def drop(self, is_gone: Callable[[Call], bool]) -> list[Call]:
        dropped = [call for key in self._states() for call in key.waiting.drop(is_gone)]
        self._behind -= len(dropped)
        for name in [name for names in self.held.values() for name in names]:
            key = self._keys[name]
            holder = None if key is None else key.holder
            if holder is not None and is_gone(holder):
                self._release_key(name)
        gone = super().drop(is_gone)
        for call in gone:
            self._start_next(call.key, self._keys[call.key])
        return gone + dropped

    def blocked(self) -> list[WaitingCalls]:
        names = [name for names in self.held.values() for name in names]
        return [key.waiting for name in names if (key := self._keys[name]) is not None]

    def _states(self) -> list[_Key]:
        return [key for key in self._keys.values() if key is not None]

    def _release_key(self, name: Hashable) -> None:
        key = self._keys[name]
        if key is not None:
            self._free(name, key)
            self._start_next(name, key)

    def _free(self, name: Hashable, key: _Key) -> None:
        if key.holder is None:
            return
        names = self.held[key.holder.record_id]
        names.remove(name)
        if not names:
            del self.held[key.holder.record_id]
        key.holder = None

    def _start_next(self, name: Hashable, key: _Key | None) -> None:
        call = None if key is None else key.waiting.take()
        if call is None:
            del self._keys[name]
            return
        self._behind -= 1
        self._make_ready(call)
