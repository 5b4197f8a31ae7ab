"""What a state is stored as, looked up as, and what it refuses to be."""

from collections.abc import Callable
from typing import Any, TypedDict

import pyarrow as pa
import pytest

from sinks.memory import MemoryDeadLetters
from sinks.state.memory import MemoryState
from topology.aggregates import count, most, reducer, total
from topology.errors import InvalidTopology, ReferenceLoadFailed
from topology.sink import SinkContext
from topology.state import State
from topology.topology import Topology

CONTEXT = SinkContext("p", "words", {}, "", None)


class Key(TypedDict):
    word: str
    day: int


def state(**given: Any) -> State:
    defaults: dict[str, Any] = {"key": {"word": str}, "into": MemoryState()}
    return State("words", **(defaults | given))


def test_a_row_has_its_key_line_values_and_txid() -> None:
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


def test_an_opaque_one_has_the_values_before_as_well() -> None:
    shape = state(layout="opaque").holds(n=count(), last=reducer(0, max, type=int)).shape
    names = ["word", "_line", "n", "last", "_before_n", "_before_last", "_txid"]
    assert shape.schema.names == names
    assert shape.has_one_line


def test_a_key_is_stored_in_types_that_every_place_has() -> None:
    given = pa.schema(
        [
            ("small", pa.uint8()),
            ("name", pa.dictionary(pa.int8(), pa.string())),
            ("at", pa.timestamp("ns", "UTC")),
        ]
    )
    assert [field.type for field in state(key=given).fields] == [
        pa.int64(),
        pa.string(),
        pa.timestamp("us", "UTC"),
    ]


def test_lookups_merge_a_key_over_its_lines() -> None:
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


def test_a_lookup_of_one_value_gives_that_value() -> None:
    words = state(value="n").holds(n=count(), x=total("x"))
    words.load([{"word": "a", "n": 3, "x": 1}])
    assert dict(words) == {"a": 3}


def test_an_empty_state_is_an_empty_table() -> None:
    words = state().holds(n=count())
    words.use(words.read(words.fetch(CONTEXT)))
    assert dict(words) == {}


def test_values_that_cannot_be_merged_fail_the_load() -> None:
    words = state().holds(last=reducer("", lambda _, row: row["x"], type=str))
    stored = [{"word": "a", "_line": line, "last": line, "_txid": 1} for line in "12"]
    with pytest.raises(ReferenceLoadFailed, match="'last': a key has rows in several partitions"):
        words.read(pa.Table.from_pylist(stored, words.shape.schema))


def topology(**given: Any) -> Topology:
    made = Topology("t", reliability="exactly-once", **given)
    made.dead_letters.into(MemoryDeadLetters())
    return made


def test_aggregate_is_a_sink_of_the_states_name() -> None:
    made = topology()
    words = state()
    made.source("words").aggregate(words, n=count())
    made.uses(words)
    made.validate()
    (step,) = made.steps()
    assert step.name == "words"
    assert list(words.shape.aggregates) == ["n"]


def test_a_layout_keeps_the_kind_of_transactions_that_it_is_for() -> None:
    for layout in ("transactional", "opaque"):
        made = topology()
        made.source("words").aggregate(state(layout=layout), n=count())
        made.validate()
    made = topology(transactions="opaque")
    made.source("words").aggregate(state(layout="opaque"), n=count())
    made.validate()
    made = topology(transactions="opaque")
    made.source("words").aggregate(state(), n=count())
    with pytest.raises(InvalidTopology, match=r"\(StateSink with layout='transactional'\) gives"):
        made.validate()


def aggregated_twice() -> None:
    words, stream = state(), topology().source("words")
    stream.aggregate(words, n=count())
    stream.aggregate(words, m=count())


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: State("my words", key=Key, into=MemoryState()), "state 'my words': the name"),
        (lambda: state(key={}), "key has no column"),
        (lambda: state(key={"f": float}), "key 'f' is double; text, bytes"),
        (lambda: state(key={"_w": str}), "column '_w'; each name is allowed once"),
        (lambda: state(layout="other"), "layout='other'; allowed: transactional, opaque"),
        (lambda: state().shape, "has no values"),
        (lambda: state().holds(), "no aggregate"),
        (lambda: state().holds(word=count()), "column 'word'; each name is allowed once"),
        (lambda: state().holds(Word=count()), "column 'Word'; each name is allowed once"),
        (lambda: state().holds(n=3), "n=3; count"),  # type: ignore[arg-type]
        (lambda: state().holds(n=count()).holds(n=count()), "holds values already"),
        (aggregated_twice, "is aggregated twice"),
        (lambda: topology().source("w").aggregate(3, n=count()), "got 3; a State is allowed"),  # type: ignore[arg-type]
        (
            lambda: topology().source("w").ordered().aggregate(state(), n=count()),
            r"aggregate\(\) stands behind",
        ),
    ],
)
def test_what_is_no_state_is_refused(make: Callable[[], object], found: str) -> None:
    with pytest.raises(InvalidTopology, match=found):
        make()
