import math
import threading
import uuid
from datetime import time
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from sinks import PostgresSink
from tests.support.batches import LINE, SCHEMA, group, group_of, rows, write
from tests.support.patience import seconds
from tests.support.postgres_table import PostgresTable, connected
from tests.support.table_types import EVERY_TYPE, SOMETHING
from topology.errors import RowsRejected, SinkBusy, SinkFailed
from topology.sink import Batch, Committed, Fence, Staged

pytestmark = pytest.mark.integration

KEYED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("gone", pa.bool_()),
    ]
)


@pytest.fixture
def make(postgres):
    made: list[PostgresTable] = []

    def make(name: str = "orders") -> PostgresTable:
        made.append(PostgresTable(postgres, name))
        return made[-1]

    yield make
    for table in made:
        table.close()


@pytest.fixture
def table(make):
    return make()


def fenced(table: PostgresTable, **options: Any) -> PostgresSink[Any]:
    sink = table.sink(exactly_once=True, **options)
    sink.fence([Fence(LINE, 1)])
    return sink


MORE = [("huge", pa.uint64()), ("clock", pa.time64("us"))]
NASTY = 'a\tb\n\\.\n"q"\r\\N\x01é\U0001f600'


def test_every_type_is_stored_unchanged(table):
    schema = pa.schema([*EVERY_TYPE, *(pa.field(*each) for each in MORE)])
    something = SOMETHING | {"huge": 2**64 - 1, "clock": time(23, 59, 59, 999_999), "float": 0.1}
    something |= {"text": NASTY, "list": [NASTY, None], "map": {"k": Decimal("1.50"), "n": None}}
    infinite = {"number": 1, "float": math.nan, "double": -math.inf, "text": ""}
    columns = pa.RecordBatch.from_pylist(
        [{"number": 0}, something | {"map": list(something["map"].items())}, infinite], schema
    )
    table.sink(schema).write(Batch(1, [columns], 3))
    null, odd, some = table.rows("number")
    assert null == dict.fromkeys(schema.names) | {"number": 0}
    assert (odd["float"], odd["double"], odd["text"]) == ("NaN", "-Infinity", "")
    texts = table.sql(
        "SELECT json_build_array(number::text, huge::text, float::text, double::text,"
        " large_price::text, day::text, at = '0001-01-01 00:00Z',"
        " at_ns = '2026-01-02 03:04:05.678901Z', local::text, clock::text, bytes = '\\x00ff')::text"
        " FROM %T WHERE tiny IS NOT NULL"
    )
    assert texts == (
        '["9223372036854775807", "18446744073709551615", "0.1", "NaN", '
        '"12345678901234567890.123456789012345678", "1500-01-02", true, true, '
        '"2026-01-02 03:04:05.678", "23:59:59.999999", true]'
    )
    assert (some["text"], some["few"], some["list"]) == (NASTY, "AA", [NASTY, None])
    assert some["map"] == {"k": 1.5, "n": None}
    assert some["struct"] == {"a": "9999-12-31T00:00:00Z", "b": [1, None]}


@pytest.mark.parametrize("name", ['a"; DROP TABLE x; --', "select", "ünïcode ?", "{d}$1%s:b"])
def test_any_name_is_quoted(make, name):
    table = make(name)
    schema = pa.schema([pa.field(name, pa.int64(), nullable=False), ("gone", pa.bool_())])
    sink = table.sink(schema, exactly_once=True, key=name, deleted="gone")
    sink.fence([Fence(name, 1)])
    given = [{name: 1}, {name: 2}, {name: 1, "gone": True}, {"x": 1}]
    staged = sink.stage(group_of(1, given, line=name))
    sink.commit(staged)
    assert list(staged.rejected) == [3]
    assert table.rows() == [{name: 2}]
    assert sink.committed([name]) == [Committed(name, 1, 1)]
    again = table.sink(schema.append(pa.field(f"{name}2", pa.string())), key=name, deleted="gone",
                       on_new_columns="add")  # fmt: skip
    write(again, [{name: 3, f"{name}2": "x"}])
    assert table.rows()[1] == {name: 3, f"{name}2": "x"}


def test_search_path_finds_a_name_without_a_schema(postgres, table):
    name = f"o_{uuid.uuid4().hex[:8]}"
    url = f"{postgres.url}?user={postgres.user}&options=-csearch_path%3D{table.schema}"
    for _ in range(2):  # made, and found
        sink: PostgresSink[Any] = PostgresSink(url, name, schema=SCHEMA, password=postgres.password)
        sink.open(table.context(exactly_once=True))
        write(sink, rows(1))
        sink.close()
    assert len(table.rows(name=f"%S.{name}")) == 2
    assert table.rows(name="%S.headrace_transactions") == []


def test_rows_by_key_replace_and_delete(table):
    sink = table.sink(KEYED, key="id", deleted="gone")

    def put(*given: tuple[int | None, str | None, bool | None]) -> dict[int, str]:
        try:
            write(sink, [dict(zip(KEYED.names, row, strict=True)) for row in given])
        except RowsRejected as error:
            return error.reasons
        return {}

    assert put((1, "a", False), (2, "b", None), (1, "c", None), (3, "d", True)) == {}
    put((2, None, True), (4, None, None), (5, "e", True), (5, "f", False))
    assert list(put((None, "x", None), (6, "y", None))) == [0]
    put((7, "g", None), (7, "h", True))
    names = {1: "c", 4: None, 5: "f", 6: "y"}
    assert table.rows() == [{"id": key, "name": name} for key, name in names.items()]
    table.sql("DELETE FROM %T", "ALTER TABLE %T ALTER COLUMN name SET NOT NULL")
    sink = table.sink(KEYED, key="id", deleted="gone")
    assert put((1, "a", None), (2, None, None), (1, None, True)) == {
        1: "column 'name': found None, expected string, not null, unless 'gone' is true"
    }
    assert table.rows() == []


PLAIN = "CREATE TABLE %T (number bigint, place text)"
TRIGGER = (
    "CREATE FUNCTION %S.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN BODY RETURN NEW; END "
    f"$$; {PLAIN};"
    "CREATE TRIGGER t BEFORE INSERT ON %T FOR EACH ROW EXECUTE FUNCTION %S.refuse()"
)


def trigger(body: str) -> str:
    return TRIGGER.replace("BODY", body)


CONSTRAINTS = {
    "check": (PLAIN.replace("bigint", "bigint CHECK (number < 100)"), 200, "check"),
    "unique": (PLAIN.replace("bigint", "bigint PRIMARY KEY"), 1, "(1) already exists"),
    "deferred": (
        PLAIN.replace("bigint", "bigint UNIQUE DEFERRABLE INITIALLY DEFERRED"),
        1,
        "already exists",
    ),
    "foreign key": (
        "CREATE TABLE %O (n bigint PRIMARY KEY); INSERT INTO %O SELECT generate_series(1, 50);"
        + PLAIN.replace("bigint", "bigint REFERENCES %O"),
        77,
        "is not present in table",
    ),
    "trigger": (
        trigger("IF NEW.number = 13 THEN RAISE 'unlucky' USING ERRCODE = 'SH013'; END IF;"),
        13,
        "unlucky",
    ),
    "trigger that asserts": (trigger("ASSERT NEW.number <> 13, 'unlucky';"), 13, "unlucky"),
    "domain": (
        "CREATE DOMAIN %S.even AS bigint CHECK (VALUE <> 7);" + PLAIN.replace("bigint", "%S.even"),
        7,
        "violates check constraint",
    ),
    "partition": (
        PLAIN + " PARTITION BY RANGE (number);"
        "CREATE TABLE %O PARTITION OF %T FOR VALUES FROM (0) TO (60)",
        61,
        "no partition of relation",
    ),
    "generated": (
        PLAIN.replace("text", "text, part bigint GENERATED ALWAYS AS (1 / (number - 9)) STORED"),
        9,
        "division by zero",
    ),
    "expression": (f"{PLAIN};CREATE INDEX ON %T ((1 / (number - 9)))", 9, "division by zero"),
}


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_row_that_the_database_rejects_is_rejected_alone(table, kind):
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


def test_error_without_a_guilty_row_rejects_none(table):
    table.sql(
        trigger(
            "IF NEW.number = 1 THEN RAISE 'a row of its own' USING ERRCODE = 'SH001'; END IF; "
            "IF NEW.number = 2 THEN RAISE 'no room' USING ERRCODE = 'disk_full'; END IF;"
        )
    )
    sink = fenced(table)
    with pytest.raises(psycopg.Error, match="no room"):
        sink.stage(group(1, 1, 1, 2, 3))
    assert table.numbers() == []


def test_texts_of_a_form_are_judged_by_the_database(table):
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


def test_value_too_long_for_an_index_is_rejected_alone(table):
    sink = fenced(table, key="place")
    long = "".join(uuid.uuid4().hex for _ in range(400))
    given = [{"number": 1, "place": "x"}, {"number": 2, "place": long}]
    staged = sink.stage(group_of(1, given))
    assert list(staged.rejected) == [1]
    assert "index row" in staged.rejected[1]
    sink.commit(staged)
    assert table.numbers() == [1]


def test_error_at_commit_ends_the_process(table):
    sink = fenced(table)
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


def test_unsuitable_table_is_rejected(make):
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


def test_table_takes_extra_columns_and_adds_new_ones(table):
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


def test_concurrent_opens_create_one_table(table):
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


def test_wrong_password_is_reported_without_secrets(table, postgres, monkeypatch):
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


def test_locked_row_makes_the_sink_busy(table, monkeypatch):
    monkeypatch.setattr(
        "sinks.postgres.database.BEGIN", "BEGIN; SELECT set_config('lock_timeout', '200ms', true)"
    )
    sink = fenced(table)
    staged = sink.stage(group(1, 1))

    holder = connected(table.server)
    holder.execute(f"BEGIN; LOCK TABLE {table.schema}.headrace_transactions")
    for work in (lambda: sink.commit(staged), lambda: sink.committed([LINE])):
        with pytest.raises(SinkBusy, match="lock timeout"):
            work()
    holder.close()
    sink.commit(staged)
    assert table.numbers() == [1]


def test_table_removed_during_writes_is_noticed(table):
    sink = fenced(table)
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


def test_many_rejected_rows_are_found_quickly(table):
    table.sql("CREATE TABLE %T (number bigint CHECK (number % 2 = 0), place text UNIQUE)")
    sink = fenced(table)
    given = [{"number": n, "place": None} for n in range(5_000)]
    staged = sink.stage(group_of(1, given))
    assert list(staged.rejected) == list(range(1, 5_000, 2))
    sink.commit(staged)
    assert table.sql("SELECT count(*) FROM %T") == 2500


def test_order_dependent_upserts_keep_their_order(table):
    table.sql(
        "CREATE TABLE %T (number bigint PRIMARY KEY, place text UNIQUE)",
        "INSERT INTO %T VALUES (1, 'a'), (2, 'b')",
    )
    sink = fenced(table, key="number")
    swap = [(1, "c"), (2, "a"), (1, "b")]
    given = [{"number": number, "place": place} for number, place in swap]
    staged = sink.stage(group_of(1, given))
    assert staged.rejected == {}
    sink.commit(staged)
    assert table.rows() == [{"number": 1, "place": "b"}, {"number": 2, "place": "a"}]


def test_dropped_or_renamed_table_is_not_recreated(table):
    sink = fenced(table)
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


def test_old_transactions_table_is_upgraded(table):
    sink = fenced(table)
    sink.commit(sink.stage(group(1, 1)))
    table.sql('ALTER TABLE %S.headrace_transactions DROP COLUMN "table"')
    again = table.sink(exactly_once=True)
    assert again.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 1)]
    (line,) = table.rows(name="%S.headrace_transactions")
    assert line["table"] == table.name


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("options", [{}, {"key": "number"}], ids=["appended", "by key"])
def test_running_sink_notices_an_altered_column(table, exactly_once, options):
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


def test_trial_waits_for_earlier_trials_with_a_limit(table, monkeypatch):
    """A key that the group before brings is rejected."""
    table.sql("CREATE TABLE %T (number bigint PRIMARY KEY, place text)")
    sink = fenced(table)
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
    for _ in range(2):
        sink.commit(found[0])
    assert table.numbers() == [1, 2, 3]
