"""Partitions as text: "0-3,7" for the numbers of a topic. Pure."""

import re
from collections.abc import Iterable, Mapping

from partition.records import Partition

MAX_NUMBER = 2**31 - 1  # Kafka's own limit
MAX_COUNT = 1_000_000  # of one topic: a corrupt text is refused before it fills the memory
_RANGE = re.compile(r"(0|[1-9][0-9]{0,9})(?:-([1-9][0-9]{0,9}))?")
_SHOWN = 60
_ALLOWED = f'ascending ranges as in "0-3,7", up to {MAX_NUMBER}, of at most {MAX_COUNT} numbers'


def encode_numbers(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, each number once, ascending; "" for none.

    Raises ValueError for what `decode_numbers` would refuse.
    """
    ascending = sorted(set(numbers))
    if len(ascending) > MAX_COUNT:
        raise ValueError(f"{len(ascending)} numbers; at most {MAX_COUNT} are allowed")
    for number in ascending[:1] + ascending[-1:]:
        if not 0 <= number <= MAX_NUMBER:
            raise ValueError(f"number {number}; 0 to {MAX_NUMBER} are allowed")
    ranges: list[list[int]] = []
    for number in ascending:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def decode_numbers(text: str) -> list[int]:
    """Return the numbers of ranges, ascending. Raises ValueError: not ascending, or no ranges."""
    numbers: list[int] = []
    for part in text.split(",") if text else ():
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ValueError(f"{_shown(part)} is no range; {_ALLOWED} are allowed")
        first, last = int(found[1]), int(found[2] or found[1])
        goes_on = not numbers or first > numbers[-1]
        if not goes_on or (found[2] is not None and last <= first) or last > MAX_NUMBER:
            raise ValueError(f"{_shown(part)} is out of place; {_ALLOWED} are allowed")
        if len(numbers) + last - first >= MAX_COUNT:
            raise ValueError(f"{_shown(part)} makes too many numbers; {_ALLOWED} are allowed")
        numbers.extend(range(first, last + 1))
    return numbers


def by_topic(partitions: Iterable[Partition]) -> dict[str, str]:
    """Return the numbers of each topic as ranges, topics in order. ValueError as above."""
    numbers: dict[str, list[int]] = {}
    for partition in partitions:
        numbers.setdefault(partition.topic, []).append(partition.number)
    return {topic: encode_numbers(numbers[topic]) for topic in sorted(numbers)}


def from_topics(mapping: Mapping[str, str]) -> frozenset[Partition]:
    """Return the partitions that `by_topic` wrote. Raises ValueError, which names the topic."""
    partitions: set[Partition] = set()
    for topic, text in mapping.items():
        try:
            partitions.update(Partition(topic, number) for number in decode_numbers(text))
        except ValueError as error:
            raise ValueError(f"topic {topic}: {error}") from error
    return frozenset(partitions)


def _shown(part: str) -> str:
    """Return the beginning of a text for an error message."""
    return repr(part[:_SHOWN]) + ("..." if len(part) > _SHOWN else "")
