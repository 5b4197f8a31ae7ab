"""The words that a record is counted by, which its place decides; for both sides of a test."""

import random
from collections import Counter
from collections.abc import Iterable

from tests.acceptance.evidence import Place
from tests.acceptance.wanted import is_rejected

_VOCABULARY = [f"word {number}" for number in range(60)]
_MOST = 6  # words of a record


def words_of(place: str) -> list[str]:
    """The words of the record of that place, as text; perhaps some twice, perhaps none."""
    rng = random.Random(place)
    return rng.choices(_VOCABULARY, k=rng.randrange(_MOST))


def counted(places: Iterable[Place]) -> Counter[str]:
    """How often each word comes in these records, but for those that are rejected."""
    counts: Counter[str] = Counter()
    for partition, offset in places:
        if not is_rejected(offset):
            counts.update(words_of(f"{partition}:{offset}"))
    return counts
