import re
from dataclasses import replace
from unittest.mock import Mock

import psycopg
import pyarrow as pa
import pytest

from headrace import InvalidTopology
from headrace.sinks import PostgresSink
from sinks.postgres.catalogue import (
    Column,
    Index,
    Statements,
    TableInfo,
    key_of,
    quoted,
    sql_type,
    table_name,
    values_that_fit,
)
from sinks.postgres.database import verdict
from sinks.storage import Storage
from topology.errors import InvalidSchema, SinkFailed
from topology.sink import SinkContext


def column(shown, name="x", **more):
    return Column(name, re.sub(r"\(.*?\)", "", shown), shown, **more)


def rows_of(schema):
    return key_of("orders", pa.schema(schema))


SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "gone": pa.bool_()})
ROWS = key_of("orders", SCHEMA.remove(2))
TEXTS = rows_of({"id": pa.string(), "name": pa.string()})
BY_KEY = key_of("orders", SCHEMA, "id", "gone")
PRIMARY = Index("orders_pkey", True, True, True, ["id"])  # noqa: FBT003
ID, NAME = column("bigint", "id", nullable=False), column("text", "name")
AT = column("timestamptz", "at", nullable=False, filled=True)
TABLE = TableInfo([ID, NAME, AT], [], "1 ", "public", "orders", "r", "p", [])


def with_columns(*columns):
    return replace(TABLE, columns=list(columns))


def test_ordinary_table_needs_no_trial():
    assert list(TABLE.problems(ROWS)) == []
    assert (TABLE.trial_reason(ROWS), TABLE.new_columns(ROWS)) == (None, [])
    assert TABLE.not_null == {"id", "at"}
    assert [each.name for each in with_columns(ID).new_columns(BY_KEY)] == ["name"]


def test_rows_by_primary_key_need_no_trial():
    table = replace(TABLE, indexes=[PRIMARY])
    assert list(table.problems(BY_KEY)) == []
    assert (table.trial_reason(BY_KEY), table.indexed(BY_KEY)) == (None, ["id"])
    assert table.trial_reason(ROWS) == "the index orders_pkey is unique"


@pytest.mark.parametrize(
    ("table", "target", "problem"),
    [
        (replace(TABLE, kind="v"), ROWS, "it is not a table"),
        (replace(TABLE, persistence="u"), ROWS, "UNLOGGED"),
        (with_columns(ID), ROWS, "column 'name' is not in the table"),
        (TABLE, rows_of({"name": pa.string()}), "column 'id' of the table is NOT NULL"),
        (TABLE, TEXTS, "column 'id': found string, which needs text; the table has bigint"),
        (with_columns(replace(ID, generated=True), NAME), ROWS, "column 'id' is filled by the dat"),
        (TABLE, BY_KEY, "key is id; the table has no unique index of exactly these columns"),
        *(
            (replace(TABLE, indexes=[replace(PRIMARY, **change)]), BY_KEY, "key is id")
            for change in (
                {"is_unique": False},
                {"is_plain": False},
                {"is_usable": False},
                {"columns": ["id", "name"]},
            )
        ),
    ],
)
def test_unsuitable_table_is_named_with_the_reason(table, target, problem):
    assert any(problem in each for each in table.problems(target))


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (replace(TABLE, guards=["trigger audit"]), "the table has the trigger audit"),
        (replace(TABLE, kind="p"), "the table is partitioned"),
        (
            replace(TABLE, indexes=[replace(PRIMARY, is_unique=False, is_plain=False)]),
            "the index orders_pkey is of an expression, or of some rows only",
        ),
        (with_columns(ID, NAME, column("date", generated=True)), "the table has generated columns"),
        (
            with_columns(ID, column("character varying(3)", "name")),
            "column 'name' is character varying(3)",
        ),
        (with_columns(ID, replace(NAME, is_domain=True)), "column 'name' is a domain over text"),
    ],
)
def test_rules_of_the_database_need_a_trial(table, reason):
    assert list(table.problems(ROWS)) == []
    assert table.trial_reason(ROWS) == reason


def test_invalid_column_is_rejected():
    with pytest.raises(InvalidSchema, match="table 'orders': column: found nothing"):
        key_of("orders", pa.schema({"": pa.int64()}))
    with pytest.raises(InvalidSchema, match="key column 'x' is nested"):
        key_of("orders", pa.schema({"x": pa.list_(pa.int64())}), "x")


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "smallint"),
        (pa.uint8(), "smallint"),
        (pa.int16(), "smallint"),
        (pa.uint16(), "integer"),
        (pa.int32(), "integer"),
        (pa.uint32(), "bigint"),
        (pa.int64(), "bigint"),
        (pa.uint64(), "numeric(20)"),
        (pa.float16(), "real"),
        (pa.float32(), "real"),
        (pa.float64(), "double precision"),
        (pa.string(), "text"),
        (pa.large_string(), "text"),
        (pa.dictionary(pa.int8(), pa.string()), "text"),
        (pa.binary(), "bytea"),
        (pa.binary(4), "bytea"),
        (pa.date32(), "date"),
        (pa.date64(), "date"),
        (pa.timestamp("ns"), "timestamp without time zone"),
        (pa.timestamp("us", tz="Europe/Berlin"), "timestamp with time zone"),
        (pa.time32("s"), "time without time zone"),
        (pa.time64("ns"), "time without time zone"),
        (pa.decimal128(10, 2), "numeric(10,2)"),
        (pa.decimal256(76, 38), "numeric(76,38)"),
        (pa.decimal128(10, -2), "numeric"),
        (pa.list_(pa.int64()), "jsonb"),
        (pa.map_(pa.string(), pa.date32()), "jsonb"),
        (pa.struct([("a", pa.list_(pa.binary()))]), "jsonb"),
    ],
    ids=str,
)
def test_created_column_holds_all_values_of_its_type(kind, made):
    assert sql_type(kind) == made
    assert values_that_fit(kind, column(made)) == "all"


@pytest.mark.parametrize(
    "kind",
    [pa.null(), pa.duration("s"), pa.month_day_nano_interval(), pa.list_(pa.duration("s"))],
    ids=str,
)
def test_unsupported_type_has_no_column(kind):
    assert sql_type(kind) is None


@pytest.mark.parametrize(
    ("kind", "there", "fits"),
    [
        (pa.int16(), column("bigint"), "all"),
        (pa.int64(), column("bigint"), "all"),
        (pa.int64(), column("integer"), "none"),
        (pa.int64(), column("numeric"), "all"),
        (pa.int32(), column("numeric(10,0)"), "all"),
        (pa.int32(), column("numeric(9,0)"), "some"),
        (pa.uint64(), column("numeric(20,0)"), "all"),
        (pa.uint64(), column("bigint"), "none"),
        (pa.decimal128(9, 2), column("numeric(9,2)"), "all"),
        (pa.decimal128(10, 2), column("numeric(9,2)"), "some"),
        (pa.decimal128(9, 3), column("numeric(9,2)"), "none"),
        (pa.float32(), column("double precision"), "none"),
        (pa.float64(), column("real"), "none"),
        (pa.string(), column("character varying"), "all"),
        (pa.string(), column("character varying(5)"), "some"),
        (pa.string(), column("character(5)"), "none"),
        (pa.string(), column("uuid"), "some"),
        (pa.string(), column("jsonb"), "some"),
        (pa.string(), column("shop.mood", is_enum=True), "some"),
        (pa.string(), column("point3d"), "none"),
        (pa.string(), column("integer"), "none"),
        (pa.int64(), column("text"), "none"),
        (pa.timestamp("us"), column("timestamp without time zone"), "all"),
        (pa.timestamp("us"), column("timestamp(3) without time zone"), "none"),
        (pa.timestamp("us"), column("timestamp with time zone"), "none"),
        (pa.date32(), column("date"), "all"),
        (pa.list_(pa.int64()), column("json"), "all"),
        (pa.list_(pa.int64()), column("bigint[]"), "none"),
        (pa.int64(), column("bigint", is_domain=True), "some"),
        (pa.int64(), column("integer", is_domain=True), "none"),
    ],
    ids=str,
)
def test_existing_column_holds_all_some_or_no_values(kind, there, fits):
    assert values_that_fit(kind, there) == fits


@pytest.mark.parametrize(
    ("name", "parts", "sql"),
    [
        ("orders", (None, "orders"), '"orders"'),
        ("public.orders", ("public", "orders"), '"public"."orders"'),
        ('we"ird.Or; DROP', ('we"ird', "Or; DROP"), '"we""ird"."Or; DROP"'),
        ("é" * 31, (None, "é" * 31), f'"{"é" * 31}"'),
    ],
)
def test_table_name_is_split_and_quoted(name, parts, sql):
    assert table_name(name) == parts
    assert quoted(*parts) == sql


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "found nothing in the name ''"),
        (".orders", "found nothing"),
        ("public.", "found nothing"),
        ("a.b.c", "found two dots"),
        ("or\0ders", "found NUL"),
        ("é" * 32, "found 64 bytes"),
        ("\ud800", "found half a character"),
        (5, "found int, expected a str"),
    ],
)
def test_invalid_table_name_is_rejected(name, problem):
    with pytest.raises(InvalidSchema, match=problem):
        table_name(name)


def test_column_name_cannot_end_the_inserting_block():
    block = Statements(TABLE, rows_of({"$headrace$": pa.string()})).merge_each(["42"])
    assert block.startswith("DO $xheadrace$DECLARE")
    assert block.endswith("END$xheadrace$")


IDS = pa.schema([("id", pa.int64())])
STATES = {
    # a trigger may raise any state, such as SH013
    "refused": "23505 22001 54000 P0001 44000 SH013 45000 38001",
    "temporary": "99999 58030 XX000 57P01 08006 53100 25006",
    "changed": "22P04 42703 42501 3F000",
    "busy": "55P03 57014 40P01",
}


@pytest.mark.parametrize("means", STATES)
def test_error_is_classified_by_its_state(means):
    for state in STATES[means].split():
        assert verdict(Mock(psycopg.Error, sqlstate=state)) == means, state


def test_error_of_the_client_is_temporary_unless_a_value_is_unreadable():
    assert verdict(psycopg.OperationalError("the connection is lost")) == "temporary"
    assert verdict(psycopg.DataError("timestamp too large")) == "changed"


def test_jdbc_url_is_rejected_without_its_secret():
    with pytest.raises(InvalidTopology, match="PostgresSink: found a JDBC URL, expected") as no:
        PostgresSink("jdbc:postgresql://root:secret@db/shop", "orders", schema=IDS)
    assert "secret" not in str(no.value)


@pytest.mark.parametrize(
    "conninfo", ["postgresql://me:top%secret@db/shop", "password=secret oops", "secret"]
)
def test_invalid_conninfo_is_rejected_without_its_secret(conninfo):
    sink = PostgresSink(conninfo, "orders", schema=IDS)
    with pytest.raises(SinkFailed, match="conninfo cannot be read, expected postgresql://") as no:
        sink.open(SinkContext("pipeline", "sink", {}, Storage(""), None))
    assert "secret" not in f"{no.value!r} {sink!r} {no.value.__cause__!r}"
