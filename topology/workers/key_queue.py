"""Queues of calls: which calls of a bolt may start, and in which order. Pure; not thread-safe."""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from itertools import chain

from topology.workers.call import Call


class Turns:
    """Calls that wait, in the order in which they start.

    That is the order of their arrival, but the values of the record that `leads` go before all
    others. A record that comes again while it waits keeps its place: all its values start there,
    and what waits of its earlier try is dropped. At most one try of a record is alive.
    """

    __slots__ = ("_again", "_ahead", "_calls", "_count", "_first", "_places", "_void")

    def __init__(self) -> None:
        self._first: int | None = None  # the tree of the record that leads
        self._ahead: deque[Call] = deque()  # its calls
        # All others: by owner, in order, and a place for each. If a record came again, the first
        # place is for all of it, and the others are void.
        self._calls: dict[int, Call | deque[Call]] = {}
        self._places: deque[int] = deque()
        self._again: dict[int, int] = {}  # how many places it has, by owner
        self._void: dict[int, int] = {}  # how many of its places are passed over, by owner
        self._count = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    def __iter__(self) -> Iterator[Call]:
        """All of them, in any order."""
        yield from self._ahead
        for calls in self._calls.values():
            if isinstance(calls, Call):
                yield calls
            else:
                yield from calls

    def add(self, call: Call) -> None:
        """Take a call in."""
        self._count += 1
        record_id = call.record_id
        if call.tree == self._first:
            self._ahead.append(call)
        elif self._ahead and self._ahead[0].record_id == record_id:
            self._count -= len(self._ahead)
            self._lead(deque((call,)))
        elif record_id not in self._calls:
            self._calls[record_id] = call
            self._places.append(record_id)
        else:
            self._add_to(record_id, call)

    def _add_to(self, record_id: int, call: Call) -> None:
        """Take in another call of a record, or the first of a later try."""
        calls = self._of(record_id)
        if calls[0].tree != call.tree:
            self._count -= len(calls)
            self._again.setdefault(record_id, len(calls))
            self._calls[record_id] = call
            return
        calls.append(call)
        self._calls[record_id] = calls
        if record_id not in self._again:
            self._places.append(record_id)

    def take(self) -> Call | None:
        """The next one, if there is any."""
        if self._ahead:
            self._count -= 1
            return self._ahead.popleft()
        while self._places:
            record_id = self._places.popleft()
            if self._void and self._passes_over(record_id):
                continue
            self._count -= 1
            if record_id in self._again:
                self._again[record_id] -= 1
                self._lead(self._remove(record_id))
                return self._ahead.popleft()
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
        """Let what comes of this tree go before all others."""
        self._first = tree

    def fail(self, failed: Call) -> bool:
        """Drop what failed along with a call; whether its record already waits again.

        Then that leads: it was retried because of what failed elsewhere.
        """
        if self._ahead and self._ahead[0].record_id != failed.record_id:
            self._step_back()
        calls = self._ahead or self._remove(failed.record_id)
        if calls and calls[0].tree != failed.tree:
            self._lead(calls)
            return True
        self._count -= len(calls)
        self._ahead = deque()
        self._first = None
        return False

    def drop(self, is_gone: Callable[[Call], bool]) -> list[Call]:
        """Drop the calls that are gone, as all of their records' are; returns them."""
        dropped = [call for call in self if is_gone(call)]
        if self._ahead and is_gone(self._ahead[0]):
            self._ahead = deque()
        for record_id in {call.record_id for call in dropped}:
            self._remove(record_id)
        self._count -= len(dropped)
        return dropped

    def _lead(self, calls: deque[Call]) -> None:
        self._ahead = calls
        self._first = calls[0].tree

    def _step_back(self) -> None:
        """Let the record that leads go first again once the one that failed is through."""
        record_id = self._ahead[0].record_id
        self._calls[record_id] = self._ahead
        self._again[record_id] = 1
        self._places.appendleft(record_id)
        self._ahead = deque()

    def _of(self, record_id: int) -> deque[Call]:
        """The calls of a record, those that lead aside."""
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

    def _passes_over(self, record_id: int) -> bool:
        left = self._void.pop(record_id, 0)
        if left > 1:
            self._void[record_id] = left - 1
        return left > 0


class Lane:
    """Any order: a call may start at once."""

    def __init__(self) -> None:
        self.ready: deque[Call] = deque()  # may start now
        self._suspended: dict[int, list[Call]] = {}  # by partition: what else might start

    @property
    def num_waiting(self) -> int:
        """How many calls have not started. Any thread."""
        suspended = list(self._suspended.values())  # empty, but for moments
        return len(self.ready) + sum(map(len, suspended))

    @property
    def is_suspended(self) -> bool:
        """Whether calls of some partition may not start."""
        return bool(self._suspended)

    @property
    def held(self) -> int:
        """Records whose keys wait for them to come again. Any thread."""
        return 0

    def holders(self) -> list[int]:
        """Those records. Any thread."""
        return []

    def add(self, calls: Iterable[Call]) -> None:
        """Take calls in, in the order of their arrival."""
        if self._suspended:
            for call in calls:
                self._make_ready(call)
        else:
            self.ready.extend(calls)

    def _make_ready(self, call: Call) -> None:
        """Let a call start, if those of its partition may."""
        self._suspended.get(call.partition, self.ready).append(call)

    def take(self) -> Call | None:
        """The next call to start, if there is one."""
        try:  # without an order another thread may suspend a partition meanwhile
            return self.ready.popleft()
        except IndexError:
            return None

    def suspend(self, partition: int) -> None:
        """Start no call of a partition until `resume`."""
        if partition in self._suspended:
            return
        self._suspended[partition] = []
        for call in self._taken_out():
            self._make_ready(call)

    def resume(self, partition: int) -> None:
        """Let the calls of a partition start again."""
        self.ready.extend(self._suspended.pop(partition, ()))

    def _taken_out(self) -> list[Call]:
        """What was ready: it is no more."""
        found = []
        while self.ready:
            with suppress(IndexError):  # the thread that takes may be faster
                found.append(self.ready.popleft())
        return found

    def end(self, call: Call) -> None:
        """Note that a call has ended; its `error` is set if it failed."""

    def release(self, record_ids: Iterable[int]) -> None:
        """Free the keys that these records hold, because they will not come again."""

    def drop(self, is_gone: Callable[[Call], bool]) -> list[Call]:
        """Drop the calls that are gone and have not started, and free the keys such ones hold.

        Returns the calls dropped.
        """
        ready = self._taken_out()
        self.ready.extend(call for call in ready if not is_gone(call))
        dropped = [call for call in ready if is_gone(call)]
        for partition, calls in self._suspended.items():
            dropped += [call for call in calls if is_gone(call)]
            self._suspended[partition] = [call for call in calls if not is_gone(call)]
        return dropped

    def holds(self, partition: int) -> bool:
        """Whether anything here names a record of a partition by its owner."""
        del partition
        return False  # without an order nothing does, but calls, which name their trees, too

    def waiting(self) -> list[int]:
        """The trees of the calls that have not started."""
        suspended = chain.from_iterable(self._suspended.values())
        return [call.tree for call in [*self.ready, *suspended]]

    def blocked(self) -> list[int]:
        """The trees of those that cannot start before a record comes again."""
        return []

    @property
    def num_blocked(self) -> int:
        """How many calls those are."""
        return 0


class _Key:
    """A key with more to it than one call that may run."""

    __slots__ = ("holder", "turns")

    def __init__(self) -> None:
        self.turns = Turns()  # behind the call that may run, or behind the hold
        self.holder: Call | None = None  # the failed call whose record must come again first


class OrderedLane(Lane):
    """One call at a time per key, in the order of arrival; keys do not wait for each other.

    A call that fails and will be retried holds its key: nothing of the key starts until its
    record comes again, which then goes first, or is released because it never will. What waits
    behind it and belongs to the same tree is dropped, since the tree has failed. `Turns` says
    who is next.
    """

    def __init__(self) -> None:
        super().__init__()
        # Each key with a call that is ready or runs, or that is held. Most have nothing else.
        self._keys: dict[Hashable, _Key | None] = {}
        self._held: dict[int, set[Hashable]] = {}  # by the owner that holds them
        self._running: Counter[int] = Counter()  # calls, by partition
        self._behind = 0  # calls in all the queues of the keys

    @property
    def num_waiting(self) -> int:
        """How many calls have not started. Any thread."""
        return super().num_waiting + self._behind

    @property
    def held(self) -> int:
        """Records whose keys wait for them to come again. Any thread."""
        return len(self._held)

    def holders(self) -> list[int]:
        """Those records. Any thread."""
        return list(self._held)

    def add(self, calls: Iterable[Call]) -> None:
        """Take calls in, in the order of their arrival."""
        keys = self._keys
        for call in calls:
            if call.key not in keys:
                keys[call.key] = None
                self._make_ready(call)
            else:
                self._add_behind(call)

    def _add_behind(self, call: Call) -> None:
        state = self._keys[call.key]
        if state is None:
            state = self._keys[call.key] = _Key()
        holder = state.holder
        if holder is None or holder.record_id != call.record_id:
            before = len(state.turns)
            state.turns.add(call)
            self._behind += len(state.turns) - before
        elif holder.tree != call.tree:  # else it is late: the record comes under another tree
            self._free(call.key, state)
            state.turns.lead(call.tree)
            self._make_ready(call)

    def take(self) -> Call | None:
        """The next call to start, if there is one."""
        call = super().take()
        if call is not None:
            self._running[call.partition] += 1
        return call

    def end(self, call: Call) -> None:
        """Note that a call has ended; its `error` is set if it failed."""
        self._running[call.partition] -= 1
        state = self._keys[call.key]
        if call.error is not None and call.comes_again:
            if state is None:
                state = self._keys[call.key] = _Key()
            before = len(state.turns)
            waits_again = state.turns.fail(call)
            self._behind += len(state.turns) - before
            if not waits_again:
                state.holder = call
                self._held.setdefault(call.record_id, set()).add(call.key)
                return
        self._next(call.key, state)

    def release(self, record_ids: Iterable[int]) -> None:
        """Free the keys that these records hold, because they will not come again."""
        for record_id in record_ids:
            for key in tuple(self._held.get(record_id, ())):
                self._release_key(key)

    def drop(self, is_gone: Callable[[Call], bool]) -> list[Call]:
        """Drop the calls that are gone and have not started, and free the keys such ones hold."""
        dropped: list[Call] = []
        for state in self._keys.values():
            if state is not None:
                dropped += state.turns.drop(is_gone)
        self._behind -= len(dropped)
        for key in [key for keys in self._held.values() for key in keys]:
            state = self._keys[key]
            holder = None if state is None else state.holder
            if holder is not None and is_gone(holder):
                self._release_key(key)
        gone = super().drop(is_gone)
        for call in gone:
            self._next(call.key, self._keys[call.key])
        return gone + dropped

    def holds(self, partition: int) -> bool:
        """Whether anything here names a record of a partition by its owner."""
        if self._running[partition] or any(c.partition == partition for c in self.ready):
            return True
        states = [state for state in self._keys.values() if state is not None]
        holders = [state.holder for state in states if state.holder is not None]
        return any(c.partition == partition for c in chain(holders, *(s.turns for s in states)))

    def waiting(self) -> list[int]:
        """The trees of the calls that have not started."""
        trees = super().waiting()
        for state in self._keys.values():
            if state is not None:
                trees += [call.tree for call in state.turns]
        return trees

    def blocked(self) -> list[int]:
        """The trees of those that cannot start before a record comes again."""
        return [call.tree for turns in self._held_turns() for call in turns]

    @property
    def num_blocked(self) -> int:
        """How many calls those are."""
        return sum(map(len, self._held_turns()))

    def _held_turns(self) -> list[Turns]:
        keys = [key for keys in self._held.values() for key in keys]
        return [state.turns for key in keys if (state := self._keys[key]) is not None]

    def _release_key(self, key: Hashable) -> None:
        state = self._keys[key]
        if state is not None:
            self._free(key, state)
            self._next(key, state)

    def _free(self, key: Hashable, state: _Key) -> None:
        if state.holder is None:
            return
        keys = self._held[state.holder.record_id]
        keys.remove(key)
        if not keys:
            del self._held[state.holder.record_id]
        state.holder = None

    def _next(self, key: Hashable, state: _Key | None) -> None:
        """Let the next call of a key start, or forget the key."""
        call = None if state is None else state.turns.take()
        if call is None:
            del self._keys[key]
            return
        self._behind -= 1
        self._make_ready(call)
