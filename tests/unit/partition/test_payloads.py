"""The payloads of a partition: found by offset, and let go of."""

from typing import Any

import numpy as np
import pytest

from partition.chunk import Chunk, Partition
from partition.payloads import Payloads

PLACE = Partition("flights", 0)


class Looked(np.ndarray[Any, Any]):
    """Offsets that count how often one is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        Looked.looks += 1
        return super().__getitem__(place)


def kept(*chunks):
    payloads = Payloads()
    for offsets in chunks:
        numbers = np.array(offsets, np.int64).view(Looked)
        payloads.keep(Chunk(PLACE, numbers, [str(each) for each in offsets]), len(offsets), 0.0)
    return payloads


def test_a_message_is_found_in_few_looks_among_many_chunks():
    payloads = kept(*([first, first + 2] for first in range(0, 80_000, 4)))
    Looked.looks = 0
    for offset in (0, 2, 39_998, 79_996, 79_998):
        assert payloads.message(offset) == str(offset)
    assert Looked.looks <= 5 * 20  # log2 of 20,000 is 14.3


@pytest.mark.parametrize("frontier", range(14))
def test_every_message_from_the_frontiers_chunk_on_is_found_and_no_other(frontier):
    chunks = [[0, 1], [4], [6, 9], [12]]
    payloads = kept(*chunks)
    payloads.forget_below(frontier)
    there = {each for chunk in chunks if chunk[-1] >= frontier for each in chunk}
    for offset in range(-1, 14):
        if offset in there:
            assert payloads.message(offset) == str(offset)
        else:
            with pytest.raises(KeyError):
                payloads.message(offset)
