"""How a record is named: the index of its partition, and its offset, in one number."""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

# The place in the high bits, the offset below.
Owners: TypeAlias = npt.NDArray[np.int64]
OFFSET_BITS = 48
OFFSET_MASK = (1 << OFFSET_BITS) - 1
MAX_PLACE = (1 << 63 - OFFSET_BITS) - 1  # of no partition: what is no record has it


def owners_of(place: int, offsets: Owners) -> Owners:
    """Name the records of the partition at a place."""
    return offsets | place << OFFSET_BITS


def places_of(owners: Owners) -> Owners:
    """The number of each record's partition."""
    return owners >> OFFSET_BITS


def offsets_of(owners: Owners) -> Owners:
    """Each record's offset."""
    return owners & OFFSET_MASK


def place_of(owner: int) -> int:
    """The number of a record's partition."""
    return owner >> OFFSET_BITS


def offset_of(owner: int) -> int:
    """A record's offset."""
    return owner & OFFSET_MASK


def by_place(owners: Owners) -> Iterator[tuple[int, Owners]]:
    """The offsets of some records, ascending, by their partition's place."""
    if not len(owners):
        return
    places = owners >> OFFSET_BITS
    offsets = owners & OFFSET_MASK
    if places[0] == places[-1] and (places == places[0]).all():
        yield int(places[0]), _ascending(offsets)
        return
    for place in np.flatnonzero(np.bincount(places)).tolist():
        yield place, _ascending(offsets[places == place])


def _ascending(offsets: Owners) -> Owners:
    """The offsets in order: the ledger is fastest on neighbours."""
    in_order = len(offsets) < 2 or bool((offsets[1:] > offsets[:-1]).all())  # noqa: PLR2004
    return offsets if in_order else np.sort(offsets)
