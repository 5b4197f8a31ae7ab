"""What must come of the records of `crashing.py`: the rows of its two tables, and its letters."""

from collections import Counter
from collections.abc import Iterable

from tests.acceptance.evidence import Place

COPIES = 2  # rows of a record in the table `rows`; there is one in `others`


def is_rejected(offset: int) -> bool:
    """Whether a bolt rejects the record: it has no row, but a letter."""
    return offset % 97 == 5


def is_unfit(offset: int) -> bool:
    """Whether the record's last copy does not fit its table: its letter tells so."""
    return offset % 89 == 3


def fails_once(offset: int) -> bool:
    """Whether each process fails at the record once, when some of its rows are made."""
    return offset % 50 == 7


def rows(places: Iterable[Place]) -> Counter[tuple[str, int]]:
    """The rows of the table `rows`."""
    return Counter(
        (f"{partition}:{offset}", copy)
        for partition, offset in places
        if not is_rejected(offset)
        for copy in range(COPIES - is_unfit(offset))
    )


def others(places: Iterable[Place]) -> Counter[str]:
    """The rows of the table `others`."""
    return Counter(
        f"{partition}:{offset}" for partition, offset in places if not is_rejected(offset)
    )


def letters(places: Iterable[Place]) -> set[Place]:
    """The records that have a letter, or more: those may repeat."""
    return {place for place in places if is_rejected(place[1]) or is_unfit(place[1])}
