import pytest

from sinks.spark.sql.names import TableName, checked_name, quoted, table_name
from topology.errors import InvalidSchema


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("orders", TableName(None, "orders")),
        ("public.orders", TableName("public", "orders")),
        ('we"ird.Orders; DROP', TableName('we"ird', "Orders; DROP")),
        ("é" * 31, TableName(None, "é" * 31)),
    ],
)
def test_a_table_is_a_name_or_a_schema_and_a_name(name: str, found: TableName) -> None:
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


def test_a_column_is_refused_by_its_place() -> None:
    with pytest.raises(InvalidSchema, match="table 'orders': column: found nothing in the name ''"):
        checked_name("", "table 'orders': column")


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
    assert TableName("s", name).quoted == f'"s".{sql}'
    assert TableName(None, name).quoted == sql
