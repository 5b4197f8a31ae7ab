"""What advanced bolts asked for during one run over a chunk, and what of it goes where."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from acker.acker import Edges, Trees
from topology.tuples import Tuple

NO_TREE = -1
Mark: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Emission:
    """Values for one stream, in the order in which they were emitted.

    `trees` has the tree of each value's anchor, and NO_TREE where it has several or none: then
    `several` has them, by the value's place. `tasks` has the tasks of values that name one.
    """

    stream: str
    values: list[Any]
    trees: Trees
    several: dict[int, tuple[int, ...]]
    tasks: dict[int, int]


@dataclass(slots=True)
class Actions:
    """Emits, acks, fails and resets.

    To be carried out so: what failed fails; then the values go on and their edges become known;
    then what is acked is acked. In between nothing can complete by mistake, as a tuple's own
    edge is outstanding until it is acked.
    """

    values: list[Any] = field(default_factory=list)
    trees: list[int] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    several: dict[int, tuple[int, ...]] = field(default_factory=dict)
    tasks: dict[int, int] = field(default_factory=dict)
    acked: list[Tuple[Any]] = field(default_factory=list)
    failed: list[tuple[Tuple[Any], Exception]] = field(default_factory=list)
    reset: list[Tuple[Any]] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)  # of calls that had no tuple

    def emissions(self) -> Iterator[Emission]:
        """The values emitted, stream by stream."""
        trees = np.array(self.trees, np.int64)
        names = list(dict.fromkeys(self.streams))
        if len(names) == 1:
            yield Emission(names[0], self.values, trees, self.several, self.tasks)
            return
        for name in names:
            places = [place for place, stream in enumerate(self.streams) if stream == name]
            yield Emission(
                name,
                [self.values[place] for place in places],
                trees[places],
                moved(self.several, places),
                moved(self.tasks, places),
            )

    def acks(self) -> tuple[Trees, Edges]:
        """Trees and edges of the tuples acked."""
        count = len(self.acked)
        return (
            np.fromiter((each.tree for each in self.acked), np.int64, count),
            np.fromiter((each.edge for each in self.acked), np.uint64, count),
        )

    def resets(self) -> Trees:
        """The trees whose time starts anew."""
        return np.fromiter((each.tree for each in self.reset), np.int64, len(self.reset))

    def mark(self) -> Mark:
        """How much is recorded by now."""
        return len(self.values), len(self.acked), len(self.failed), len(self.reset)

    def cut(self, mark: Mark) -> None:
        """Forget what was recorded since `mark`: the tuples settled since then are not."""
        values, acked, failed, reset = mark
        for tuple_ in self.acked[acked:]:
            tuple_.is_settled = False
        for tuple_, _error in self.failed[failed:]:
            tuple_.is_settled = False
        del self.values[values:], self.trees[values:], self.streams[values:]
        del self.acked[acked:], self.failed[failed:], self.reset[reset:]
        for place in [place for place in self.several if place >= values]:
            del self.several[place]
        for place in [place for place in self.tasks if place >= values]:
            del self.tasks[place]


def moved(kept: dict[int, Any], places: list[int]) -> dict[int, Any]:
    """What stands at some of the places, by where these places stand now."""
    if not kept:
        return {}
    return {now: kept[place] for now, place in enumerate(places) if place in kept}
