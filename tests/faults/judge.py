"""The oracle: which ids were issued, what must come of each, and what is there.

It derives rows and letters from the ids alone, and compares multisets. A replica that lost
partitions by force leaves a window: what was published and not committed then may be there twice,
at least once. Exactly once, no row may. Letters and a bolt's side effects may repeat in a window
under either guarantee.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tests.acceptance import feed
from tests.acceptance.feed import Ends, Part
from tests.acceptance.stored import Stored

Guarantee: TypeAlias = Literal["at least once", "exactly once"]
Place: TypeAlias = tuple[Part, int]
_SHOWN = 3


@dataclass(frozen=True)
class Outcome:
    """Lost and repeated rows and letters of one case, and any other broken promise.

    `unexplained_duplicates` lie outside the uncommitted window; exactly once, all of them do.
    """

    lost: int = 0
    duplicates: int = 0
    unexplained_duplicates: int = 0
    recovery_seconds: float | None = None
    said: tuple[str, ...] = ()
    figures: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.unexplained_duplicates or self.said)


GOOD = Outcome()


@dataclass(frozen=True)
class Break:
    """A replica lost partitions with records in flight: records between may be there twice."""

    stored: Mapping[Part, Stored]  # of those that it lost
    issued: Ends  # of all

    def may_repeat(self, part: Part, offset: int) -> bool:
        """Whether the record was published and not committed then."""
        return part in self.stored and self.stored[part].offset <= offset < self.issued[part]


@dataclass(frozen=True)
class Found:
    """What is there: rows as text, the records that have letters, the ids with a side effect."""

    rows: Counter[str]
    letters: Counter[Place]
    effects: Counter[str]


def judge(
    found: Found, ends: Ends, breaks: Sequence[Break], guarantee: Guarantee, wrong: Iterable[str]
) -> Outcome:
    """Count what is lost and what is repeated; `wrong` are steps back of what is stored."""
    said = list(wrong)
    rows, letters = Counter[str](), Counter[Place]()
    for part, end in ends.items():
        for offset in range(end):
            if feed.is_refused(offset):
                letters[part, offset] += 1
            else:
                rows[feed.row(part, offset)] += 1
    said += _named("rows are of no record", set(found.rows) - set(rows))
    said += _named(
        "letters are of records that were not refused", set(found.letters) - set(letters)
    )
    done = {row.split(" ")[0] for row in rows}
    unmade = done - set(found.effects)
    said += _named("side effects are missing", unmade)
    missing_rows, missing_letters = rows - found.rows, letters - found.letters
    said += _named("rows are lost", missing_rows)
    said += _named("letters are lost", missing_letters)
    windows = breaks if guarantee == "at least once" else []
    unexplained = [
        *_unexplained(
            {feed.place(row): n for row, n in found.rows.items() if row in rows}, windows
        ),
        *_unexplained(found.letters, breaks),
    ]
    said += _named("rows or letters are repeated and need not be", [p for p, _ in unexplained])
    repeated = [*found.rows.values(), *found.letters.values()]
    return Outcome(
        lost=missing_rows.total() + missing_letters.total(),
        duplicates=sum(repeated) - len(repeated),
        unexplained_duplicates=sum(count for _, count in unexplained),
        said=tuple(said),
    )


def _unexplained(counts: Mapping[Place, int], breaks: Sequence[Break]) -> list[tuple[Place, int]]:
    """The places that are there more often than once and once more for each window."""
    found = []
    for (part, offset), count in counts.items():
        if count > 1:
            allowed = 1 + sum(each.may_repeat(part, offset) for each in breaks)
            if count > allowed:
                found.append(((part, offset), count - allowed))
    return found


def _named(what: str, which: Iterable[object]) -> list[str]:
    some = sorted(map(str, which))
    if not some:
        return []
    return [f"{len(some)} {what}, such as {', '.join(some[:_SHOWN])}"]
