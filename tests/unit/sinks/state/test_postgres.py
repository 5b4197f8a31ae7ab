from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace import InvalidTopology
from headrace.state import PostgresState, State, combiner, count, least, most, total
from sinks.storage import Storage
from topology.errors import InvalidSchema, SinkFailed
from topology.sink import SinkContext

URL = "postgresql://db/shop"
CONTEXT = SinkContext("pipeline", "words", {}, Storage(""), None, exactly_once=True)


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
        store.open(CONTEXT, shape)
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
