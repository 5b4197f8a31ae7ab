"""What is known of a table and its rows before anything is sent."""

import re
from dataclasses import replace

import pyarrow as pa
import pytest

from sinks.postgres.table import (
    Column,
    Facts,
    Index,
    Wanted,
    quoted,
    room_for,
    sql_type,
    table_name,
    wanted_of,
)
from topology.errors import InvalidSchema


def column(shown: str, name: str = "x", **more: bool) -> Column:
    return Column(name, re.sub(r"\(.*?\)", "", shown), shown, **more)


SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "gone": pa.bool_()})
ROWS = Wanted(SCHEMA.remove(2))
BY_KEY = Wanted(SCHEMA, ("id",), "gone")
PRIMARY = Index("orders_pkey", True, True, True, ["id"])  # noqa: FBT003
FACTS = Facts(
    oid=1,
    shape="",
    schema="public",
    name="orders",
    kind="r",
    persistence="p",
    columns=[
        column("bigint", "id", nullable=False),
        column("text", "name"),
        column("timestamptz", "at", nullable=False, filled=True),
    ],
    constraints=[],
    triggers=[],
    indexes=[],
)


def test_an_ordinary_table_takes_what_we_can_tell() -> None:
    assert list(FACTS.complaints(ROWS)) == []
    assert FACTS.trial_reason(ROWS) is None
    assert FACTS.required(ROWS) == {"id", "at"}
    assert FACTS.new_columns(ROWS) == []


def test_a_table_with_a_key_of_its_own_takes_rows_by_that_key() -> None:
    facts = replace(FACTS, indexes=[PRIMARY])
    assert list(facts.complaints(BY_KEY)) == []
    assert facts.trial_reason(BY_KEY) is None
    assert facts.trial_reason(ROWS) == "the index orders_pkey is unique"
    assert facts.indexed(BY_KEY) == ["id"]


@pytest.mark.parametrize(
    ("facts", "wanted", "says"),
    [
        (replace(FACTS, kind="v"), ROWS, "it is no table"),
        (replace(FACTS, persistence="u"), ROWS, "UNLOGGED"),
        (replace(FACTS, columns=FACTS.columns[:1]), ROWS, "column 'name' is not in the table"),
        (FACTS, Wanted(pa.schema({"name": pa.string()})), "column 'id' of the table may not be nu"),
        (
            FACTS,
            Wanted(pa.schema({"id": pa.string(), "name": pa.string()})),
            "column 'id': found string; the table has bigint, for which it would be text",
        ),
        (
            replace(
                FACTS,
                columns=[column("bigint", "id", generated=True), *FACTS.columns[1:]],
            ),
            ROWS,
            "column 'id' is filled by the database",
        ),
        (FACTS, BY_KEY, "key is id; the table has no unique index of just these columns"),
        *(
            (replace(FACTS, indexes=[replace(PRIMARY, **{name: value})]), BY_KEY, "key is id")
            for name, value in {
                "is_unique": False,
                "is_plain": False,
                "is_usable": False,
                "columns": ["id", "name"],
            }.items()
        ),
    ],
)
def test_what_keeps_rows_out_is_said_by_column(facts: Facts, wanted: Wanted, says: str) -> None:
    assert any(each.startswith(says) or says in each for each in facts.complaints(wanted))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (replace(FACTS, constraints=["low"]), "the table has the constraint low"),
        (replace(FACTS, triggers=["audit"]), "the table has the trigger audit"),
        (replace(FACTS, kind="p"), "the table is partitioned"),
        (
            replace(FACTS, indexes=[replace(PRIMARY, is_unique=False, is_plain=False)]),
            "the index orders_pkey is of an expression, or of some rows only",
        ),
        (
            replace(FACTS, columns=[*FACTS.columns, column("bigint", "x", generated=True)]),
            "the table has generated columns",
        ),
        (
            replace(
                FACTS,
                columns=[
                    FACTS.columns[0],
                    column("character varying(3)", "name"),
                ],
            ),
            "column 'name' is character varying(3)",
        ),
        (
            replace(FACTS, columns=[FACTS.columns[0], column("text", "name", is_domain=True)]),
            "column 'name' is a domain over text",
        ),
    ],
)
def test_what_only_the_database_can_judge_has_to_be_tried(facts: Facts, says: str) -> None:
    assert list(facts.complaints(ROWS)) == []
    assert facts.trial_reason(ROWS) == says


def test_a_column_that_the_table_lacks_is_new() -> None:
    facts = replace(FACTS, columns=FACTS.columns[:1])
    assert [field.name for field in facts.new_columns(BY_KEY)] == ["name"]


@pytest.mark.parametrize(
    ("key", "deleted", "says"),
    [
        (("id", "x"), None, "key is id, x; allowed are columns, each once, of id, name, gone"),
        (("id", "id"), None, "key is id, id"),
        ((), "gone", "deleted is 'gone'; it needs a key beside it"),
        (("gone",), "gone", "it needs a key beside it"),
        ("id", "name", "deleted is 'name'; allowed is a column of booleans"),
        ("id", "x", "deleted is 'x'; allowed is a column of booleans"),
    ],
)
def test_a_key_and_what_says_deleted_are_columns(
    key: str | tuple[str, ...], deleted: str | None, says: str
) -> None:
    with pytest.raises(InvalidSchema, match=f"table 'orders': .*{says}"):
        wanted_of("orders", SCHEMA, key, deleted)


def test_columns_have_names_and_keys_are_no_lists() -> None:
    with pytest.raises(InvalidSchema, match="table 'orders': column: found nothing"):
        wanted_of("orders", pa.schema({"": pa.int64()}), (), None)
    with pytest.raises(InvalidSchema, match="key column 'x' is nested"):
        wanted_of("orders", pa.schema({"x": pa.list_(pa.int64())}), "x", None)
    assert wanted_of("orders", SCHEMA, "id", "gone") == BY_KEY
    assert [field.name for field in BY_KEY.stored] == ["id", "name"]


BOUND = [
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
]


@pytest.mark.parametrize(("kind", "made"), BOUND, ids=str)
def test_each_type_becomes_one_of_postgresqls(kind: pa.DataType, made: str) -> None:
    assert sql_type(kind) == made


@pytest.mark.parametrize(
    "kind",
    [pa.null(), pa.duration("s"), pa.month_day_nano_interval(), pa.list_(pa.duration("s"))],
    ids=str,
)
def test_a_type_that_postgresql_has_not_is_none(kind: pa.DataType) -> None:
    assert sql_type(kind) is None


@pytest.mark.parametrize(
    ("kind", "there", "room"),
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
def test_a_column_that_is_there_has_room_for_all_values_for_some_or_for_none(
    kind: pa.DataType, there: Column, room: str
) -> None:
    assert room_for(kind, there) == room


@pytest.mark.parametrize(("kind", "made"), BOUND, ids=str)
def test_a_column_that_was_made_for_a_type_has_room_for_it(kind: pa.DataType, made: str) -> None:
    there = column(made)
    assert room_for(kind, there) == "all"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("orders", (None, "orders")),
        ("public.orders", ("public", "orders")),
        ('we"ird.Orders; DROP', ('we"ird', "Orders; DROP")),
        ("é" * 31, (None, "é" * 31)),
    ],
)
def test_a_table_is_a_name_or_a_schema_and_a_name(name: str, found: tuple[str | None, str]) -> None:
    assert table_name(name) == found


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "found nothing in the name ''"),
        (".orders", "found nothing"),
        ("public.", "found nothing"),
        ("a.b.c", "found two dots"),
        ("or\0ders", "found NUL"),
        ("é" * 32, "found 64 bytes"),
        ("\ud800", "found half a character"),
    ],
)
def test_what_postgresql_would_refuse_or_cut_off_is_refused(name: str, says: str) -> None:
    with pytest.raises(InvalidSchema, match=says):
        table_name(name)


@pytest.mark.parametrize(
    ("name", "sql"),
    [
        ("orders", '"orders"'),
        ('"; DROP TABLE x; --', '"""; DROP TABLE x; --"'),
        ("select", '"select"'),
        ("a.b ?", '"a.b ?"'),
    ],
)
def test_a_name_is_quoted_whatever_it_is(name: str, sql: str) -> None:
    assert quoted(name) == sql
    assert quoted("s", name) == f'"s".{sql}'
    assert quoted(None, name) == sql
