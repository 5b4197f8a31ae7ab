"""What every place for state promises, asked of each of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from sinks.state.delta_state import DeltaState
from sinks.state.store import Change, MemoryState, StateStore
from sinks.storage import Storage
from tests.support.batches import share
from tests.support.postgres_table import PostgresTable
from topology.aggregates import count, least, reducer
from topology.errors import SinkFailed, SinkFenced
from topology.sink import Batch, Committed, Fence, Maintained, Share, Sink, SinkContext
from topology.state import LINE, TXID, Shape, State

FIRST, SECOND = "orders[0]", "words[1]"
NOWHERE = MemoryState()


def shape_of(layout: Any = "opaque", **aggregates: Any) -> Shape:
    state = State("words", key={"word": str, "day": int}, into=NOWHERE, layout=layout)
    return state.holds(**aggregates or {"n": count(), "low": least("x", type=str)}).shape


SHAPE = shape_of()
WHOLE = shape_of("transactional", last=reducer("", lambda _, row: row["x"], type=str))


@dataclass(frozen=True)
class House:
    """Where a store lives. `store()` is a new one there: another process's, as it were."""

    context: SinkContext
    store: Callable[[], StateStore]


@pytest.fixture(params=["memory", "delta", pytest.param("postgres", marks=pytest.mark.integration)])
def house(request, tmp_path):
    context = SinkContext("pipeline", "words", {}, Storage(str(tmp_path)), None, exactly_once=True)
    if request.param == "memory":
        memory = MemoryState()
        return House(context, lambda: MemoryState(beside=memory))
    if request.param == "delta":
        return House(context, lambda: DeltaState("state/words"))
    table = PostgresTable(request.getfixturevalue("postgres"), "words")
    return House(table.context(exactly_once=True), table.state)


@pytest.fixture
def opened():
    stores: list[StateStore] = []

    def open_store(house: House, shape: Shape = SHAPE, pipeline: str = "pipeline") -> StateStore:
        stores.append(house.store())
        stores[-1].open(replace(house.context, pipeline=pipeline), shape)
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()
        store.close()


@pytest.fixture
def store(house, opened):
    """A store in which the owner of both lines has epoch 1."""
    store = opened(house)
    store.fence([Fence(FIRST, 1), Fence(SECOND, 1)])
    return store


def keys_of(*keys: tuple[str, str]) -> pa.Table:
    rows = [{"word": word, "day": 7, LINE: line} for line, word in keys]
    return pa.Table.from_pylist(rows, SHAPE.row_schema)


Counts = Mapping[tuple[str, str], int]  # by line and word


def adding(counts: Counts, txid: int, seen: list[Any] | None = None) -> Change:
    def change(stored: pa.Table) -> pa.Table:
        assert stored.schema.equals(SHAPE.schema)
        rows = {(row[LINE], row["word"]): row for row in stored.to_pylist()}
        if seen is not None:
            seen.append({key: row["n"] for key, row in rows.items()})
        assert rows.keys() <= counts.keys()
        made = [
            {
                "word": word,
                "day": 7,
                LINE: line,
                "n": n + rows.get((line, word), {}).get("n", 0),
                "_before_n": rows.get((line, word), {}).get("n"),
                TXID: txid,
            }
            for (line, word), n in counts.items()
        ]
        return pa.Table.from_pylist(made, SHAPE.schema)

    return change


def put(store: StateStore, counts: Counts, *shares: Share, seen: list[Any] | None = None) -> None:
    txid = max((each.txid for each in shares), default=0)
    store.update(shares, keys_of(*counts), adding(counts, txid, seen))


def counted(house: House) -> dict[tuple[str, str], int]:
    rows = house.store().load(house.context, SHAPE).to_pylist()
    found = {(row[LINE], row["word"]): row["n"] for row in rows}
    assert len(found) == len(rows), rows
    return found


def state(store: StateStore, *lines: str) -> list[tuple[int, int]]:
    found = store.committed(lines)
    assert tuple(each.line for each in found) == lines
    return [(each.epoch, each.txid) for each in found]


def never(stored: pa.Table) -> pa.Table:
    raise AssertionError(stored)


def test_a_change_gets_what_stands_there_and_puts_what_is_to_stand_there(house, store):
    seen: list[Any] = []
    put(store, {(FIRST, "a"): 1, (FIRST, "b"): 2}, share(), seen=seen)
    put(store, {(FIRST, "c"): 5, (FIRST, "b"): 3}, share(txid=2), seen=seen)
    assert seen[-2:] == [{}, {(FIRST, "b"): 2}]
    assert counted(house) == {(FIRST, "a"): 1, (FIRST, "b"): 5, (FIRST, "c"): 5}
    assert state(store, FIRST, SECOND) == [(1, 2), (1, 0)]
    (row,) = (
        row for row in house.store().load(house.context, SHAPE).to_pylist() if row["word"] == "b"
    )
    assert row == {
        "word": "b", "day": 7, LINE: FIRST, "n": 5, "low": None,
        "_before_n": 2, "_before_low": None, TXID: 2,
    }  # fmt: skip


def test_the_same_transaction_twice_is_done_once(house, opened, store):
    """Storm 45: idempotent by txid, also where another process comes again."""
    put(store, {(FIRST, "a"): 1}, share())
    store.update((share(),), keys_of((FIRST, "a")), never)
    opened(house).update((share(),), keys_of((FIRST, "b")), never)
    assert counted(house) == {(FIRST, "a"): 1}
    assert state(store, FIRST) == [(1, 1)]


def test_a_lower_epoch_is_refused_and_changes_nothing(house, opened, store):
    """Promise 9: a zombie cannot finish a transaction once its successor has started."""
    successor = opened(house)
    assert successor.fence([Fence(FIRST, 2)]) == [Committed(FIRST, 2, 0)]
    for shares in ([share()], [share(line=SECOND), share()]):
        with pytest.raises(SinkFenced) as caught:
            put(store, {(FIRST, "a"): 1}, *shares)
        assert (caught.value.line, caught.value.epoch, caught.value.found) == (FIRST, 1, 2)
    with pytest.raises(SinkFenced):
        store.fence([Fence(FIRST, 1)])
    assert counted(house) == {}
    assert state(store, FIRST, SECOND) == [(2, 0), (1, 0)]
    put(successor, {(FIRST, "a"): 1}, share(epoch=2))
    assert counted(house) == {(FIRST, "a"): 1}


def test_a_change_that_fails_leaves_all_as_it_was(house, store):
    put(store, {(FIRST, "a"): 1}, share())

    def failing(stored: pa.Table) -> pa.Table:
        assert stored.num_rows == 1
        raise SinkFailed("no")

    with pytest.raises(SinkFailed, match=r"\Ano\Z"):
        store.update((share(txid=2),), keys_of((FIRST, "a")), failing)
    assert counted(house) == {(FIRST, "a"): 1}
    assert state(store, FIRST) == [(1, 1)]
    put(store, {(FIRST, "a"): 1}, share(txid=2))
    assert counted(house) == {(FIRST, "a"): 2}


def test_without_keys_the_txids_are_raised(house, store):
    """Promise 14: every txid is committed, also where all its records were filtered."""
    put(store, {}, share(), share(line=SECOND))
    assert state(store, FIRST, SECOND) == [(1, 1), (1, 1)]
    assert counted(house) == {}


def test_without_shares_rows_are_changed_and_no_line(house, store):
    put(store, {("", "a"): 1})
    put(store, {("", "a"): 2})
    assert counted(house) == {("", "a"): 3}
    assert state(store, FIRST) == [(1, 0)]


def test_only_some_shares_are_there(house, store):
    put(store, {(FIRST, "a"): 1}, share())
    with pytest.raises(SinkFailed):
        put(store, {(SECOND, "a"): 1}, share(), share(line=SECOND))
    assert counted(house) == {(FIRST, "a"): 1}


def test_rows_are_read_as_they_are_whoever_changed_them(house, opened, store):
    """A line whose partition moved is gone on with by another process, beside the first."""
    other = opened(house)
    put(store, {(FIRST, "a"): 1, (SECOND, "a"): 1}, share(), share(line=SECOND))
    other.fence([Fence(SECOND, 2)])
    put(other, {(SECOND, "a"): 1}, share(2, SECOND, epoch=2))
    put(store, {(FIRST, "a"): 1}, share(txid=2))
    put(other, {(SECOND, "a"): 1}, share(3, SECOND, epoch=2))
    store.fence([Fence(SECOND, 3)])
    put(store, {(SECOND, "a"): 1, (FIRST, "a"): 1}, share(4, SECOND, epoch=3), share(txid=3))
    assert counted(house) == {(FIRST, "a"): 3, (SECOND, "a"): 4}
    assert state(other, FIRST, SECOND) == [(1, 3), (3, 4)]


def test_lines_of_another_pipeline_are_others(house, opened, store):
    put(store, {(FIRST, "a"): 1}, share())
    other = opened(house, pipeline="another")
    assert other.fence([Fence(FIRST, 5)]) == [Committed(FIRST, 5, 0)]
    put(other, {(SECOND, "a"): 1}, share(epoch=5))
    assert state(store, FIRST) == [(1, 1)]
    assert counted(house) == {(FIRST, "a"): 1, (SECOND, "a"): 1}


def test_a_load_for_another_pipeline_changes_nothing_for_who_keeps_it(house, store):
    put(store, {(FIRST, "a"): 1}, share())
    other = replace(house.context, pipeline="other", sink="other", exactly_once=False)
    assert store.load(other, SHAPE).num_rows == 1
    assert state(store, FIRST) == [(1, 1)]
    put(store, {(FIRST, "a"): 1}, share(txid=2))
    assert counted(house) == {(FIRST, "a"): 2}


def test_a_store_that_is_opened_again_goes_on(house, store):
    put(store, {(FIRST, "a"): 1}, share())
    store.close()
    store.open(house.context, SHAPE)
    assert store.fence([Fence(FIRST, 2)]) == [Committed(FIRST, 2, 1)]
    put(store, {(FIRST, "a"): 1}, share(txid=2, epoch=2))
    assert counted(house) == {(FIRST, "a"): 2}


def test_any_text_is_a_key_among_thousands(house, store):
    words = ["", " ", "NULL", r"\N", "a'b", 'a"b', "a\tb\nc\\d", "ä€😀", "A", "a", "null", "a,b"]
    words += [f"word {number}" for number in range(3_000)]
    counts = {(FIRST, word): place for place, word in enumerate(words, start=1)}
    put(store, counts, share())
    seen: list[Any] = []
    some = dict([*list(counts.items())[:12], *list(counts.items())[12::7]])
    put(store, some, share(txid=2), seen=seen)
    assert seen[-1] == some
    assert counted(house) == {key: n * (2 if key in some else 1) for key, n in counts.items()}


def test_keys_without_a_line_are_the_rows_of_every_line(house, opened):
    store = opened(house, WHOLE)
    store.fence([Fence(FIRST, 1)])
    rows = [
        {"word": word, "day": 7, LINE: line, "last": word, TXID: 1}
        for word, line in (("a", FIRST), ("a", SECOND), ("b", FIRST))
    ]
    key = pa.Table.from_pylist([{"word": "a", "day": 7}, {"word": "b", "day": 7}], WHOLE.key)
    store.update((share(),), key, lambda _: pa.Table.from_pylist(rows, WHOLE.schema))
    seen: list[pa.Table] = []

    def change(stored: pa.Table) -> pa.Table:
        seen.append(stored)
        return stored

    store.update((share(txid=2),), key.slice(0, 1), change)
    by_line = sorted((row[LINE], row["word"]) for row in seen[-1].to_pylist())
    assert by_line == [(FIRST, "a"), (SECOND, "a")]
    assert house.store().load(house.context, WHOLE).num_rows == 3


def test_another_shape_is_refused(house, store):
    put(store, {(FIRST, "a"): 1}, share())
    other = shape_of("opaque", n=count(), high=least("y"))
    with pytest.raises(SinkFailed, match=r"high|low"):
        house.store().load(house.context, other)
    opening = house.store()
    with pytest.raises(SinkFailed, match=r"high|low"):
        opening.open(house.context, other)
    opening.close()


def test_nothing_is_loaded_where_nothing_is(house):
    found = house.store().load(house.context, SHAPE)
    assert found.schema.equals(SHAPE.schema)
    assert not found.num_rows


def test_a_store_that_is_not_open_says_so(house):
    with pytest.raises(SinkFailed, match="not open"):
        put(house.store(), {(FIRST, "a"): 1}, share())
    house.store().close()


@pytest.mark.parametrize("house", ["delta"], indirect=True)
def test_small_files_are_joined_and_nothing_else_changes(house):
    sink = State("words", key=SHAPE.key, into=house.store(), layout="opaque").sink(SHAPE.aggregates)
    sink.open(house.context)
    assert isinstance(sink, Sink)
    assert isinstance(sink, Maintained)
    table = sink.maintenance()
    sink.fence([Fence(FIRST, 1)])
    for txid in range(1, 5):  # words of one letter each, so that no file holds two
        rows = [{"word": chr(96 + txid), "day": 7, "x": "y"}]
        group = Batch(txid, [rows], 1, (replace(share(txid=txid), num_rows=1),))
        sink.commit(sink.stage(group))
    before = house.store().load(house.context, SHAPE).to_pylist()
    assert [len(table.data_files()), len(before)] == [4, 4]
    assert table.compact(1_000_000).files_replaced == 4
    assert len(table.data_files()) == 1
    after = house.store().load(house.context, SHAPE).to_pylist()
    assert sorted(after, key=str) == sorted(before, key=str)
    assert sink.committed([FIRST]) == [Committed(FIRST, 1, 4)]
    sink.close()
