"""PostgreSQL tables as the database itself shows them."""

import math
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from examples.support.postgres_server import EmbeddedPostgres
from sinks import PostgresSink
from tests.support.patience import seconds
from tests.support.postgres_table import LINE, SCHEMA, PostgresTable, connected, group, rows, write
from topology.errors import RowsRejected, SinkBusy, SinkFailed
from topology.sink import Batch, Committed, Fence, Share, Staged

pytestmark = pytest.mark.integration

KEYED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("gone", pa.bool_()),
    ]
)


Make = Callable[..., PostgresTable]


@pytest.fixture
def make(postgres: EmbeddedPostgres) -> Iterator[Make]:
    made: list[PostgresTable] = []

    def make(name: str = "orders") -> PostgresTable:
        made.append(PostgresTable(postgres, name))
        return made[-1]

    yield make
    for table in made:
        table.close()


@pytest.fixture
def table(make: Make) -> PostgresTable:
    return make()


EVERY_TYPE = pa.schema(
    [
        ("number", pa.int64()),
        ("tiny", pa.int8()),
        ("huge", pa.uint64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("bool", pa.bool_()),
        ("text", pa.large_string()),
        ("few", pa.dictionary(pa.int32(), pa.string())),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("at_ns", pa.timestamp("ns", tz="Europe/Berlin")),
        ("local", pa.timestamp("ms")),
        ("clock", pa.time64("us")),
        ("price", pa.decimal128(38, 18)),
        ("list", pa.list_(pa.string())),
        ("map", pa.map_(pa.string(), pa.decimal128(10, 2))),
        ("struct", pa.struct([("a", pa.timestamp("us", tz="UTC")), ("b", pa.list_(pa.int64()))])),
    ]
)
NASTY = 'a\tb\n\\.\n"q"\r\\N\x01é\U0001f600'
SOMETHING: dict[str, Any] = {
    "number": 2**63 - 1,
    "tiny": -128,
    "huge": 2**64 - 1,
    "float": 0.1,
    "double": 1e300,
    "bool": True,
    "text": NASTY,
    "few": "AA",
    "bytes": b"\x00\\\xff",
    "day": date(1500, 1, 2),
    "at": datetime(1, 1, 1, tzinfo=UTC),
    "at_ns": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "local": 1_234,
    "clock": time(23, 59, 59, 999_999),
    "price": Decimal("-12345678901234567890.123456789012345678"),
    "list": [NASTY, None],
    "map": {"k": Decimal("1.50"), "n": None},
    "struct": {"a": datetime(9999, 12, 31, tzinfo=UTC), "b": [1, None]},
}


def test_every_type_is_stored_unchanged(table: PostgresTable) -> None:
    sink = table.sink(EVERY_TYPE)
    nothing = dict.fromkeys(EVERY_TYPE.names)
    infinite = {"number": 1, "float": math.nan, "double": -math.inf, "text": ""}
    batch = pa.RecordBatch.from_pylist(
        [{"number": 0}, SOMETHING | {"map": list(SOMETHING["map"].items())}, infinite],
        schema=EVERY_TYPE,
    )
    sink.write(Batch(1, [batch], 3))
    types = table.sql(
        "SELECT string_agg(format_type(atttypid, atttypmod), ',' ORDER BY attnum) "
        "FROM pg_attribute WHERE attrelid = '%T'::regclass AND attnum > 0"
    )
    assert types.replace("without", "w/o").split(",") == [
        "bigint", "smallint", "numeric(20", "0)", "real", "double precision", "boolean", "text",
        "text", "bytea", "date", "timestamp with time zone", "timestamp with time zone",
        "timestamp w/o time zone", "time w/o time zone", "numeric(38", "18)", "jsonb", "jsonb",
        "jsonb",
    ]  # fmt: skip
    null, odd, some = table.rows("number")
    assert null == nothing | {"number": 0}
    assert (odd["float"], odd["double"], odd["text"]) == ("NaN", "-Infinity", "")
    texts = table.sql(
        "SELECT json_build_array(number::text, huge::text, float::text, double::text, price::text,"
        " day::text, at = '0001-01-01 00:00Z', at_ns = '2026-01-02 03:04:05.678901Z', local::text,"
        " clock::text, bytes = '\\x005cff')::text FROM %T WHERE tiny IS NOT NULL"
    )
    assert texts == (
        '["9223372036854775807", "18446744073709551615", "0.1", "1e+300", '
        '"-12345678901234567890.123456789012345678", "1500-01-02", true, true, '
        '"1970-01-01 00:00:01.234", "23:59:59.999999", true]'
    )
    assert some["text"] == NASTY
    assert (some["few"], some["list"]) == ("AA", [NASTY, None])
    assert some["map"] == {"k": 1.5, "n": None}
    assert some["struct"] == {"a": "9999-12-31T00:00:00Z", "b": [1, None]}


def test_values_invalid_in_postgresql_reject_their_rows(table: PostgresTable) -> None:
    schema = pa.schema(
        [("number", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.float64()))]
    )
    sink = table.sink(schema)
    given = [
        {"number": 1, "text": "a"},
        {"number": 2, "text": "a\0"},
        {"number": 3, "list": [math.nan]},
        {"number": "4"},
        {"number": 5, "list": [1.5]},
    ]
    with pytest.raises(RowsRejected) as caught:
        write(sink, given)
    assert {place: reason[:14] for place, reason in caught.value.reasons.items()} == {
        1: "column 'text':",
        2: "column 'list':",
        3: "column 'number",
    }
    assert table.numbers() == [1, 5]


@pytest.mark.parametrize("name", ['a"; DROP TABLE x; --', "select", "ünïcode ?", "{d}$1%s:b"])
def test_any_name_is_quoted(make: Make, name: str) -> None:
    table = make(name)
    schema = pa.schema([pa.field(name, pa.int64(), nullable=False), ("gone", pa.bool_())])
    sink = table.sink(schema, exactly_once=True, key=name, deleted="gone")
    sink.fence([Fence(name, 1)])
    given = [{name: 1}, {name: 2}, {name: 1, "gone": True}, {"x": 1}]
    share = Share(name, 1, 1, 1, 0, 4, "", 4)
    staged = sink.stage(Batch(1, [given], 4, (share,)))
    sink.commit(staged)
    assert list(staged.rejected) == [3]
    assert table.rows() == [{name: 2}]
    assert sink.committed([name]) == [Committed(name, 1, 1)]
    again = table.sink(schema.append(pa.field(f"{name}2", pa.string())), key=name, deleted="gone",
                       on_new_columns="add")  # fmt: skip
    write(again, [{name: 3, f"{name}2": "x"}])
    assert table.rows()[1] == {name: 3, f"{name}2": "x"}


def test_search_path_finds_a_name_without_a_schema(
    postgres: EmbeddedPostgres, table: PostgresTable
) -> None:
    name = f"o_{uuid.uuid4().hex[:8]}"
    url = f"{postgres.url}?user={postgres.user}&options=-csearch_path%3D{table.schema}"
    for _ in range(2):  # made, and found
        sink: PostgresSink[Any] = PostgresSink(url, name, schema=SCHEMA, password=postgres.password)
        sink.open(table.context(exactly_once=True))
        write(sink, rows(1))
        sink.close()
    assert len(table.rows(name=f"%S.{name}")) == 2
    assert table.rows(name="%S.headrace_transactions") == []


@pytest.mark.parametrize("exactly_once", [False, True])
def test_rows_by_key_replace_and_delete(table: PostgresTable, exactly_once: bool) -> None:
    sink = table.sink(KEYED, exactly_once=exactly_once, key="id", deleted="gone")
    numbers = iter(range(1, 10))
    if exactly_once:
        sink.fence([Fence(LINE, 1)])

    def put(*given: tuple[int | None, str | None, bool | None]) -> dict[int, str]:
        txid = next(numbers)
        pieces: list[Any] = [[dict(zip(KEYED.names, row, strict=True)) for row in given]]
        if exactly_once:
            share = Share(LINE, 1, txid, 1, txid, txid + 1, "", len(given))
            staged = sink.stage(Batch(txid, pieces, len(given), (share,)))
            sink.commit(staged)
            return dict(staged.rejected)
        try:
            sink.write(Batch(txid, pieces, len(given)))
        except RowsRejected as error:
            return error.reasons
        return {}

    assert put((1, "a", False), (2, "b", None), (1, "c", None), (3, "d", True)) == {}
    assert table.rows() == [{"id": 1, "name": "c"}, {"id": 2, "name": "b"}]
    put((2, None, True), (4, None, None), (5, "e", True), (5, "f", False))
    assert table.rows() == [
        {"id": 1, "name": "c"},
        {"id": 4, "name": None},
        {"id": 5, "name": "f"},
    ]
    assert list(put((None, "x", None), (6, "y", None))) == [0]
    put((7, "g", None), (7, "h", True))
    assert [row["id"] for row in table.rows()] == [1, 4, 5, 6]
    assert "key" not in table.sql("SELECT string_agg(attname, ',') FROM pg_attribute "
                                  "WHERE attrelid = '%T'::regclass")  # fmt: skip


def test_deleted_rows_need_only_their_key(
    table: PostgresTable,
) -> None:
    table.sql("CREATE TABLE %T (id bigint PRIMARY KEY, name text NOT NULL)")
    sink = table.sink(KEYED, key="id", deleted="gone")
    with pytest.raises(RowsRejected) as caught:
        write(sink, [{"id": 1, "name": "a"}, {"id": 2}, {"id": 1, "gone": True}])
    assert caught.value.reasons == {
        1: "column 'name': found None; allowed is string, not null, unless 'gone' is true"
    }
    assert table.rows() == []


CONSTRAINTS = {
    "check": ("CREATE TABLE %T (number bigint CHECK (number < 100), place text)", 200, "check"),
    "unique": ("CREATE TABLE %T (number bigint PRIMARY KEY, place text)", 1, "(1) already exis"),
    "deferred": (
        "CREATE TABLE %T (number bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, place text)",
        1,
        "already exists",
    ),
    "foreign key": (
        (
            "CREATE TABLE %O (n bigint PRIMARY KEY);"
            "INSERT INTO %O SELECT generate_series(1, 50);"
            "CREATE TABLE %T (number bigint REFERENCES %O, place text)"
        ),
        77,
        "is not present in table",
    ),
    "trigger": (
        (
            "CREATE FUNCTION %S.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF NEW.number = 13 THEN RAISE 'unlucky' USING ERRCODE = 'SH013'; END IF; RETURN NEW; "
            "END $$; CREATE TABLE %T (number bigint, place text);"
            "CREATE TRIGGER t BEFORE INSERT ON %T FOR EACH ROW EXECUTE FUNCTION %S.refuse()"
        ),
        13,
        "unlucky",
    ),
    "trigger that asserts": (
        (
            "CREATE FUNCTION %S.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "ASSERT NEW.number <> 13, 'unlucky'; RETURN NEW; END $$;"
            "CREATE TABLE %T (number bigint, place text);"
            "CREATE TRIGGER t BEFORE INSERT ON %T FOR EACH ROW EXECUTE FUNCTION %S.refuse()"
        ),
        13,
        "unlucky",
    ),
    "domain": (
        (
            "CREATE DOMAIN %S.even AS bigint CHECK (VALUE <> 7);"
            "CREATE TABLE %T (number %S.even, place text)"
        ),
        7,
        "violates check constraint",
    ),
    "partition": (
        (
            "CREATE TABLE %T (number bigint, place text) PARTITION BY RANGE (number);"
            "CREATE TABLE %O PARTITION OF %T FOR VALUES FROM (0) TO (60)"
        ),
        61,
        "no partition of relation",
    ),
    "generated": (
        (
            "CREATE TABLE %T (number bigint, place text,"
            " part bigint GENERATED ALWAYS AS (1 / (number - 9)) STORED)"
        ),
        9,
        "division by zero",
    ),
    "expression": (
        "CREATE TABLE %T (number bigint, place text);CREATE INDEX ON %T ((1 / (number - 9)))",
        9,
        "division by zero",
    ),
}


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_row_that_the_database_rejects_is_rejected_alone(table: PostgresTable, kind: str) -> None:
    statements, bad, says = CONSTRAINTS[kind]
    table.sql(statements)
    with capture_logs() as logs:
        sink = table.sink(exactly_once=True)
    assert [each["event"] for each in logs] == ["postgres_rows_are_tried"]
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 1, 2, bad, 3))
    assert list(staged.rejected) == [2]
    assert says in staged.rejected[2]
    assert table.numbers() == []
    sink.commit(staged)
    assert table.numbers() == [1, 2, 3]
    at_least_once = table.sink()
    with pytest.raises(RowsRejected) as caught:
        write(at_least_once, rows(4, 77 if kind == "foreign key" else bad, 5))
    assert list(caught.value.reasons) == [1]
    assert table.numbers() == [1, 2, 3, 4, 5]


def test_error_without_a_guilty_row_rejects_none(table: PostgresTable) -> None:
    table.sql(
        "CREATE FUNCTION %S.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.number = 1 THEN RAISE 'a row of its own' USING ERRCODE = 'SH001'; END IF; "
        "IF NEW.number = 2 THEN RAISE 'no room' USING ERRCODE = 'disk_full'; END IF; RETURN NEW; "
        "END $$; CREATE TABLE %T (number bigint, place text);"
        "CREATE TRIGGER t BEFORE INSERT ON %T FOR EACH ROW EXECUTE FUNCTION %S.full()"
    )
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    with pytest.raises(psycopg.Error, match="no room"):
        sink.stage(group(1, 1, 1, 2, 3))
    assert table.numbers() == []


def test_texts_of_a_form_are_judged_by_the_database(table: PostgresTable) -> None:
    table.sql(
        "CREATE TYPE %S.mood AS ENUM ('fine')",
        "CREATE DOMAIN %S.short AS varchar(3)",
        f"CREATE TABLE {table.quoted} (a %S.short, b uuid, c jsonb, d %S.mood, e numeric(3, 0))",
    )
    schema = pa.schema(
        [("a", pa.string()), ("b", pa.string()), ("c", pa.string()), ("d", pa.string()),
         ("e", pa.int64())]
    )  # fmt: skip
    good = {"a": "abc", "b": str(uuid.uuid4()), "c": '{"x": 1}', "d": "fine", "e": 999}
    bad = [{"a": "abcd"}, {"b": "x"}, {"c": "{"}, {"d": "bad"}, {"e": 1000}]
    sink = table.sink(schema)
    with pytest.raises(RowsRejected) as caught:
        write(sink, [good, *(good | each for each in bad), good])
    assert list(caught.value.reasons) == [1, 2, 3, 4, 5]
    assert len(table.rows()) == 2


def test_value_too_long_for_an_index_is_rejected_alone(table: PostgresTable) -> None:
    sink = table.sink(exactly_once=True, key="place")
    sink.fence([Fence(LINE, 1)])
    long = "".join(uuid.uuid4().hex for _ in range(400))
    given = [{"number": 1, "place": "x"}, {"number": 2, "place": long}]
    staged = sink.stage(Batch(1, [given], 2, (Share(LINE, 1, 1, 1, 0, 2, "", 2),)))
    assert list(staged.rejected) == [1]
    assert "index row" in staged.rejected[1]
    sink.commit(staged)
    assert table.numbers() == [1]


def test_key_repeated_in_the_next_group_is_rejected(table: PostgresTable) -> None:
    table.sql("CREATE TABLE %T (number bigint PRIMARY KEY, place text)")
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    first = sink.stage(group(1, 1, 2))
    sink.commit(first)
    second = sink.stage(group(2, 2, 3))
    assert list(second.rejected) == [0]
    sink.commit(second)
    sink.commit(second)
    assert table.numbers() == [1, 2, 3]


def test_error_at_commit_ends_the_process(
    table: PostgresTable,
) -> None:
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 1, 200))
    table.sql("ALTER TABLE %T ADD CONSTRAINT low CHECK (number < 100)")
    with pytest.raises(SinkFailed, match=r"violates check constraint.*after a restart"):
        sink.commit(staged)
    assert table.numbers() == []
    table.sql("ALTER TABLE %T DROP CONSTRAINT low")
    # Nothing tells of it now, as with a rule that nobody has thought of; but it was tried before.
    again = table.sink(exactly_once=True)
    again.fence([Fence(LINE, 2)])
    table.sql("ALTER TABLE %T ADD CONSTRAINT low CHECK (number < 100)")
    staged = again.stage(group(1, 1, 200, epoch=2, attempt=2))
    assert list(staged.rejected) == [1]
    again.commit(staged)
    assert table.numbers() == [1]


def test_unsuitable_table_is_rejected(make: Make) -> None:
    view, unlogged, other = make(), make(), make()
    other.sql("CREATE TABLE %T (number text, more int NOT NULL)")
    with pytest.raises(SinkFailed, match=r"found int64.*; column 'place' is not.*; column 'more'"):
        other.sink()
    view.sql("CREATE VIEW %T AS SELECT 1::bigint AS number, ''::text AS place")
    with pytest.raises(SinkFailed, match="it is not a table"):
        view.sink()
    unlogged.sql("CREATE UNLOGGED TABLE %T (number bigint, place text)")
    with pytest.raises(SinkFailed, match="UNLOGGED"):
        unlogged.sink()
    with pytest.raises(SinkFailed, match=r"column 'x': found duration\[s\], which PostgreSQL"):
        make().sink(pa.schema({"x": pa.duration("s")}))


def test_table_takes_extra_columns_and_adds_new_ones(
    table: PostgresTable,
) -> None:
    table.sql("CREATE TABLE %T (extra text DEFAULT 'd', place text, number bigint)")
    sink = table.sink()
    write(sink, rows(1))
    wider = SCHEMA.append(pa.field("weight", pa.float64(), nullable=False))
    with pytest.raises(SinkFailed, match="column 'weight' is not in the table"):
        table.sink(wider)
    write(table.sink(wider, on_new_columns="add"), [{"number": 2, "place": "y", "weight": 0.5}])
    write(sink, rows(3))
    assert [(row["number"], row["extra"], row["weight"]) for row in table.rows("number")] == [
        (1, "d", None),
        (2, "d", 0.5),
        (3, "d", None),
    ]


def test_concurrent_opens_create_one_table(table: PostgresTable) -> None:
    failed: list[Exception] = []

    def open_it() -> None:
        try:
            table.sink(exactly_once=True).fence([Fence(LINE, 1)])
        except Exception as error:  # noqa: BLE001 - it is looked at below
            failed.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds(60))
    assert failed == []
    assert len(table.rows(name="%S.headrace_transactions")) == 1


def test_wrong_password_is_reported_without_secrets(
    table: PostgresTable, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url, password, says in (
        (postgres.url, "wrong-secret", "password authentication failed"),
        (f"{postgres.url}?password=wrong-secret", None, "password authentication failed"),
        ("postgresql://127.0.0.1:1/postgres", "wrong-secret", "refused"),
    ):
        sink: PostgresSink[Any] = PostgresSink(
            url, table.name, schema=SCHEMA, user=postgres.user, password=password
        )
        with capture_logs() as logs, pytest.raises(SinkFailed, match=says) as caught:
            sink.open(table.context())
        assert "host=127.0.0.1 port=" in str(caught.value)
        chain: BaseException | None = caught.value
        while chain is not None:
            assert "wrong-secret" not in f"{chain} {chain!r} {logs}"
            chain = chain.__cause__ or chain.__context__
    monkeypatch.setenv("PGUSER", postgres.user)
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    sink = PostgresSink(postgres.url, table.name, schema=SCHEMA)
    sink.open(table.context())
    sink.close()


def test_locked_row_makes_the_sink_busy(
    table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sinks.postgres.database.BEGIN", "BEGIN; SELECT set_config('lock_timeout', '200ms', true)"
    )
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 1))

    holder = connected(table.server)
    holder.execute(f"BEGIN; LOCK TABLE {table.schema}.headrace_transactions")
    for work in (lambda: sink.commit(staged), lambda: sink.committed([LINE])):
        with pytest.raises(SinkBusy, match="lock timeout"):
            work()
    holder.close()
    sink.commit(staged)
    assert table.numbers() == [1]


def test_table_removed_during_writes_is_noticed(
    table: PostgresTable,
) -> None:
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 1))
    table.sql("DELETE FROM %S.headrace_transactions")
    with pytest.raises(SinkFailed, match="headrace_transactions lacks the row of a line"):
        sink.commit(staged)
    assert table.numbers() == []
    sink.fence([Fence(LINE, 1)])
    table.sql("DROP TABLE %T")
    with pytest.raises(SinkFailed, match=r"relation .* does not exist"):
        sink.commit(staged)
    with pytest.raises(SinkFailed, match="was removed while rows were written"):
        sink.commit(staged)


def test_many_rejected_rows_are_found_quickly(table: PostgresTable) -> None:
    table.sql("CREATE TABLE %T (number bigint CHECK (number % 2 = 0), place text UNIQUE)")
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    given = [{"number": n, "place": None} for n in range(5_000)]
    staged = sink.stage(Batch(1, [given], 5_000, (Share(LINE, 1, 1, 1, 0, 1, "", 5_000),)))
    assert list(staged.rejected) == list(range(1, 5_000, 2))
    sink.commit(staged)
    assert table.sql("SELECT count(*) FROM %T") == 2500


def test_order_dependent_upserts_keep_their_order(
    table: PostgresTable,
) -> None:
    table.sql(
        "CREATE TABLE %T (number bigint PRIMARY KEY, place text UNIQUE)",
        "INSERT INTO %T VALUES (1, 'a'), (2, 'b')",
    )
    sink = table.sink(exactly_once=True, key="number")
    sink.fence([Fence(LINE, 1)])
    swap = [(1, "c"), (2, "a"), (1, "b")]
    given = [{"number": number, "place": place} for number, place in swap]
    staged = sink.stage(Batch(1, [given], 3, (Share(LINE, 1, 1, 1, 0, 3, "", 3),)))
    assert staged.rejected == {}
    sink.commit(staged)
    assert table.rows() == [{"number": 1, "place": "b"}, {"number": 2, "place": "a"}]


def test_dropped_or_renamed_table_is_not_recreated(
    table: PostgresTable,
) -> None:
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    sink.commit(sink.stage(group(1, 1)))
    table.sql("ALTER TABLE %T RENAME TO orders_of_old")
    with pytest.raises(SinkFailed, match=r"missing, and sink .* to .*orders_of_old\. Restore"):
        table.sink(exactly_once=True)
    table.sql("ALTER TABLE %S.orders_of_old RENAME TO orders")
    sink.commit(sink.stage(group(2, 2)))
    assert table.numbers() == [1, 2]
    table.sql("ALTER TABLE %T RENAME TO orders_of_old")
    table.sql("CREATE TABLE %T (LIKE %S.orders_of_old)")
    with pytest.raises(SinkFailed, match=r"another one, and sink .* to .*orders_of_old\."):
        table.sink(exactly_once=True)
    with pytest.raises(SinkFailed, match="it is another one"):
        sink.commit(sink.stage(group(3, 3)))
    assert table.rows() == []
    table.sql("DROP TABLE %T, %S.orders_of_old")
    with pytest.raises(SinkFailed, match="it is missing, and sink 'sink' has committed rows"):
        table.sink(exactly_once=True)
    table.sql("DELETE FROM %S.headrace_transactions")
    again = table.sink(exactly_once=True)
    assert again.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 0)]


def test_old_transactions_table_is_upgraded(
    table: PostgresTable,
) -> None:
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    sink.commit(sink.stage(group(1, 1)))
    table.sql('ALTER TABLE %S.headrace_transactions DROP COLUMN "table"')
    again = table.sink(exactly_once=True)
    assert again.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 1)]
    (line,) = table.rows(name="%S.headrace_transactions")
    assert line["table"] == table.name


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("options", [{}, {"key": "number"}], ids=["appended", "by key"])
def test_running_sink_notices_an_altered_column(
    table: PostgresTable, exactly_once: bool, options: dict[str, Any]
) -> None:
    sink = table.sink(exactly_once=exactly_once, **options)
    sink.fence([Fence(LINE, 1)]) if exactly_once else None
    put = iter(range(1, 10))

    def write_one() -> None:
        number = next(put)
        if exactly_once:
            sink.commit(sink.stage(group(number, number)))
        else:
            write(sink, rows(number))

    write_one()
    table.sql("ALTER TABLE %T ADD COLUMN more text DEFAULT 'x'")
    write_one()
    table.sql("ALTER TABLE %T ALTER COLUMN number TYPE integer")
    with pytest.raises(SinkFailed, match="found int64, which needs bigint; the table has integer"):
        write_one()
    assert table.numbers() == [1, 2]


def test_writing_starts_no_process_and_no_spark(table: PostgresTable) -> None:
    code = f"""
import os, pathlib, sys
import pyarrow as pa
from headrace.sinks import Batch, PostgresSink, SinkContext
from sinks.storage import Storage
schema = pa.schema({{"number": pa.int64()}})
sink = PostgresSink({table.server.url!r}, {table.name!r}, schema=schema)
sink.open(SinkContext("p", "s", {{}}, Storage(""), None))
sink.write(Batch(1, [[{{"number": 1}}]], 1))
print(sorted({{"pyspark", "py4j"}} & set(sys.modules)))
print(pathlib.Path(f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/children").read_text())
sink.close()
"""
    environment = {"PGUSER": table.server.user, "PGPASSWORD": table.server.password}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds(60),
    )
    assert (done.stdout.split(), done.stderr) == (["[]"], "")
    assert table.numbers() == [1]


def test_trial_waits_for_earlier_trials_with_a_limit(
    table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.sql("CREATE TABLE %T (number bigint PRIMARY KEY, place text)")
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    monkeypatch.setattr("sinks.postgres.sink._PATIENCE_SECONDS", seconds(60))
    first = sink.stage(group(1, 1, 2))
    found: list[Staged] = []
    staging = threading.Thread(target=lambda: found.append(sink.stage(group(2, 2, 3))))
    staging.start()
    sink.commit(first)
    staging.join(seconds(30))
    assert list(found[0].rejected) == [0]
    monkeypatch.setattr("sinks.postgres.sink._PATIENCE_SECONDS", 0.01)
    assert list(sink.stage(group(3, 3)).rejected) == []
