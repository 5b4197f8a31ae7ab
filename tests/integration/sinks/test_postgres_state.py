import math
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.state import PostgresState, State, combiner, count, least, most, total
from tests.support.batches import share
from tests.support.patience import seconds
from tests.support.postgres_table import PostgresTable
from topology.errors import SinkFailed, SinkFenced
from topology.sink import Committed, Fence
from topology.state import LINE, TXID, Shape

pytestmark = pytest.mark.integration

FIRST, SECOND = "orders[0]", "words[1]"


class Words:
    def __init__(self, table: PostgresTable) -> None:
        self.table = table
        self.context = table.context(exactly_once=True)
        self.stores: list[PostgresState] = []

    def shape(self, **aggregates: Any) -> Shape:
        state = State("words", key={"word": str}, into=self.table.state())
        return state.holds(**aggregates or {"n": count()}).shape

    def store(self, **aggregates: Any) -> PostgresState:
        self.stores.append(self.table.state())
        self.stores[-1].open(self.context, self.shape(**aggregates))
        return self.stores[-1]

    def counts(self) -> dict[str, int]:
        rows = self.table.state().load(self.context, self.shape()).to_pylist()
        return {row["word"]: row["n"] for row in rows}


@pytest.fixture
def words(postgres):
    made = Words(PostgresTable(postgres, "words"))
    yield made
    for store in made.stores:
        store.close()


def keys(*words: str, line: str = FIRST) -> pa.Table:
    schema = pa.schema([("word", pa.string()), (LINE, pa.string())])
    return pa.Table.from_pylist([{"word": word, LINE: line} for word in words], schema)


def adding(
    word: str, txid: int, line: str = FIRST, meanwhile: Callable[[], object] | None = None
) -> Callable[[pa.Table], pa.Table]:
    """One more of a word; `meanwhile` happens when it was read, and not yet written."""

    def change(stored: pa.Table) -> pa.Table:
        if meanwhile is not None:
            meanwhile()
        n = sum(stored["n"].to_pylist())
        row = {"word": word, LINE: line, "n": n + 1, TXID: txid}
        return pa.Table.from_pylist([row], stored.schema)

    return change


def test_a_value_comes_back_as_it_was_whatever_its_type(words):
    aggregates: dict[str, Any] = {
        "n": count(),
        "cents": total("x", type=Decimal),
        "sum": total("x", type=float),
        "low": least("x", type=str),
        "day": most("x", type=date),
        "at": most("x", type=datetime),
        "local": most("x", type=pa.timestamp("ms")),
        "small": most("x", type=pa.int8()),
        "real": most("x", type=pa.float32()),
        "any": combiner(zero=False, one=bool, merge=max, type=bool),
    }
    text = 'a\tb\n\\.\n"q",\r\\N\x01é\U0001f600'
    rows: list[dict[str, Any]] = [
        {
            "word": text, LINE: FIRST, "n": 2**63 - 1, "sum": 0.1 + 0.2, "low": text, TXID: 1,
            "cents": Decimal("-12345678901234567890.123456789012345678"), "day": date(1500, 1, 2),
            "at": datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), "small": -128, "real": 0.5,
            "local": datetime(1, 1, 1, 0, 0, 0, 1_000), "any": True,  # noqa: DTZ001
        },
        {"word": "", LINE: SECOND, TXID: 2, "low": "", "sum": -math.inf, "any": False},
        {"word": " ", LINE: FIRST, TXID: 3},
    ]  # fmt: skip
    store, shape = words.store(**aggregates), words.shape(**aggregates)
    put = pa.Table.from_pylist(rows, shape.schema)
    store.update((), put.select(shape.row_key), lambda _: put)
    read: list[pa.Table] = []

    def change(stored: pa.Table) -> pa.Table:
        read.append(stored)
        return stored

    store.update((), put.select(shape.row_key), change)
    loaded = words.table.state().load(words.context, shape)
    for found in (read[-1], loaded):
        assert found.sort_by(TXID).equals(put)


def test_what_another_owner_changes_meanwhile_is_not_lost(words):
    """Promise 9: rows are read before the lines are locked, so that they stand there is checked."""
    old, new = words.store(), words.store()
    old.fence([Fence(FIRST, 1)])
    old.update((share(),), keys("a"), adding("a", 1))

    def take_over() -> None:
        assert new.fence([Fence(FIRST, 2)]) == [Committed(FIRST, 2, 1)]
        new.update((share(2, epoch=2),), keys("a"), adding("a", 2))

    with pytest.raises(SinkFenced):
        old.update((share(2),), keys("a"), adding("a", 2, meanwhile=take_over))
    assert words.counts() == {"a": 2}

    def finish() -> None:
        new.update((share(3, epoch=2),), keys("a"), adding("a", 3))

    again = words.store()
    again.update((share(3, epoch=2),), keys("a"), adding("a", 3, meanwhile=finish))
    assert words.counts() == {"a": 3}


@pytest.mark.parametrize("shares", [(), (share(line=SECOND),)], ids=["no lines", "over all lines"])
def test_where_lines_do_not_hold_others_away_the_table_is_locked(words, shares):
    one, other = words.store(), words.store()
    one.fence([Fence(FIRST, 1)])
    other.fence([Fence(SECOND, 1)])
    of_all_lines = pa.table({"word": ["a"]})
    second = threading.Thread(
        target=lambda: other.update(shares, of_all_lines, adding("a", 1, SECOND))
    )

    def start_the_other() -> None:
        second.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '%T'::regclass"
        while words.table.sql(waiting) == 0:
            assert second.is_alive()

    one.update((share(),), of_all_lines, adding("a", 1, meanwhile=start_the_other))
    second.join(seconds(60))
    found = words.table.state().load(words.context, words.shape()).to_pylist()
    assert {row[LINE]: row["n"] for row in found} == {FIRST: 1, SECOND: 2}


def test_a_table_with_rules_of_its_own_is_refused(words):
    lines = f'"{LINE}" text NOT NULL, "{TXID}" bigint NOT NULL, PRIMARY KEY (word, "{LINE}")'
    words.table.sql(f"CREATE TABLE %T (word text, n bigint CHECK (n < 9), {lines})")
    with pytest.raises(SinkFailed, match=r"constraint words_n_check; a state has a table of its"):
        words.store()
    words.table.sql("ALTER TABLE %T DROP CONSTRAINT words_n_check")
    words.store().close()


def test_state_table_with_wider_types_is_accepted(words):
    lines = f'"{LINE}" text NOT NULL, "{TXID}" numeric NOT NULL, PRIMARY KEY (word, "{LINE}")'
    words.table.sql(f"CREATE TABLE %T (word text, n numeric(30, 2), at timestamp, {lines})")
    aggregates: dict[str, Any] = {"n": count(), "at": most("x", type=pa.timestamp("us"))}
    store, schema = words.store(**aggregates), words.shape(**aggregates).schema
    row = {"word": "a", LINE: FIRST, "n": 812, TXID: 1}
    put = pa.Table.from_pylist([row], schema)
    read: list[pa.Table] = []

    def change(stored: pa.Table) -> pa.Table:
        read.append(stored)
        return put

    store.update((), keys("a"), change)
    store.update((), keys("a"), change)
    assert read[1].equals(put)
    words.table.sql("UPDATE %T SET at = 'infinity'")
    with pytest.raises(SinkFailed, match="timestamp too large"):
        store.update((), keys("a"), change)
