"""Turns: the calls that wait for one key, and which of them is next. Pure; not thread-safe."""

from collections import deque
from collections.abc import Callable, Iterator

from topology.running.call import Call


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
