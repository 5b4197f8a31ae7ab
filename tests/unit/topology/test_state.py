from collections import deque
from typing import TypedDict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.state.store import MemoryState
from sinks.storage import Storage
from topology.aggregates import combiner, count, least, most, reducer, total
from topology.errors import InvalidTopology, ReferenceLoadFailed
from topology.sink import SinkContext
from topology.state import State, StoredRows
from topology.topology import Topology

CONTEXT = SinkContext("p", "words", {}, Storage(""), None)


class Key(TypedDict):
    word: str
    day: int


def state(**given):
    defaults = {"key": {"word": str}, "into": MemoryState()}
    return State("words", **(defaults | given))


def test_a_row_has_its_key_line_values_and_txid():
    shape = state(key=Key).holds(n=count(), top=most("x", type=float)).shape
    assert [(field.name, str(field.type), field.nullable) for field in shape.schema] == [
        ("word", "string", False),
        ("day", "int64", False),
        ("_line", "string", False),
        ("n", "int64", True),
        ("top", "double", True),
        ("_txid", "int64", False),
    ]
    assert shape.row_key == ("word", "day", "_line")
    assert tuple(shape.row_schema.names) == shape.row_key
    assert not shape.has_one_line
    opaque = state(layout="opaque").holds(n=count(), last=reducer(0, max, type=int)).shape
    names = ["word", "_line", "n", "last", "_before_n", "_before_last", "_txid"]
    assert opaque.schema.names == names
    assert opaque.has_one_line


@pytest.mark.parametrize(
    ("given_type", "stored"),
    [
        (pa.uint8(), pa.int64()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.timestamp("ns", "UTC"), pa.timestamp("us", "UTC")),
    ],
)
def test_a_key_is_stored_in_a_type_that_every_store_has(given_type, stored):
    assert state(key=pa.schema([("k", given_type)])).fields.types == [stored]


def test_lookups_merge_a_key_over_its_lines():
    words = state().holds(n=count(), x=total("x"))
    stored = [
        {"word": "a", "_line": "1", "n": 1, "x": 10, "_txid": 5},
        {"word": "b", "_line": "1", "n": 2, "x": 20, "_txid": 6},
        {"word": "a", "_line": "2", "n": 4, "x": 40, "_txid": 1},
    ]
    words.use(words.read(pa.Table.from_pylist(stored, words.shape.schema)))
    found = {word: dict(row) for word, row in words.items()}
    assert found == {"a": {"n": 5, "x": 50}, "b": {"n": 2, "x": 20}}
    batch = pa.RecordBatch.from_pydict({"text": ["b", "c", "a"]})
    assert words.join(batch, on="text")["n"].to_pylist() == [2, None, 5]


def rows(words, *found):
    """Stored rows, of word, line, n and txid."""
    columns = dict(zip(("word", "_line", "n", "_txid"), zip(*found, strict=True), strict=True))
    return pa.table({name: [*each] for name, each in columns.items()}, schema=words.shape.schema)


class Following:
    """A state that its own run keeps and looks up; what stands there is given."""

    def __init__(self, *stored):
        self.words = state(value="n").holds(n=count())
        self.words.into = self
        self.stored = rows(self.words, *stored)
        self.words.follow()
        self.words.use(self.loaded())

    def load(self, context, shape):
        del context, shape
        return self.stored

    def loaded(self):
        return self.words.read(self.words.fetch(CONTEXT))


def test_commits_during_a_load_are_not_lost_with_it():
    following = Following(("a", "1", 1, 5), ("b", "1", 1, 5))
    words = following.words
    loads = [following.loaded(), following.loaded()]
    words.publish(rows(words, ("a", "1", 2, 6)))
    words.catch_up()
    for loaded in loads:
        words.use(loaded)
        assert dict(words) == {"a": 2, "b": 1}
    following.stored = rows(words, ("a", "1", 3, 7))
    words.use(following.loaded())
    assert dict(words) == {"a": 3}, "what a later load says counts"


def test_nothing_is_kept_for_a_load_that_has_failed():
    following = Following(("a", "1", 1, 5))
    words = following.words
    following.stored = pa.table({"word": ["a"], "_line": ["1"]})
    with pytest.raises(KeyError):
        following.loaded()
    words.publish(rows(words, ("a", "1", 2, 6)))
    words.catch_up()
    assert (dict(words), words.has_news) == ({"a": 2}, False)


def test_values_that_cannot_be_merged_fail_the_load():
    words = state().holds(last=reducer("", lambda _, row: row["x"], type=str))
    stored = [{"word": "a", "_line": line, "last": line, "_txid": 1} for line in "12"]
    with pytest.raises(ReferenceLoadFailed, match="'last': a key has rows in several partitions"):
        words.read(pa.Table.from_pylist(stored, words.shape.schema))


def aggregated_twice():
    words, stream = state(), Topology("t").source("words")
    stream.aggregate(words, n=count())
    stream.aggregate(words, n=count())


def shared(**others):
    """Aggregate one state in two topologies, in the other with other aggregates."""
    words = state()
    Topology("one").source("words").aggregate(words, n=count(), top=most("x"))
    Topology("other").source("words").aggregate(words, **others)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: State("my words", key=Key, into=MemoryState()), "state name: found 'my words'"),
        (lambda: state(key={}), r"key: found \[\], expected one or more columns"),
        (lambda: state(key={"f": float}), "key 'f': found double, expected text, bytes"),
        (lambda: state(key={"_w": str}), "column: found '_w', expected each name once"),
        (lambda: state(layout="other"), "layout: found 'other', expected transactional, opaque"),
        (lambda: state().shape, "has no values"),
        (lambda: state().holds(), "aggregates: found {}"),
        (lambda: state().holds(Word=count()), "column: found 'Word'"),
        (lambda: state().holds(n=3), "n: found 3, expected count"),
        (lambda: state().holds(n=count()).holds(n=count()), "has values already"),
        (aggregated_twice, "is aggregated twice"),
        (
            lambda: shared(cents=total("cents")),
            r"found cents=sum\('cents', int64\), expected n=count\(int64\), top=max\('x', int64\)",
        ),
        (lambda: shared(n=count()), r"found n=count\(int64\), expected n="),
        (lambda: shared(n=count(), top=least("x")), r"found .*top=min\('x', int64\), expected"),
        (lambda: shared(n=count(), top=most("y")), r"found .*top=max\('y', int64\), expected"),
        (lambda: shared(n=count(), top=most("x", type=str)), r"found .*'x', string\), expected"),
        (lambda: shared(n=3), "n: found 3, expected count"),
    ],
)
def test_invalid_state_is_refused(make, found):
    with pytest.raises(InvalidTopology, match=found):
        make()


def test_cell_or_factory_that_aggregates_a_state_may_run_again():
    words = state()
    for zero in (1, 2):
        longest = combiner(zero, lambda row: row["n"], max, type=int)
        Topology("t").source("words").aggregate(words, n=total("n"), longest=longest)
        assert words.shape.aggregates["longest"] is longest, "its functions are made anew"


SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64()), ("line", pa.string())])

some_rows = st.lists(
    st.builds(
        lambda word, line, n: {"word": word, "line": line, "n": n},
        st.sampled_from("abc"),
        st.sampled_from("xy"),
        st.integers(0, 99),
    ),
    max_size=4,
    unique_by=lambda row: (row["word"], row["line"]),
)


def table(found):
    return pa.Table.from_pylist(found, schema=SCHEMA)


def in_order(found):
    return sorted(found, key=lambda row: (row["word"], row["line"]))


def by_row(found):
    return {(row["word"], row["line"]): row for row in found}


@given(some_rows, st.lists(st.lists(some_rows, max_size=3), max_size=3))
def test_stored_rows_are_what_a_dictionary_of_them_would_be(before, turns):
    news = deque()
    stored = StoredRows(table(before), news, ["word"], ["word", "line"])
    expected = by_row(before)
    for commits in turns:
        for commit in commits:
            news.append(table(commit))
            expected |= by_row(commit)
        changed = {row["word"] for commit in commits for row in commit}
        found = stored.take_news()
        assert (found is None) == (not commits)
        if found is not None:
            told = [row for row in expected.values() if row["word"] in changed]
            assert in_order(found.to_pylist()) == in_order(told)
