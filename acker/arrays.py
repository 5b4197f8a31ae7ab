"""The arrays that travel to and from the acker, and what stands in a tree's handle.

A handle is a non-negative 64-bit integer: the slot in the low 32 bits, the slot's
generation in the 8 above, and the low 23 bits of the owner in the 23 above those. Slots
keep the owner turned by 23 bits, so that both sets of check bits lie in one place and one
XOR compares them.
"""

import numpy as np
import numpy.typing as npt

Trees = npt.NDArray[np.int64]  # handles
Edges = npt.NDArray[np.uint64]
Owners = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]
Slots = npt.NDArray[np.int64]
Tags = npt.NDArray[np.uint16]

SLOT_BITS = 32
SLOT = (1 << SLOT_BITS) - 1
GENERATION = 0xFF
CHECK_SHIFT = 40
CHECK_BITS = 23
_CHECK = (1 << CHECK_BITS) - 1
_REST = (1 << CHECK_SHIFT) - 1
CHECKED = _CHECK << CHECK_SHIFT  # the bits of a handle, and of a turned owner, that are checked


def turned(owners: Owners) -> Owners:
    """Owners with their low 23 bits above the other 40."""
    high: Owners = owners & _CHECK
    high <<= CHECK_SHIFT
    high |= owners >> CHECK_BITS
    return high


def turned_back(owners: Owners) -> Owners:
    """The owners of which `turned` made these."""
    high: Owners = owners & _REST
    high <<= CHECK_BITS
    high |= owners >> CHECK_SHIFT
    return high


def turned_one(owner: int) -> int:
    """One owner with its low 23 bits above the other 40."""
    return (owner & _CHECK) << CHECK_SHIFT | owner >> CHECK_BITS


def turned_back_one(owner: int) -> int:
    """The owner of which `turned_one` made this."""
    return (owner & _REST) << CHECK_BITS | owner >> CHECK_SHIFT
