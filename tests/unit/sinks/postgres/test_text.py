"""Rows as the text that COPY reads, decoded by the rules of PostgreSQL's manual."""

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.postgres.text import data_of, encode, longest, without

_UNESCAPED = {"\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\t": "\t"}


def decoded(lines):
    text = bytes(data_of(lines)).decode()
    assert text.endswith("\n") or not text
    return [[_value(each) for each in line.split("\t")] for line in text.split("\n")[:-1]]


def _value(text):
    if text == "\\N":
        return None
    found, place = "", 0
    while place < len(text):
        length = 2 if text[place] == "\\" else 1
        part = text[place : place + length]
        found += _UNESCAPED.get(part, part)
        assert length == 1 or part in _UNESCAPED
        place += length
    return found


def one(kind, *values):
    return pa.table({"x": pa.array(values, kind)})


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.bool_(), True, "true"),
        (pa.uint64(), 2**64 - 1, str(2**64 - 1)),
        (pa.float16(), 0.5, "0.5"),
        (pa.float32(), 0.1, "0.1"),
        (pa.float64(), 0.1, "0.1"),
        (pa.float64(), math.nan, "nan"),
        (pa.float64(), -math.inf, "-inf"),
        (pa.decimal128(38, 18), Decimal("-12345678901234567890.123456789012345678"),
         "-12345678901234567890.123456789012345678"),
        (pa.string(), "", ""),
        (pa.string(), "\\N", "\\N"),
        (pa.string(), 'a\t"b"\n\\.\nc\r\\', 'a\t"b"\n\\.\nc\r\\'),
        (pa.dictionary(pa.int32(), pa.large_string()), "é", "é"),
        (pa.binary(), b"\x00\\\xff", "\\x005cff"),
        (pa.binary(), b"", "\\x"),
        (pa.binary(2), b"ab", "\\x6162"),
        (pa.date32(), date(1, 1, 1), "0001-01-01"),
        (pa.date64(), date(9999, 12, 31), "9999-12-31"),
        (pa.timestamp("us"), datetime(2026, 1, 2, 3, 4, 5, 678_901),  # noqa: DTZ001
         "2026-01-02 03:04:05.678901"),
        (pa.timestamp("s", tz="Europe/Berlin"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
         "2026-01-02 03:04:05.000000Z"),
        (pa.timestamp("us", tz="UTC"), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
         "9999-12-31 23:59:59.999999Z"),
        (pa.timestamp("ns"), 1_999, "1970-01-01 00:00:00.000001"),
        (pa.time64("us"), time(23, 59, 59, 999_999), "23:59:59.999999"),
        (pa.time32("s"), time(1, 2, 3), "01:02:03.000000"),
        (pa.list_(pa.string()), ["a\n", None, "\\"], '["a\\n",null,"\\\\"]'),
        (pa.map_(pa.string(), pa.decimal128(5, 2)), {"k": Decimal("1.50")}, '{"k":1.50}'),
        (pa.struct([("a", pa.date32()), ("b", pa.binary())]), {"a": date(2026, 1, 2), "b": b"\0"},
         '{"a":"2026-01-02","b":"AA=="}'),
    ],
    ids=str,
)  # fmt: skip
def test_values_are_encoded_for_copy(kind, value, text):
    lines, rejected = encode(one(kind, value, None, value))
    assert rejected == {}
    assert decoded(lines) == [[text], [None], [text]]


@pytest.mark.parametrize(
    ("kind", "good", "bad", "says"),
    [
        (pa.string(), "a", "a\0b", "found NUL in a text"),
        (pa.list_(pa.float64()), [1.0], [math.nan], "found NaN or an infinity, which JSON"),
        (pa.list_(pa.string()), ["\\u0000"], ["\0"], "found NUL in a text"),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)], [("a", 1), ("a", 2)], "a key of a map twi"),
    ],
    ids=str,
)
def test_invalid_value_rejects_its_row_alone(kind, good, bad, says):
    table = one(kind, good, bad, None, good).append_column("n", pa.array(range(4)))
    lines, rejected = encode(table)
    assert list(rejected) == [1]
    assert rejected[1].startswith("column 'x': ")
    assert says in rejected[1]
    assert [row[1] for row in decoded(lines)] == ["0", "2", "3"]


def test_rows_can_be_left_out():
    chunked = pa.concat_tables(
        [one(pa.string(), "a", "b"), one(pa.string()), one(pa.string(), "é")]
    )
    lines, _ = encode(chunked)
    assert decoded(lines) == [["a"], ["b"], ["é"]]
    assert decoded(without(lines, {0, 1})) == [["é"]]
    assert decoded(without(lines, {0, 1, 2})) == []
    assert encode(pa.schema({"x": pa.string(), "y": pa.binary()}).empty_table())[1] == {}


texts = st.text(
    alphabet=st.one_of(st.sampled_from("\\\n\r\tN.'\","), st.characters(codec="utf-8")), max_size=8
)


@given(st.lists(st.tuples(st.none() | texts, st.none() | st.binary(max_size=5))))
def test_any_text_and_bytes_are_encoded(rows):
    table = pa.table(
        {
            "t": pa.array([text for text, _ in rows], pa.string()),
            "b": pa.array([data for _, data in rows], pa.binary()),
        }
    )
    lines, rejected = encode(table)
    assert set(rejected) == {n for n, (text, _) in enumerate(rows) if "\0" in (text or "")}
    assert decoded(lines) == [
        [text, None if data is None else f"\\x{data.hex()}"]
        for text, data in rows
        if "\0" not in (text or "")
    ]


def test_longest_values_are_counted_in_bytes():
    table = pa.table({"a": ["é", None], "b": [b"123", b""], "n": [1, 2]})
    assert longest(table, ["a", "b", "n"]) == 5
    assert longest(table, []) == 0
    assert longest(table.slice(0, 0), ["a"]) == 0
