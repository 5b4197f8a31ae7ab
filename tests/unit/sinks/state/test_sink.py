from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headrace.state import PostgresState
from sinks.state.store import MemoryState, StateSink
from sinks.storage import Storage
from topology.aggregates import combiner, count, least, most, reducer, total
from topology.errors import InvalidSchema, InvalidTopology, RowsRejected, SinkFailed
from topology.record import Record
from topology.sink import Batch, Fence, Share, SinkContext
from topology.state import State

LINES = ("words[0]", "words[1]")


@dataclass
class Word:
    word: str
    x: int | None = None


class Kept:
    """A state in memory, its sink, and its values by word."""

    def __init__(self, into=None, **aggregates):
        self.into = into or MemoryState()
        self.state = State("words", key={"word": str}, into=self.into)
        self.sink = self.state.sink(aggregates or {"n": count(), "x": total("x")})
        self.open()
        self.txid = 0

    def open(self, *, exactly_once=True):
        self.sink.open(SinkContext("p", "words", {}, Storage(""), None, exactly_once=exactly_once))
        if exactly_once:
            self.sink.fence([Fence(line, 1) for line in LINES])

    def put(self, *by_line):
        """A transaction of each line, with these rows."""
        self.txid += 1
        shares = tuple(
            Share(line, 1, self.txid, 1, 0, 9, "", len(rows))
            for line, rows in zip(LINES, by_line, strict=False)
        )
        pieces = [*by_line]
        staged = self.sink.stage(Batch(self.txid, pieces, sum(map(len, by_line)), shares))
        self.sink.commit(staged)
        return staged

    def load(self, pipeline):
        context = SinkContext(pipeline, "words", {}, Storage(""), None)
        self.state.use(self.state.read(self.state.fetch(context)))

    @property
    def values(self):
        self.load("another")
        return {word: dict(row) for word, row in self.state.items()}


def test_rows_are_mappings_dataclasses_and_columns():
    kept = Kept()
    columns = pa.RecordBatch.from_pylist([{"word": "b", "x": 3, "other": 1.5}])
    kept.put([{"word": "a", "x": 1, "more": object()}, Word("a", 2), Word("c")], columns)
    assert kept.values == {"a": {"n": 2, "x": 3}, "b": {"n": 1, "x": 3}, "c": {"n": 1, "x": 0}}
    kept.put([], columns)
    assert kept.values["b"] == {"n": 2, "x": 6}


def test_a_row_that_does_not_fit_is_named_and_the_others_count():
    kept = Kept()
    staged = kept.put(
        [{"word": "a", "x": 1}, {"x": 1}, {"word": 7}, {"word": "a", "x": 1.5}],
        [Record(b"a", None), {"word": "a"}],
    )
    assert staged.num_rows == 2
    assert {place: reason[:13] for place, reason in staged.rejected.items()} == {
        1: "column 'word'",
        2: "column 'word'",
        3: "column 'x': f",
        4: "a row is a ma",
    }
    assert kept.values == {"a": {"n": 2, "x": 1}}


def test_columns_that_lack_the_key_are_rejected_and_those_that_lack_a_value_are_not():
    kept = Kept()
    staged = kept.put(pa.RecordBatch.from_pylist([{"x": 1}]), [])
    assert set(staged.rejected) == {0}
    assert not kept.put(pa.RecordBatch.from_pylist([{"word": "a"}]), []).rejected
    assert kept.values == {"a": {"n": 1, "x": 0}}


def test_rows_that_the_place_cannot_hold_are_rejected():
    class Short(MemoryState):
        def refused(self, rows):
            words = rows["word"].to_pylist()
            return {place: "too long" for place, word in enumerate(words) if len(str(word)) > 2}

    kept = Kept(Short())
    staged = kept.put([{"word": "abc"}, {"word": "a"}, {}, {"word": "abcd"}], [{"word": "b"}])
    assert {place for place, reason in staged.rejected.items() if reason == "too long"} == {0, 3}
    assert set(staged.rejected) == {0, 2, 3}
    assert {word: row["n"] for word, row in kept.values.items()} == {"a": 1, "b": 1}


def test_a_row_of_which_a_combiner_makes_nothing_that_fits_is_rejected():
    kept = Kept(longest=combiner("", lambda row: row["text"].strip(), max, type=str))
    rows = [{"word": "a", "text": " b "}, {"word": "a"}, {"word": "a", "text": "c"}]
    batch = pa.RecordBatch.from_pylist([{"word": "b", "text": "d"}, {"word": "b", "text": None}])
    staged = kept.put(rows, batch)
    assert staged.rejected == {
        1: "'longest': KeyError: 'text'",
        4: "'longest': AttributeError: 'NoneType' object has no attribute 'strip'",
    }
    assert kept.values == {"a": {"longest": "c"}, "b": {"longest": "d"}}
    odd = Kept(n=combiner(0, lambda row: row["n"], max, type=int))
    staged = odd.put([{"word": "a", "n": "one"}, {"word": "a", "n": 2}], [])
    assert "column 'n'" in staged.rejected[0]
    assert odd.values == {"a": {"n": 2}}
    deep = Kept(n=combiner([], lambda row: row["n"], lambda a, b: a + b, type=list[int]))
    staged = deep.put([{"word": "a", "n": [1, 1.5]}, {"word": "a", "n": [2]}], [])
    assert "column 'n'" in staged.rejected[0]
    assert deep.values == {"a": {"n": [2]}}


def test_a_reducer_sees_the_rows_of_a_key_in_order_over_transactions():
    def step(value, row):
        return value + str(row["x"] if isinstance(row, dict) else row.x)

    kept = Kept(all=reducer("", step, type=str), n=count())
    batch = pa.RecordBatch.from_pylist([{"word": "b", "x": "5"}, {"word": "b", "x": "6"}])
    kept.put([{"word": "a", "x": "1"}, {"word": "c", "x": "2"}, Word("a", 3), {}], batch)
    kept.put([{"word": "c", "x": "4"}, {"word": "a", "x": "7"}], [])
    assert kept.values == {
        "a": {"all": "137", "n": 3},
        "b": {"all": "56", "n": 2},
        "c": {"all": "24", "n": 2},
    }


def test_a_reducer_without_merge_halts_where_a_key_has_two_lines():
    kept = Kept(last=reducer("", lambda _, row: row["x"], type=str))
    kept.put([{"word": "a", "x": "1"}], [{"word": "b", "x": "2"}])
    message = r"state 'words': {'word': 'a'} has rows of p/words/words\[0\] and of p/words/words\[1"
    with pytest.raises(SinkFailed, match=message):
        kept.put([], [{"word": "a", "x": "3"}])
    with pytest.raises(SinkFailed, match="a reducer cannot merge"):
        Kept(last=reducer("", max, type=str)).put([{"word": "a"}], [{"word": "a"}])
    assert kept.values == {"a": {"last": "1"}, "b": {"last": "2"}}


def test_a_reducer_with_merge_has_a_value_per_line_that_are_merged():
    seen = reducer(0, lambda n, _: n + 1, type=int, merge=lambda a, b: a + b)
    kept = Kept(n=seen, low=least("x"), high=most("x", type=str))
    kept.put([{"word": "a"}, {"word": "a"}], [{"word": "a", "high": "z"}])
    assert kept.values == {"a": {"n": 3, "low": None, "high": None}}


def test_what_a_reducer_raises_ends_the_run_and_changes_nothing():
    kept = Kept(n=reducer(0, lambda n, row: n + row["x"], type=int))
    kept.put([{"word": "a", "x": 1}], [])
    with pytest.raises(SinkFailed, match=r"state 'words', 'n': <lambda> raised KeyError: 'x'"):
        kept.put([{"word": "a"}], [])
    assert kept.values == {"a": {"n": 1}}


def test_a_sum_without_room_ends_the_run():
    kept = Kept()
    kept.put([{"word": "a", "x": 2**62}], [])
    with pytest.raises(SinkFailed, match="'x': a sum overflows int64"):
        kept.put([{"word": "a", "x": 2**62}], [])
    with pytest.raises(SinkFailed, match="a sum overflows int64"):
        kept.put([{"word": "b", "x": 2**62}, {"word": "b", "x": 2**62}], [])


def test_without_transactions_rows_count_as_often_as_they_come_and_it_says_so():
    kept = Kept()
    with capture_logs() as logs:
        kept.open(exactly_once=False)
    assert [each["event"] for each in logs] == ["state_may_count_twice"]
    batch = Batch(1, [[{"word": "a", "x": 1}, {}]], 2)
    for _ in range(2):
        with pytest.raises(RowsRejected) as caught:
            kept.sink.write(batch)
        assert set(caught.value.reasons) == {1}
    assert kept.values == {"a": {"n": 2, "x": 2}}
    kept.open()
    kept.put([{"word": "a"}], [])
    assert kept.values == {"a": {"n": 3, "x": 2}}


def test_a_state_that_says_nothing_of_its_values_has_no_sink():
    into = MemoryState()
    with pytest.raises(InvalidTopology, match="has no values"):
        StateSink(into, State("words", key={"word": str}, into=into))


def following(into):
    kept = Kept(into, n=count())
    kept.state.follow()
    kept.load("p")
    return kept


@pytest.mark.parametrize("loses", ["before", "after"])
def test_lookups_get_a_commit_once_when_it_is_repeated(loses):
    into = MemoryState()
    kept, update = following(into), into.update

    def loses_the_answer(shares, keys, change):
        into.update = update
        if loses == "before":
            change(into._shared.rows)
        else:
            update(shares, keys, change)
        raise OSError("the connection is gone")

    into.update = loses_the_answer
    with pytest.raises(OSError, match="gone"):
        kept.put([Word("a")])
    assert not kept.state.has_news, "the outcome is unknown"
    kept.txid = 0
    kept.put([Word("a")])
    kept.state.catch_up()
    assert kept.state["a"]["n"] == 1


def test_look_ups_of_the_same_run_learn_what_a_commit_has_made():
    kept = following(MemoryState())
    kept.put([Word("a"), Word("b")], [Word("a")])
    kept.put([Word("a")])
    kept.state.catch_up()
    assert {word: row["n"] for word, row in kept.state.items()} == {"a": 3, "b": 1}
    kept.open(exactly_once=False)
    kept.sink.write(Batch(1, [[Word("b")]], 1))
    kept.state.catch_up()
    assert kept.state["b"]["n"] == 2


def test_rows_of_pipelines_and_sinks_whose_names_have_slashes_are_told_apart():
    into = MemoryState()
    for pipeline, name in (("shop/eu", "words"), ("shop", "eu/words"), ("shop%2Feu", "words")):
        sink = State("words", key={"word": str}, into=into).sink({"n": count()})
        sink.open(SinkContext(pipeline, name, {}, Storage(""), None))
        sink.write(Batch(1, [[Word("a")]], 1))
    stored = into._shared.rows
    assert stored["n"].to_pylist() == [1, 1, 1]
    assert len(set(stored["_line"].to_pylist())) == 3


URL = "postgresql://db/shop"


def state(key=str, store=None):
    into = store or PostgresState(URL, "words")
    return State("words", key={"word": key, "day": int}, into=into)


def test_a_jdbc_url_is_refused():
    with pytest.raises(InvalidTopology, match=r"\APostgresState: found a JDBC URL"):
        PostgresState("jdbc:postgresql://db/shop", "words")


def test_values_that_come_back_as_they_were_are_taken():
    kept = {
        "n": count(),
        "cents": total("cents", type=Decimal),
        "sum": total("x", type=float),
        "low": least("name", type=str),
        "last": most("at", type=datetime),
        "any": combiner(zero=False, one=lambda _: True, merge=lambda a, b: a or b, type=bool),
    }
    state().sink(kept)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (bytes, count(), "key 'word' is binary"),
        (str, most("at", type=pa.timestamp("ns")), r"value 'v' is timestamp\[ns\]"),
        (str, least("x", type=bytes), "value 'v' is binary"),
        (str, combiner([], lambda _: [1], lambda a, b: a + b, type=list[int]), "value 'v' is list"),
    ],
)
def test_others_are_refused_where_the_topology_is_made(key, value, said):
    with pytest.raises(InvalidSchema, match=rf"state 'words' in table 'words': {said}.*; expected"):
        state(key).sink({"v": value})


def test_rows_whose_key_the_database_cannot_hold_are_told_by_their_place():
    store = PostgresState("nowhere", "words")
    shape = state(store=store).holds(n=count()).shape
    with pytest.raises(SinkFailed, match="conninfo cannot be read"):
        store.open(SinkContext("p", "words", {}, Storage(""), None, exactly_once=True), shape)
    words = ["a", "NUL\0", "ä" * 1_000, "ä" * 1_001, ""]
    refused = store.refused(pa.table({"word": words, "day": pa.array([1] * 5)}))
    assert refused == {
        1: "column 'word': found NUL in a text",
        3: "found a key of 2002 bytes, expected at most 2000",
    }


def test_without_being_opened_it_says_so():
    store = PostgresState(URL, "words")
    for ask in (lambda: store.fence([]), lambda: store.committed(["t[0]"])):
        with pytest.raises(SinkFailed, match="table 'words' is not open"):
            ask()
    store.close()
