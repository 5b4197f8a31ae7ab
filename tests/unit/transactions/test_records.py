from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transactions.transaction import RangeDigest

RECORDS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2**40)), max_size=20).map(
    lambda steps: [
        (sum(gap for gap, _length in steps[: i + 1]), length) for i, (_, length) in enumerate(steps)
    ]
)


def digest(*chunks):
    found = RangeDigest()
    for chunk in chunks:
        pairs = np.array(chunk, dtype=np.int64).reshape(-1, 2)
        found.add(pairs[:, 0], pairs[:, 1])
    return found


@given(RECORDS, st.lists(st.integers(0, 20), max_size=4))
def test_digest_ignores_chunk_boundaries(records, cuts):
    edges = [0, *sorted(cuts), len(records)]
    chunks = [records[a:b] for a, b in pairwise(edges)]
    whole, cut = digest(records), digest(*chunks)
    assert (whole.count, whole.hex()) == (cut.count, cut.hex()) == (len(records), whole.hex())


@given(RECORDS.filter(len), st.data())
def test_digest_finds_other_records(records, data):
    at = data.draw(st.integers(0, len(records) - 1))
    offset, length = records[at]
    others = [
        [*records[:at], *records[at + 1 :]],
        [*records, (records[-1][0] + 1, 0)],
        [*records[:at], (offset, length + 1), *records[at + 1 :]],
        [*records[:at], *((moved + 1, size) for moved, size in records[at:])],
    ]
    assert all(digest(other).hex() != digest(records).hex() for other in others)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], "cae66941d9efbd404e4d88758ea67670"),
        ([(7, 100), (9, 0)], "25d734bdaeaca92392c100d56d47c9a0"),
    ],
)
def test_digest_is_stable(records, expected):
    assert digest(records).hex() == expected
