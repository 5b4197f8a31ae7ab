from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.errors import KindChanged, SinkAhead, SinkStateLost
from partition.interfaces import StoredOffset
from partition.records import OpenTransaction, Partition, Position, Range, Transactions
from transactions.transaction import RangeDigest, resumed

ONE = Partition("orders", 3)
KINDS = st.sampled_from(["transactional", "opaque"])


def stored(num_open, *, committed=41, kind="transactional", offset=900):
    """Transactions of ten records each, the first from `offset`, led by epochs 5, 6, …."""
    ranges = [
        Range(offset + 10 * i, offset + 10 * (i + 1), 10, "ab" * 16, 5 + i) for i in range(num_open)
    ]
    each = tuple(
        OpenTransaction(committed + 1 + i, 1 + i, range_) for i, range_ in enumerate(ranges)
    )
    return StoredOffset(
        Position(offset, 4, "id"),
        "topology",
        epoch=2,
        transactions=Transactions(kind, committed, each),
    )


def go_on(found, committed, kind="transactional"):
    return resumed(ONE, found, committed, kind)


def test_transactions_in_every_sink_are_done():
    found = go_on(stored(3), {"a": 43, "b": 43})
    assert found.position == Position(920, 6, "id")
    assert found.transactions == Transactions("transactional", 43, stored(3).transactions.open[2:])
    assert not found.skips
    assert not found.attempts


def test_opaque_transactions_in_no_sink_are_planned_anew():
    found = go_on(stored(3, kind="opaque"), {"a": 42, "b": 41}, "opaque")
    assert [each.txid for each in found.transactions.open] == [42]
    assert found.transactions.committed == 41
    assert found.attempts == {43: 2, 44: 3}
    assert found.skips == {"a": 42}


def test_unknown_leader_epoch_keeps_the_one_before():
    without = Transactions("opaque", 0, (OpenTransaction(1, 1, Range(0, 5, 5, "ab" * 16)),))
    found = StoredOffset(Position(0, 7, "id"), "topology", transactions=without)
    assert go_on(found, {"a": 1}, "opaque").position == Position(5, 7, "id")


@pytest.mark.parametrize("found", [stored(0), stored(2)])
def test_sink_ahead_of_the_store_halts_the_partition(found):
    last = 41 + len(found.transactions.open)
    with pytest.raises(
        SinkAhead, match=rf"orders\[3\]: sink 'b' has transaction {last + 1}.*{last}"
    ):
        go_on(found, {"a": last, "b": last + 1})


def test_sink_with_transactions_without_a_store_halts_it():
    bare = StoredOffset(Position(900), "topology")
    with pytest.raises(SinkAhead):
        go_on(bare, {"a": 1})
    fresh = go_on(bare, {"a": 0})
    assert (fresh.position, fresh.transactions) == (Position(900), Transactions("transactional"))


def test_sink_behind_the_store_halts_the_partition():
    with pytest.raises(SinkStateLost, match="'a' has transactions up to 40, but 41"):
        go_on(stored(2), {"a": 40, "b": 42})


def test_kind_may_change_when_nothing_is_open():
    with pytest.raises(KindChanged, match="are transactional, the topology is opaque"):
        go_on(stored(2), {"a": 42}, "opaque")
    changed = go_on(stored(2), {"a": 43}, "opaque")
    assert changed.transactions == Transactions("opaque", 43)
    assert changed.position.offset == 920
    assert go_on(stored(0), {"a": 41}, "opaque").transactions == Transactions("opaque", 41)


@given(KINDS, st.integers(0, 4), st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_every_offset_is_done_replayed_or_planned_once(kind, num_open, further):
    """Promise 14: and each sink's txids go on where they stopped.

    Storm 45: after a crash the sink's own txid says what it has, so nothing is committed twice.
    """
    found = stored(num_open, kind=kind)
    committed = {f"s{i}": 41 + min(each, num_open) for i, each in enumerate(further)}
    again = go_on(found, committed, kind)
    again.transactions.checked(again.position.offset)
    done = [each for each in found.transactions.open if each.txid <= again.transactions.committed]
    assert again.position.offset == 900 + 10 * len(done)
    after = {each.txid for each in found.transactions.open} - {each.txid for each in done}
    replayed = {each.txid for each in again.transactions.open}
    assert after == replayed | set(again.attempts)
    assert not replayed & set(again.attempts)
    for each in done:
        assert all(txid >= each.txid for txid in committed.values())
    for txid in again.attempts:
        assert kind == "opaque"
        assert all(has < txid for has in committed.values())
    for sink, txid in committed.items():  # what it has is not given to it again
        assert again.skips.get(sink, again.transactions.committed) == txid


def planned(num_sealed, num_open, kind="transactional"):
    """As `stored`, but only the first are sealed."""
    found = stored(num_open, kind=kind)
    opened = tuple(
        each if i < num_sealed else replace(each, range=Range(each.range.first, each.range.end))
        for i, each in enumerate(found.transactions.open)
    )
    return replace(found, transactions=replace(found.transactions, open=opened))


def test_planned_range_is_replayed_as_planned():
    found = go_on(planned(1, 3), {"a": 42, "b": 41})
    assert found.transactions == planned(1, 3).transactions
    done = go_on(planned(1, 3), {"a": 42, "b": 42})
    assert done.transactions.open == planned(1, 3).transactions.open[1:]
    assert done.position == Position(910, 5, "id")


@pytest.mark.parametrize("num_sealed", [0, 1])
@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_sink_with_a_planned_range_is_ahead_of_the_store(num_sealed, kind):
    """The seal is stored before the commit, so the store was put back."""
    with pytest.raises(SinkAhead) as caught:
        go_on(planned(num_sealed, 2, kind=kind), {"a": 42 + num_sealed, "b": 41}, kind)
    assert caught.value.recorded == 41 + num_sealed


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
