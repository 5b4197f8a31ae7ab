from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.keyed_rows import KeyedRows
from topology.errors import InvalidSchema

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("town", pa.string()),
        ("gone", pa.bool_()),
    ]
)
ROWS = KeyedRows("t", SCHEMA, ["id"], "gone")


def row(key, name="x", *, gone=False):
    return {"id": key, "name": name, "town": None, "gone": gone}


def last_of(rows):
    """The last row of each key, of rows that all fit."""
    fitted = ROWS.fit([rows])
    assert not fitted.rejected
    return [
        (each["id"], each["name"], each["gone"]) for each in ROWS.last(fitted.table).to_pylist()
    ]


def test_a_null_that_may_not_be_rejects_its_row_alone():
    fitted = ROWS.fit(
        [
            [row(1), row(None), row(3, None), row(4, None, gone=True)],
            [{"id": "five"}],
            pa.RecordBatch.from_pylist([row(6), row(7, None)], schema=ROWS.loose),
        ]
    )
    assert fitted.table["id"].to_pylist() == [1, 4, 6]
    assert set(fitted.rejected) == {1, 2, 4, 6}
    assert "column 'id': found None" in fitted.rejected[1]
    assert "column 'name': found None; allowed is string, not null" in fitted.rejected[2]
    assert "column 'id': found 'five'" in fitted.rejected[4]


@given(st.lists(st.tuples(st.integers(0, 4), st.text("ab", max_size=1), st.booleans())))
def test_many_rows_come_to_what_a_dictionary_comes_to(given_rows):
    wanted = {key: (key, name, gone) for key, name, gone in given_rows}
    found = last_of([row(key, name, gone=gone) for key, name, gone in given_rows])
    assert sorted(found) == sorted(wanted.values())


BERLIN = timezone(timedelta(hours=1))
KINDS = [
    (pa.int8(), [1, -1]),
    (pa.string(), ["", "é"]),
    (pa.large_string(), ["a", "b"]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
    (pa.binary(), [b"", b"\0"]),
    (pa.date32(), [date(1500, 1, 1), date(9999, 1, 1)]),
    (pa.bool_(), [True, False]),
    (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-1.50")]),
    (
        pa.timestamp("ns", "Europe/Berlin"),
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=BERLIN)],
    ),
    (pa.timestamp("s"), [datetime(2026, 1, 1), datetime(1, 1, 1)]),  # noqa: DTZ001 - no zone
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_keys_of_this_type_are_told_apart(kind, values):
    schema = pa.schema([("k", kind), ("n", pa.int64()), ("other", kind)])
    rows = KeyedRows("t", schema, ["n", "k"], None)
    first, second = values
    table = rows.fit([[{"n": 1, "k": value} for value in (first, second, first)]]).table
    assert rows.last(table)["k"].to_pylist() == table["k"].to_pylist()[1:]


@pytest.mark.parametrize(
    ("key", "deleted", "reason"),
    [
        ([], "gone", r"key is \[\]; allowed are one or more of id, x"),
        (["id", "id"], None, "each once"),
        (["ID"], None, r"key is \['ID'\]; allowed are"),
        (["id", "gone"], "gone", "allowed are one or more of id, x"),
        (["id"], "deleted", "deleted is 'deleted'; allowed is a column of bool"),
        (["id"], "x", "deleted column 'x': found double; allowed is bool"),
    ],
)
def test_a_key_that_cannot_be_is_refused(key, deleted, reason):
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("gone", pa.bool_())])
    with pytest.raises(InvalidSchema, match=f"table 't': .*{reason}"):
        KeyedRows("t", schema, key, deleted)


def test_of_rows_that_only_delete_no_more_than_the_key_matters():
    keyed = KeyedRows("t", pa.schema([("id", pa.int64()), ("gone", pa.bool_())]), ["id"], "gone")
    table = keyed.fit([[{"id": 1, "gone": True}, {"id": 2}, {"id": 3, "gone": False}]]).table
    wrong = dict.fromkeys(range(3), "wrong")
    assert set(keyed.of_those_that_stay(table, wrong)) == {1, 2}
    assert KeyedRows("t", keyed.stored, ["id"], None).of_those_that_stay(table, wrong) == wrong


@pytest.mark.parametrize(("deleted", "expected"), [(None, {0, 1}), ("gone", {0})])
def test_null_of_a_column_that_the_table_has_not_null_is_refused(deleted, expected):
    schema = pa.schema([("number", pa.int64()), ("value", pa.int64()), ("gone", pa.bool_())])
    rows = [{"number": number, "value": None, "gone": number > 0} for number in range(2)]
    keyed = KeyedRows("orders", schema, "number", deleted)
    found = keyed.fit([rows], ["value"])
    assert set(found.rejected) == expected
    assert "column 'value': found None; allowed is int64, not null" in found.rejected[0]
    assert not keyed.fit([rows]).rejected
