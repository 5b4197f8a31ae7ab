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
        owner = call.owner
        if call.tree == self._first:
            self._ahead.append(call)
        elif self._ahead and self._ahead[0].owner == owner:
            self._count -= len(self._ahead)
            self._lead(deque((call,)))
        elif owner not in self._calls:
            self._calls[owner] = call
            self._places.append(owner)
        else:
            self._add_to(owner, call)

    def _add_to(self, owner: int, call: Call) -> None:
        """Take in another call of a record, or the first of a later try."""
        calls = self._of(owner)
        if calls[0].tree != call.tree:
            self._count -= len(calls)
            self._again.setdefault(owner, len(calls))
            self._calls[owner] = call
            return
        calls.append(call)
        self._calls[owner] = calls
        if owner not in self._again:
            self._places.append(owner)

    def take(self) -> Call | None:
        """The next one, if there is any."""
        if self._ahead:
            self._count -= 1
            return self._ahead.popleft()
        while self._places:
            owner = self._places.popleft()
            if self._void and self._passes_over(owner):
                continue
            self._count -= 1
            if owner in self._again:
                self._again[owner] -= 1
                self._lead(self._remove(owner))
                return self._ahead.popleft()
            calls = self._calls[owner]
            if isinstance(calls, Call):
                del self._calls[owner]
                return calls
            call = calls.popleft()
            if not calls:
                del self._calls[owner]
            return call
        return None

    def lead(self, tree: int) -> None:
        """Let what comes of this tree go before all others."""
        self._first = tree

    def fail(self, failed: Call) -> bool:
        """Drop what failed along with a call; whether its record already waits again.

        Then that leads: it was retried because of what failed elsewhere.
        """
        if self._ahead and self._ahead[0].owner != failed.owner:
            self._step_back()
        calls = self._ahead or self._remove(failed.owner)
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
        for owner in {call.owner for call in dropped}:
            self._remove(owner)
        self._count -= len(dropped)
        return dropped

    def _lead(self, calls: deque[Call]) -> None:
        self._ahead = calls
        self._first = calls[0].tree

    def _step_back(self) -> None:
        """Let the record that leads go first again once the one that failed is through."""
        owner = self._ahead[0].owner
        self._calls[owner] = self._ahead
        self._again[owner] = 1
        self._places.appendleft(owner)
        self._ahead = deque()

    def _of(self, owner: int) -> deque[Call]:
        """The calls of a record, those that lead aside."""
        calls = self._calls.get(owner)
        if calls is None:
            return deque()
        return deque((calls,)) if isinstance(calls, Call) else calls

    def _remove(self, owner: int) -> deque[Call]:
        calls = self._of(owner)
        self._calls.pop(owner, None)
        left = self._again.pop(owner, len(calls))
        if left:
            self._void[owner] = self._void.get(owner, 0) + left
        return calls

    def _passes_over(self, owner: int) -> bool:
        left = self._void.pop(owner, 0)
        if left > 1:
            self._void[owner] = left - 1
        return left > 0
