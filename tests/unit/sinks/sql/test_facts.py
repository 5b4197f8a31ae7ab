from dataclasses import replace

import pyarrow as pa
import pytest

from sinks.spark.sql.columns import Column
from sinks.spark.sql.facts import (
    Facts,
    Index,
    complaints,
    facts_of,
    indexed_columns,
    new_columns,
    required,
    trial_reason,
)
from sinks.spark.sql.wanted import Wanted, wanted_of
from topology.errors import InvalidSchema

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "gone": pa.bool_()})
ROWS = Wanted(SCHEMA.remove(2))
BY_KEY = Wanted(SCHEMA, ("id",), "gone")
PRIMARY = Index("orders_pkey", True, True, True, True, ("id",))  # noqa: FBT003
FACTS = Facts(
    schema="public",
    name="orders",
    kind="r",
    persistence="p",
    columns=(
        Column("id", "bigint", nullable=False),
        Column("name", "text"),
        Column("at", "timestamp with time zone", nullable=False, filled=True),
    ),
    constraints=(),
    triggers=(),
    indexes=(),
)


def test_an_ordinary_table_takes_what_we_can_tell() -> None:
    assert list(complaints(FACTS, ROWS)) == []
    assert trial_reason(FACTS, ROWS) is None
    assert required(FACTS, ROWS) == {"id", "at"}
    assert new_columns(FACTS, ROWS) == []


def test_a_table_with_a_key_of_its_own_takes_rows_by_that_key() -> None:
    facts = replace(FACTS, indexes=(PRIMARY,))
    assert list(complaints(facts, BY_KEY)) == []
    assert trial_reason(facts, BY_KEY) is None
    assert trial_reason(facts, ROWS) == "the index orders_pkey is unique"
    assert indexed_columns(facts, BY_KEY) == ["id"]


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
            replace(FACTS, columns=(Column("id", "bigint", generated=True), *FACTS.columns[1:])),
            ROWS,
            "column 'id' is filled by the database",
        ),
        (FACTS, BY_KEY, "key is id; the table has no unique index of just these columns"),
        *(
            (replace(FACTS, indexes=(replace(PRIMARY, **{name: value}),)), BY_KEY, "key is id")
            for name, value in {
                "is_unique": False,
                "is_plain": False,
                "is_immediate": False,
                "is_valid": False,
                "columns": ("id", "name"),
            }.items()
        ),
    ],
)
def test_what_keeps_rows_out_is_said_by_column(facts: Facts, wanted: Wanted, says: str) -> None:
    assert any(each.startswith(says) or says in each for each in complaints(facts, wanted))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (replace(FACTS, constraints=("low",)), "the table has the constraint low"),
        (replace(FACTS, triggers=("audit",)), "the table has the trigger audit"),
        (replace(FACTS, kind="p"), "the table is partitioned"),
        (
            replace(FACTS, indexes=(replace(PRIMARY, is_unique=False, is_plain=False),)),
            "the index orders_pkey is of an expression, or of some rows only",
        ),
        (
            replace(FACTS, columns=(*FACTS.columns, Column("x", "bigint", generated=True))),
            "the table has generated columns",
        ),
        (
            replace(
                FACTS, columns=(FACTS.columns[0], Column("name", "character varying", length=3))
            ),
            "column 'name' is character varying(3)",
        ),
        (
            replace(FACTS, columns=(FACTS.columns[0], Column("name", "text", is_domain=True))),
            "column 'name' is a domain over text",
        ),
    ],
)
def test_what_only_the_database_can_judge_has_to_be_tried(facts: Facts, says: str) -> None:
    assert list(complaints(facts, ROWS)) == []
    assert trial_reason(facts, ROWS) == says


def test_a_column_that_the_table_lacks_is_new() -> None:
    facts = replace(FACTS, columns=FACTS.columns[:1])
    assert [field.name for field in new_columns(facts, BY_KEY)] == ["name"]


def test_facts_are_read_as_the_catalogue_tells_them() -> None:
    text = (
        '{"schema":"public","name":"orders","kind":"r","persistence":"p",'
        '"columns":[{"name":"id","type":"bigint","udt":"int8","cast":"bigint","is_enum":false,"is_domain":false,'
        '"length":null,"precision":64,"scale":0,"fraction":null,"nullable":false,"filled":false,'
        '"generated":false}],"constraints":[],"triggers":[],"indexes":[{"name":"orders_pkey",'
        '"is_unique":true,"is_plain":true,"is_immediate":true,"is_valid":true,"columns":["id"]}]}'
    )
    facts = facts_of(text)
    assert facts.columns == (
        Column("id", "bigint", udt="int8", cast="bigint", precision=64, scale=0, nullable=False),
    )
    assert facts.indexes == (PRIMARY,)


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
    assert Wanted(pa.schema({"x": pa.duration("s")})).complaints() == [
        "column 'x': found duration[s]; PostgreSQL has no such type"
    ]
