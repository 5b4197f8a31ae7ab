"""What must come of the records of `crashing.py`: the rows of its two tables, and its letters."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from tests.acceptance.evidence import Place

Row: TypeAlias = tuple[str, int]  # its record's place as text, and which copy it is

ROWS, OTHERS = "rows", "others"
COPIES = {ROWS: 2, OTHERS: 1}  # rows that the tables have of a record
_SLOTS = 150  # of a partition, where a table has keys


def is_rejected(offset: int) -> bool:
    return offset % 97 == 5


def is_unfit(offset: int) -> bool:
    """Whether the record's last copy does not fit the table `rows`: its letter tells so."""
    return offset % 89 == 3


def fails_once(offset: int) -> bool:
    """Whether each process fails at the record once, when some of its rows are made."""
    return offset % 50 == 7


def is_gone(offset: int) -> bool:
    return offset % 11 == 4


def slot_of(place: str) -> str:
    """The record's key, where a table has keys: most are those of many records.

    One that fails once comes after records that follow it, so it has its key for itself.
    """
    partition, _, offset = place.partition(":")
    number = int(offset)
    return f"{partition}-at-{offset}" if fails_once(number) else f"{partition}-{number % _SLOTS}"


def rows(table: str, places: Iterable[Place]) -> Iterator[Row]:
    """The rows of a table, in the order of the records. A row that does not fit is out, alone."""
    for partition, offset in places:
        if is_rejected(offset):
            continue
        copies = COPIES[table] - (table == ROWS and is_unfit(offset))
        for copy in range(copies):
            yield f"{partition}:{offset}", copy


def letters(places: Iterable[Place]) -> set[Place]:
    """The records that have a letter, or more: those may repeat."""
    return {place for place in places if is_rejected(place[1]) or is_unfit(place[1])}
