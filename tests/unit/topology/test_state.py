from collections import deque
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from operator import add
from typing import Annotated, TypedDict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.state.store import MemoryState
from sinks.storage import Storage
from topology.aggregates import combiner, count, least, most, reducer, total, type_of
from topology.errors import AggregateFailed, InvalidTopology, ReferenceLoadFailed
from topology.sink import SinkContext
from topology.state import State, StoredRows
from topology.topology import Topology


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
        return self.stored

    def loaded(self):
        context = SinkContext("p", "words", {}, Storage(""), None)
        return self.words.read(self.words.fetch(context))


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


MONEY = Annotated[Decimal, pa.decimal128(10, 2)]
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


class Span(TypedDict):
    low: int
    high: int


def merged(aggregate, values, groups=None):
    numbers = [0] * len(values) if groups is None else groups
    column = aggregate.merged(pa.array(values, aggregate.type), np.array(numbers, np.int64))
    assert column.type.equals(aggregate.type)
    return column.to_pylist()


@pytest.mark.parametrize(
    ("aggregate", "values", "found"),
    [
        (count(), [1, 1, 5], 7),
        (total("x"), [3, None, -4], -1),
        (total("x"), [None], 0),
        (total("x", type=float), [0.5, None, 1.0], 1.5),
        (total("x", type=MONEY), [Decimal("1.25"), Decimal("-0.50"), None], Decimal("0.75")),
        (least("x"), [3, None, -4], -4),
        (least("x"), [None, None], None),
        (most("x", type=float), [0.5, None], 0.5),
        (most("x", type=str), ["b", "a", None], "b"),
        (least("x", type=bytes), [b"b", b"a"], b"a"),
        (most("x", type=date), [date(2026, 1, 2), date(2025, 1, 2)], date(2026, 1, 2)),
        (least("x", type=datetime), [NEW_YEAR, NEW_YEAR - timedelta(1)], NEW_YEAR - timedelta(1)),
        (most("x", type=MONEY), [Decimal("1.25"), Decimal("-0.50")], Decimal("1.25")),
        (combiner([], lambda row: [row["x"]], add, type=list[int]), [[1], [2, 3]], [1, 2, 3]),
        (reducer("", lambda a, row: a, type=str, merge=max), ["a", "c", "b"], "c"),
        (reducer("z", lambda a, row: a, type=str), ["a"], "a"),
    ],
)
def test_values_of_a_group_are_merged(aggregate, values, found):
    assert merged(aggregate, values) == [found]
    twice = merged(aggregate, [*values, *values], [1] * len(values) + [0] * len(values))
    assert twice == [found, found]
    assert merged(aggregate, []) == []


def test_a_sum_that_passes_its_type_is_refused_and_one_that_comes_back_is_not():
    largest = 2**63 - 1
    assert merged(total("x"), [largest, 1, -1]) == [largest]
    assert merged(total("x"), [-largest - 1, largest]) == [-1]
    with pytest.raises(AggregateFailed, match="overflows int64"):
        merged(total("x"), [largest, 1])
    digits = Decimal("99999999.99")
    assert merged(total("x", type=MONEY), [digits, digits, -digits]) == [digits]
    with pytest.raises(AggregateFailed, match="overflows decimal128"):
        merged(total("x", type=MONEY), [digits, Decimal("0.01")])


def test_a_reducer_changes_a_value_row_by_row_and_never_its_zero():
    def step(values, row):
        values.append(row)
        return values

    aggregate = reducer([0], step, type=list[int])
    before = pa.array([None, [5], None], aggregate.type)
    for _ in range(2):
        assert aggregate.reduced(before, [[1, 2], [3], []]).to_pylist() == [[0, 1, 2], [5, 3], [0]]


def test_a_reducer_merges_no_two_values_without_merge():
    aggregate = reducer("", lambda a, row: a, type=str)
    assert merged(aggregate, ["a", "b", None], [0, 1, 1]) == ["a", "b"]
    with pytest.raises(AggregateFailed, match="has no merge="):
        merged(aggregate, ["a", "b"])


def broken(value, other):
    raise ZeroDivisionError(value, other)


def test_the_error_names_the_function_that_raised():
    with pytest.raises(AggregateFailed, match=r"broken raised ZeroDivisionError: \(0, 7\)"):
        merged(combiner(0, int, broken, type=int), [7])
    aggregate = reducer(0, broken, type=int)
    with pytest.raises(AggregateFailed, match="broken raised ZeroDivisionError"):
        aggregate.reduced(pa.array([7]), [[1]])


@pytest.mark.parametrize(
    ("hint", "zero", "made"),
    [
        (int, 0, 1.5),
        (int, 0, "x"),
        (float, 0.0, True),
        (list[int], [], [1.5]),
        (Span, Span(low=0, high=0), {"low": 1, "high": 2.5}),
        (dict[str, int], {}, {"a": 0.5}),
        (date, date(2026, 1, 1), datetime(2026, 1, 1, 12, tzinfo=UTC)),
    ],
)
def test_a_value_that_would_be_cut_down_is_refused(hint, zero, made):
    """It would be stored as another than the function made."""
    stepping = reducer(zero, lambda *_: made, type=hint, merge=lambda *_: made)
    with pytest.raises(AggregateFailed, match="does not fit"):
        stepping.reduced(pa.array([None], stepping.type), [["row"]])
    with pytest.raises(AggregateFailed, match="does not fit"):
        merged(stepping, [zero, zero])
    with pytest.raises(AggregateFailed, match="does not fit"):
        merged(combiner(zero, lambda row: row, lambda *_: made, type=hint), [zero])
    with pytest.raises(InvalidTopology, match="expected a value of type"):
        reducer(made, lambda *_: made, type=hint)


def test_parts_of_a_value_may_be_null_in_every_store():
    assert type_of(Span, "") == pa.struct([("low", pa.int64()), ("high", pa.int64())])
    assert type_of(list[int], "") == pa.list_(pa.field("element", pa.int64()))
    maps = combiner({}, dict, lambda a, b: a | b, type=dict[str, int])
    assert merged(maps, [{"a": 1}, {"b": 2}]) == [[("a", 1), ("b", 2)]]


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: total("x", type=str), r"total\('x'\), type: found <class 'str'>"),
        (lambda: total("x", type=set), r"total\('x'\)\.type: found <class 'set'>"),
        (lambda: least("x", type=bool), r"least\('x'\), type: found <class 'bool'>"),
        *(
            (lambda hint=hint: most("x", type=hint), r"most\('x'\), type: found")
            for hint in [list[int], pa.duration("s"), pa.string_view(), pa.decimal32(5, 2)]
        ),
        (lambda: combiner("a", len, max, type=int), "zero: found 'a', expected a value of type"),
        (lambda: combiner(None, len, max, type=int), "zero: found None"),
        (lambda: combiner(0, "one", max, type=int), "found 'one', expected a function"),
        (lambda: reducer(0, max, type=int, merge=3), "found 3, expected a function"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(make, found):
    with pytest.raises(InvalidTopology, match=found):
        make()
