"""Rows that PostgreSQL has written with COPY, by the rules of its manual."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.spark.sql.copied import is_exact, read_copied, select_list, unreadable

SCHEMA = pa.schema(
    [
        pa.field("word", pa.string(), nullable=False),
        ("n", pa.int64()),
        ("share", pa.float64()),
        ("sum", pa.decimal128(38, 18)),
        ("seen", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("there", pa.timestamp("ms", tz="Europe/Berlin")),
    ]
)


def read(folder: Path, text: str, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    path = folder / "rows.csv"
    path.write_bytes(text.encode())
    table = read_copied(path, schema)
    assert table.schema.equals(schema)
    return table.to_pylist()


def test_each_type_is_read_as_postgresql_writes_it(tmp_path: Path) -> None:
    rows = read(
        tmp_path,
        "tree,-9223372036854775808,-Infinity,12.500000000000000000,t,0001-01-01,"
        "2026-01-01 12:00:00.5,2026-07-01 12:00:00\n",
    )
    assert rows == [
        {
            "word": "tree",
            "n": -(2**63),
            "share": -float("inf"),
            "sum": Decimal("12.5"),
            "seen": True,
            "day": date(1, 1, 1),
            "at": datetime(2026, 1, 1, 12, 0, 0, 500_000),  # noqa: DTZ001 - it has no zone
            "there": datetime(2026, 7, 1, 12, tzinfo=UTC),
        }
    ]


def test_nothing_is_null_and_nothing_in_quotes_is_an_empty_text(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    assert read(tmp_path, '"",\n,""\n', schema) == [{"a": "", "b": None}, {"a": None, "b": ""}]
    assert read(tmp_path, ",,,,,,,\n") == [dict.fromkeys(SCHEMA.names)]
    assert read(tmp_path, "") == []


@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
            st.none() | st.floats(allow_nan=False),
            st.none() | st.integers(-(2**63), 2**63 - 1),
        ),
        max_size=20,
    )
)
def test_what_was_written_is_read_whatever_is_in_the_texts(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, float | None, int | None]]
) -> None:
    schema = pa.schema([("text", pa.string()), ("x", pa.float64()), ("n", pa.int64())])
    lines = [
        ",".join([_quoted(text), "" if x is None else repr(x), "" if n is None else str(n)])
        for text, x, n in rows
    ]
    folder = tmp_path_factory.mktemp("copied")
    found = read(folder, "".join(f"{line}\n" for line in lines), schema)
    assert [tuple(row.values()) for row in found] == rows


def test_a_row_may_be_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("n", pa.int64())])
    text = "x\n" * 3_000_000
    assert read(tmp_path, f'a,1\n"{text}",2\n', schema)[1] == {"a": text, "n": 2}


def test_columns_are_asked_for_as_what_they_are_read_as_and_times_with_a_zone_in_utc() -> None:
    schema = pa.schema(
        [
            ('a"b', pa.int64()),
            ("sum", pa.decimal128(10, 2)),
            ("on", pa.timestamp("us")),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    assert select_list(schema, "t") == (
        """t."a""b"::bigint, t."sum"::numeric(10,2), t."on"::timestamp without time zone, """
        """t."at" AT TIME ZONE 'UTC'"""
    )


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [("tree,infinity\n", "at", pa.timestamp("us")), ("tree,812.50\n", "n", pa.int64())],
)
def test_a_value_that_cannot_be_read_is_told_by_its_column(
    tmp_path: Path, text: str, name: str, kind: pa.DataType
) -> None:
    schema = pa.schema([("word", pa.string()), (name, kind)])
    with pytest.raises(pa.ArrowInvalid) as raised:
        read(tmp_path, text, schema)
    assert unreadable(raised.value, schema) == f"column '{name}' has a value that is no {kind}"
    assert unreadable(pa.ArrowInvalid("too long"), schema) == "its rows cannot be read: too long"


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.binary(),
        pa.float16(),
        pa.date64(),
        pa.time64("us"),
        pa.timestamp("ns"),
        pa.timestamp("ns", "UTC"),
        pa.decimal256(60, 2),
        pa.decimal128(5, -2),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.int64()),
        pa.duration("s"),
    ],
    ids=str,
)
def test_a_type_is_not_exact_if_a_value_may_come_back_as_another(kind: pa.DataType) -> None:
    assert not is_exact(kind)


@pytest.mark.parametrize("field", list(SCHEMA), ids=str)
def test_the_others_are_exact(field: "pa.Field[Any]") -> None:
    assert is_exact(field.type)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
