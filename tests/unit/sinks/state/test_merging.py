"""Trident's rules, beside plain Python's sums."""

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.state.merging import Aggregation, LineRows, merge, row_indexes
from sinks.state.store import MemoryState
from topology.aggregates import combiner, count, least, most, reducer, total
from topology.errors import AggregateFailed
from topology.state import State

LINE = "words[0]"


def state_of(layout):
    return State("words", key={"word": str}, into=MemoryState(), layout=layout)


AGGREGATES = {
    "n": count(),
    "x": total("x"),
    "low": least("x"),
    "high": most("x"),
    "all": combiner(0, lambda row: row["x"] or 0, lambda a, b: a ^ b, type=int),
    "last": reducer([], lambda a, row: [*a, row["x"]], type=list[int], merge=lambda a, b: a + b),
}


def plain(rows):
    """What plain Python makes of rows."""
    found = {}
    for word in {row["word"] for row in rows}:
        its = [row["x"] for row in rows if row["word"] == word]
        numbers = [x for x in its if x is not None]
        value = 0
        for x in numbers:
            value ^= x
        found[word] = {
            "n": len(its),
            "x": sum(numbers),
            "low": min(numbers, default=None),
            "high": max(numbers, default=None),
            "all": value,
            "last": Counter(its),
        }
    return found


def read(shape, stored):
    merged = shape.over_lines(stored).to_pylist()
    found = {row.pop("word"): row for row in merged}
    for row in found.values():
        row["last"] = Counter(row["last"])  # of several lines, in any order
    return found


rows_drawn = st.lists(
    st.fixed_dictionaries({"word": st.sampled_from("abc"), "x": st.none() | st.integers(-9, 9)}),
    max_size=6,
)


def apply(shape, stored, rows, txid, written=None):
    """A store that puts keys one by one, and may have put only some of them."""
    deltas, _, rejected = Aggregation(shape, lambda _: {}).of(
        [rows], [LineRows(LINE, txid, len(rows))]
    )
    assert not rejected
    names = shape.row_key
    ours = pc.is_valid(row_indexes(stored, deltas.keys, names))
    after = merge(shape, deltas, stored.filter(ours))
    if written is not None:
        after = after.filter(pc.is_in(after["word"], pa.array(sorted(written), pa.string())))
    theirs = pc.is_null(row_indexes(stored, after, names))
    return pa.concat_tables([stored.filter(theirs), after])


@settings(max_examples=50)
@given(
    transactions=st.lists(
        st.tuples(rows_drawn, st.lists(st.sets(st.sampled_from("abc")), max_size=2)), max_size=4
    )
)
def test_a_transaction_that_comes_again_with_its_records_counts_once_per_key(transactions):
    """Storm 2.9: a store without transactions may stop amid the keys of one."""
    shape = state_of("transactional").holds(**AGGREGATES).shape
    stored = shape.schema.empty_table()
    for txid, (rows, torn) in enumerate(transactions, start=1):
        for written in torn:
            stored = apply(shape, stored, rows, txid, written)
        stored = apply(shape, stored, rows, txid)
    assert read(shape, stored) == plain([row for rows, _ in transactions for row in rows])


@settings(max_examples=50)
@given(
    transactions=st.lists(
        st.tuples(
            st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), max_size=2),
            st.lists(st.integers(-9, 9), min_size=3, max_size=3),
            st.sets(st.sampled_from("abc")),
        ),
        max_size=4,
    )
)
def test_an_opaque_one_that_comes_again_with_others_takes_the_place_of_what_it_was(transactions):
    """Storm 2.9: stored txid equal, so it goes on from the value before."""
    shape = state_of("opaque").holds(**AGGREGATES).shape
    stored = shape.schema.empty_table()
    every = []
    for txid, (tries, last, written) in enumerate(transactions, start=1):
        for numbers in tries:
            stored = apply(shape, stored, rows_of(numbers), txid, written)
        stored = apply(shape, stored, rows_of(last), txid)
        every += rows_of(last)
    assert read(shape, stored) == plain(every)


def rows_of(numbers):
    return [{"word": word, "x": x} for word, x in zip("abc", numbers, strict=True)]


@pytest.mark.parametrize("layout", ["transactional", "opaque"])
def test_a_row_of_a_later_transaction_is_refused(layout):
    """Storm 2.9: stored txid greater is an error."""
    shape = state_of(layout).holds(n=count()).shape
    stored = apply(shape, shape.schema.empty_table(), [{"word": "a"}], 5)
    message = rf"state 'words': {{'word': 'a', '_line': '{LINE[:5]}.* of txid 5, after 4"
    with pytest.raises(AggregateFailed, match=message):
        apply(shape, stored, [{"word": "a"}], 4)
