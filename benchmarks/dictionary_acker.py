"""The acker that one would write first: a dictionary from root id to an entry.

What suite `acker` holds the single calls against. Root ids are the caller's: making random
ones is not counted against it. It has no time-outs, no flags and no stale handles to find.
"""

Entry = list[int]


class DictionaryAcker:
    """root -> [value, owner, has init come, has it failed]; late messages are ignored."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.failed: list[int] = []
        self.ignored = 0
        self._trees: dict[int, Entry] = {}

    def begin(self, root: int, owner: int) -> None:
        """Open a tree."""
        self._trees[root] = [0, owner, False, False]

    def init(self, root: int, edge: int) -> None:
        """XOR the first edges in; from now on the tree may resolve."""
        entry = self._trees.get(root)
        if entry is None:
            self.ignored += 1
            return
        entry[0] ^= edge
        entry[2] = True
        if entry[3]:
            self.failed.append(entry[1])
            del self._trees[root]
        elif not entry[0]:
            self.acked.append(entry[1])
            del self._trees[root]

    def ack(self, root: int, edge: int) -> None:
        """XOR an edge out; at 0 the tree is complete."""
        entry = self._trees.get(root)
        if entry is None:
            self.ignored += 1
            return
        entry[0] ^= edge
        if entry[2] and not entry[0] and not entry[3]:
            self.acked.append(entry[1])
            del self._trees[root]

    def fail(self, root: int) -> None:
        """Fail a tree for good."""
        entry = self._trees.get(root)
        if entry is None:
            self.ignored += 1
            return
        entry[3] = True
        if entry[2]:
            self.failed.append(entry[1])
            del self._trees[root]
