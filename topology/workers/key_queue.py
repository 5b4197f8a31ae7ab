"""Queues of calls: which calls of a bolt may start, and in which order. Pure; not thread-safe."""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from itertools import chain

from topology.workers.call import Call


class CallQueue:
    """Calls in any order: each may start at once."""

    def __init__(self) -> None:
        self.ready: deque[Call] = deque()  # may start now
        self.suspended: dict[int, list[Call]] = {}  # by partition: what else might start
        self.held: dict[int, set[Hashable]] = {}
        """The keys that wait for a record to come again, by its id. Any thread may read it."""

    @property
    def num_waiting(self) -> int:
        """Number of calls that have not started. Any thread."""
        suspended = list(self.suspended.values())  # empty, but for moments
        return len(self.ready) + sum(map(len, suspended))

    def waiting(self) -> list[int]:
        """Trees of the calls that have not started."""
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
        """Let a call start, if those of its partition may."""
        self.suspended.get(call.partition, self.ready).append(call)

    def take(self) -> Call | None:
        """Remove and return the next call to start, or None."""
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
        """Free the keys that these records hold, because they will not come again."""

    def drop(self, is_gone: Callable[[Call], bool]) -> list[Call]:
        """Drop the calls that are gone and have not started, and free the keys such ones hold.

        Return the dropped calls.
        """
        ready = self._take_ready()
        self.ready.extend(call for call in ready if not is_gone(call))
        dropped = [call for call in ready if is_gone(call)]
        for partition, calls in self.suspended.items():
            dropped += [call for call in calls if is_gone(call)]
            self.suspended[partition] = [call for call in calls if not is_gone(call)]
        return dropped

    def holds(self, partition: int) -> bool:
        """Whether a key is held, or may come to be, by a record of a partition."""
        del partition
        return False  # without an order nothing does, but calls, which name their trees, too

    def blocked(self) -> "list[WaitingCalls]":
        """The calls that cannot start before a record comes again, by key."""
        return []


class WaitingCalls:
    """The calls that wait for one key, in the order in which they start.

    That is the order of their arrival, but the values of the record that `lead` named go before
    all others. A record that comes again while it waits keeps its position: all its values start
    there, and what waits of its earlier attempt is dropped. At most one attempt of a record is
    alive.
    """

    __slots__ = ("_again", "_calls", "_count", "_first", "_leading", "_positions", "_void")

    def __init__(self) -> None:
        self._first: int | None = None  # the tree of the record that leads
        self._leading: deque[Call] = deque()  # its calls
        # All others: by record, in order, and a position for each. If a record came again, the
        # first position is for all of it, and the others are void.
        self._calls: dict[int, Call | deque[Call]] = {}
        self._positions: deque[int] = deque()
        self._again: dict[int, int] = {}  # number of positions left, by record
        self._void: dict[int, int] = {}  # number of positions to skip, by record
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Call]:
        """Iterate over the calls, in any order."""
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
            self._positions.append(record_id)
        else:
            self._add_to(record_id, call)

    def _add_to(self, record_id: int, call: Call) -> None:
        """Add another call of a record, or the first of a later attempt."""
        calls = self._of(record_id)
        if calls[0].tree != call.tree:
            self._count -= len(calls)
            self._again.setdefault(record_id, len(calls))
            self._calls[record_id] = call
            return
        calls.append(call)
        self._calls[record_id] = calls
        if record_id not in self._again:
            self._positions.append(record_id)

    def take(self) -> Call | None:
        """Remove and return the next call, or None."""
        if self._leading:
            self._count -= 1
            return self._leading.popleft()
        while self._positions:
            record_id = self._positions.popleft()
            if self._void and self._is_void(record_id):
                continue
            self._count -= 1
            if record_id in self._again:
                self._again[record_id] -= 1
                self._lead(self._remove(record_id))
                return self._leading.popleft()
            calls = self._calls[record_id]
            if isinstance(calls, Call):
                del self._calls[record_id]
                return calls
            call = calls.popleft()
            if not calls:
                del self._calls[record_id]
            return call
        return None

    def lead(self, tree: int) -> None:
        """Let the calls of this tree go before all others."""
        self._first = tree

    def fail(self, failed: Call) -> bool:
        """Drop what failed along with a call; return whether its record already waits again.

        Then that leads: it was retried because of what failed elsewhere.
        """
        if self._leading and self._leading[0].record_id != failed.record_id:
            self._step_back()
        calls = self._leading or self._remove(failed.record_id)
        if calls and calls[0].tree != failed.tree:
            self._lead(calls)
            return True
        self._count -= len(calls)
        self._leading = deque()
        self._first = None
        return False

    def drop(self, is_gone: Callable[[Call], bool]) -> list[Call]:
        """Drop the calls that are gone, as all of their records' are; return them."""
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

    def _step_back(self) -> None:
        """Let the record that leads go first again once the one that failed is done."""
        record_id = self._leading[0].record_id
        self._calls[record_id] = self._leading
        self._again[record_id] = 1
        self._positions.appendleft(record_id)
        self._leading = deque()

    def _of(self, record_id: int) -> deque[Call]:
        calls = self._calls.get(record_id)
        if calls is None:
            return deque()
        return deque((calls,)) if isinstance(calls, Call) else calls

    def _remove(self, record_id: int) -> deque[Call]:
        calls = self._of(record_id)
        self._calls.pop(record_id, None)
        left = self._again.pop(record_id, len(calls))
        if left:
            self._void[record_id] = self._void.get(record_id, 0) + left
        return calls

    def _is_void(self, record_id: int) -> bool:
        left = self._void.pop(record_id, 0)
        if left > 1:
            self._void[record_id] = left - 1
        return left > 0


class _Key:
    """A key with more than one call, or with a hold."""

    __slots__ = ("holder", "waiting")

    def __init__(self) -> None:
        self.waiting = WaitingCalls()  # behind the call that may run, or behind the hold
        self.holder: Call | None = None  # the failed call whose record must come again first


class KeyQueue(CallQueue):
    """One call at a time per key, in the order of arrival; keys do not wait for each other.

    A call that fails and will be retried holds its key: nothing of the key starts until its
    record comes again, which then goes first, or is released because it never will. What waits
    behind it and belongs to the same tree is dropped, since the tree has failed.
    """

    def __init__(self) -> None:
        super().__init__()
        # Each key with a call that is ready or runs, or that is held. Most have nothing else.
        self._keys: dict[Hashable, _Key | None] = {}
        self._running: Counter[int] = Counter()  # calls, by partition
        self._behind = 0  # calls that wait for their keys

    @property
    def num_waiting(self) -> int:
        """See CallQueue."""
        return super().num_waiting + self._behind

    def waiting(self) -> list[int]:
        """See CallQueue."""
        return super().waiting() + [call.tree for key in self._states() for call in key.waiting]

    def add(self, calls: Iterable[Call]) -> None:
        """See CallQueue."""
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

    def take(self) -> Call | None:
        """See CallQueue."""
        call = super().take()
        if call is not None:
            self._running[call.partition] += 1
        return call

    def end(self, call: Call) -> None:
        """See CallQueue."""
        self._running[call.partition] -= 1
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
        """See CallQueue."""
        for record_id in record_ids:
            for key in tuple(self.held.get(record_id, ())):
                self._release_key(key)

    def drop(self, is_gone: Callable[[Call], bool]) -> list[Call]:
        """See CallQueue."""
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

    def holds(self, partition: int) -> bool:
        """See CallQueue."""
        if self._running[partition] or any(c.partition == partition for c in self.ready):
            return True
        keys = self._states()
        holders = [key.holder for key in keys if key.holder is not None]
        return any(c.partition == partition for c in chain(holders, *(k.waiting for k in keys)))

    def blocked(self) -> list[WaitingCalls]:
        """See CallQueue."""
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
        """Let the next call of a key start, or forget the key."""
        call = None if key is None else key.waiting.take()
        if call is None:
            del self._keys[name]
            return
        self._behind -= 1
        self._make_ready(call)
