"""Trident's rules, and that any interleaving of attempts and crashes is plain Python's sum."""

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sinks.state.merging import Aggregation, LineRows, merge, row_indexes
from sinks.state.store import MemoryState
from sinks.storage import Storage
from topology.aggregates import combiner, count, least, most, reducer, total
from topology.errors import AggregateFailed, SinkFenced
from topology.sink import Batch, Fence, Share, SinkContext
from topology.state import State

CONTEXT = SinkContext("p", "words", {}, Storage(""), None, exactly_once=True)
LINES = ("words[0]", "words[1]")


def state_of(layout, into):
    return State("words", key={"word": str}, into=into, layout=layout)


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


class Attempts(RuleBasedStateMachine):
    """Two lines, whose owners stage, try, crash, come again, and are taken over."""

    @initialize(layout=st.sampled_from(["transactional", "opaque"]))
    def begin(self, layout):
        self.memory = MemoryState()
        self.layout = layout
        self.shape = state_of(layout, self.memory).holds(**AGGREGATES).shape
        self.committed = []
        self.open = {}  # by line, the rows of its next transaction
        self.txids = dict.fromkeys(LINES, 0)
        self.epoch = 0
        self.zombies = []
        self.staged = []
        self.take_over()

    @rule()
    def take_over(self):
        """Another process: what was staged is a zombie's now, what was open comes again."""
        self.zombies += [(self.sink, staged) for staged, _ in self.staged]
        self.staged = []
        self.epoch += 1
        self.sink = state_of(self.layout, MemoryState(beside=self.memory)).sink(AGGREGATES)
        self.sink.open(CONTEXT)
        told = self.sink.fence([Fence(line, self.epoch) for line in LINES])
        assert {each.line: each.txid for each in told} == self.txids
        if self.layout == "opaque":
            self.open.clear()  # it may be of other records

    @precondition(lambda self: not self.staged)
    @rule(
        drawn=st.tuples(rows_drawn, rows_drawn), lines=st.sets(st.sampled_from(LINES), min_size=1)
    )
    def stage(self, drawn, lines):
        for line, rows in zip(LINES, drawn, strict=True):
            self.open.setdefault(line, rows)
        chosen = sorted(lines)
        shares = tuple(
            Share(line, self.epoch, self.txids[line] + 1, 1, 0, 9, "", len(self.open[line]))
            for line in chosen
        )
        rows = [row for line in chosen for row in self.open[line]]
        pieces = [self.open[line] for line in chosen]
        self.staged.append((self.sink.stage(Batch(1, pieces, len(rows), shares)), rows))

    @precondition(lambda self: self.staged)
    @rule()
    def discard(self):
        staged, _ = self.staged.pop()
        self.sink.discard(staged)

    @precondition(lambda self: self.staged)
    @rule(tries=st.integers(1, 3))
    def commit(self, tries):
        """The reply is lost, perhaps, and it is tried again."""
        staged, rows = self.staged.pop()
        for _ in range(tries):
            self.sink.commit(staged)
        self.committed += rows
        for share in staged.shares:
            self.txids[share.line] = share.txid
            self.open.pop(share.line)

    @precondition(lambda self: self.zombies)
    @rule()
    def zombie(self):
        """Promise 9: it finishes nothing once its successor has started."""
        sink, staged = self.zombies[-1]
        with pytest.raises(SinkFenced):
            sink.commit(staged)

    @invariant()
    def each_record_counts_once(self):
        if hasattr(self, "shape"):
            stored = self.memory.load(CONTEXT, self.shape)
            assert read(self.shape, stored) == plain(self.committed)


TestAttempts = pytest.mark.slow(Attempts.TestCase)
TestAttempts.settings = settings(max_examples=40, stateful_step_count=30)


def apply(shape, stored, rows, txid, written=None):
    """A store that puts keys one by one, and may have put only some of them."""
    deltas, _, rejected = Aggregation(shape, lambda _: {}).of(
        [rows], [LineRows(LINES[0], txid, len(rows))]
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
    shape = state_of("transactional", MemoryState()).holds(**AGGREGATES).shape
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
    shape = state_of("opaque", MemoryState()).holds(**AGGREGATES).shape
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
    shape = state_of(layout, MemoryState()).holds(n=count()).shape
    stored = apply(shape, shape.schema.empty_table(), [{"word": "a"}], 5)
    message = rf"state 'words': {{'word': 'a', '_line': '{LINES[0][:5]}.* of txid 5, after 4"
    with pytest.raises(AggregateFailed, match=message):
        apply(shape, stored, [{"word": "a"}], 4)
