from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.records import OpenTransaction, Range, Transactions, epoch_runs

DIGEST = "00112233445566778899aabbccddeeff"


def one(txid, first, end, attempt=1):
    return OpenTransaction(txid, attempt, Range(first, end, end - first, DIGEST, 5))


def test_ranges_are_promised_once_the_lowest_is_sealed():
    """Before that nobody can have committed any of them, since they are committed in order."""
    planned = OpenTransaction(42, 1, Range(900, 1300))
    assert not Transactions("opaque", 41).is_promised
    assert not Transactions("opaque", 41, (planned, one(43, 1300, 1301))).is_promised
    later = replace(planned, txid=43, range=Range(1300, 1400))
    assert Transactions("opaque", 41, (one(42, 900, 1300), later)).is_promised


@pytest.mark.parametrize(
    ("covers", "says"),
    [
        (Range(900, 1300, -1, DIGEST), "-1 records in 400 offsets"),
        (Range(900, 1300, 401, DIGEST), "401 records in 400 offsets"),
        (Range(900, 1300, 400, ""), "digest '', not 32 hex digits"),
        (Range(900, 1300, 400, DIGEST[1:]), "not 32 hex digits"),
        (Range(900, 1300, 400, DIGEST + "0"), "not 32 hex digits"),
        (Range(900, 1300, 400, DIGEST.upper()), "not 32 hex digits"),
        (Range(900, 1300, 400, DIGEST[:-1] + "\n"), "not 32 hex digits"),
        (Range(900, 1300, 400, DIGEST, -1), "leader epoch -1"),
        (Range(900, 1300, 400), "only one of its count and digest"),
        (Range(900, 1300, None, DIGEST), "only one"),
        (Range(900, 1300, None, None, -5), "leader epoch -5"),
    ],
)
def test_a_range_that_no_records_can_have_is_refused(covers, says):
    found = Transactions("opaque", 41, (OpenTransaction(42, 1, covers),))
    with pytest.raises(ValueError, match=says):
        found.checked(900)


@given(
    st.integers(0, 2**40),
    st.integers(0, 2**31),
    st.lists(st.tuples(st.integers(1, 2**20), st.integers(1, 9)), max_size=6),
)
def test_ranges_laid_end_to_end_pass_from_their_beginning_only(offset, committed, cut):
    """Promise 14: txids are contiguous, and so are the ranges, however many are open."""
    place, made = offset, []
    for txid, (length, attempt) in enumerate(cut, committed + 1):
        made.append(one(txid, place, place + length, attempt))
        place += length
    found = Transactions("opaque", committed, tuple(made))
    assert found.checked(offset) is found
    if made:
        assert found.first == offset
        with pytest.raises(ValueError, match="it was to begin at"):
            found.checked(offset + 1)


def runs(epochs):
    offsets = np.arange(100, 100 + 2 * len(epochs), 2)
    return epoch_runs(list(enumerate(epochs)), offsets, lambda message: message[1])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50).map(sorted))
def test_each_run_begins_where_the_epoch_changes(epochs):
    expected = [
        (100 + 2 * at, epoch)
        for at, epoch in enumerate(epochs)
        if at == 0 or epochs[at - 1] != epoch
    ]
    assert runs(list(epochs)) == tuple(expected)
