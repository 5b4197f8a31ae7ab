r"""Encode rows as the text format of COPY. Pure.

Arrow casts the columns to text and joins them: a seventh of the CPU of psycopg's `write_row`
(ADR 0049). Only bytes and nested columns cost Python per value. Not CSV, where a line of a text
may end the input (`\.`, before PostgreSQL 18).
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sinks.columns import has_no_number

_NULL = "\\N"
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NUL_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_encode = msgspec.json.Encoder(decimal_format="number").encode

Lines: TypeAlias = "pa.Array[Any]"  # large strings; a line per row, with its end
_join: Any = pc.binary_join_element_wise  # its stubs want arrays only, it takes scalars between


def is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def is_bytes(kind: pa.DataType) -> bool:
    is_long = kind in (pa.binary(), pa.large_binary(), pa.binary_view())
    return is_long or kinds.is_fixed_size_binary(kind)


def encode(table: pa.Table) -> tuple[Lines, dict[int, str]]:
    """Encode rows as lines; return the reasons of rows that PostgreSQL cannot hold by index.

    Their times are of the years 1 to 9999, as `columns.fit` has seen to.
    """
    rejected: dict[int, str] = {}
    texts: list[Lines] = []
    for name in reversed(table.schema.names):  # the first column's reason is the one that stays
        array, reasons = _texts(table.column(name))
        rejected |= {index: f"column '{name}': {reason}" for index, reason in reasons.items()}
        texts.insert(0, array)
    tab = pa.scalar("\t", pa.large_string())
    lines = _with_end(_join(*texts, tab, null_handling="replace", null_replacement=_NULL), "\n")
    return without(lines, rejected), rejected


def without(lines: Lines, indexes: Collection[int]) -> Lines:
    """Return all other lines, in their order."""
    if not indexes:
        return lines
    mask = np.ones(len(lines), bool)
    mask[list(indexes)] = False
    return lines.filter(pa.array(mask))


def data_of(lines: Lines) -> memoryview:
    _, offsets, data = lines.buffers()
    if data is None or offsets is None:
        return memoryview(b"")
    ends = memoryview(offsets).cast("q")[lines.offset :]
    return memoryview(data)[ends[0] : ends[len(lines)]]


def longest(table: pa.Table, names: Iterable[str]) -> int:
    """Return the most bytes of texts and bytes that a row may have in these columns."""
    columns = [table.column(name) for name in names]
    sized = [each for each in columns if is_text(each.type) or is_bytes(each.type)]
    return sum(pc.max(pc.binary_length(each)).as_py() or 0 for each in sized)


def _texts(  # noqa: PLR0911 - one for each family of types
    column: "pa.ChunkedArray[Any]",
) -> tuple[Lines, dict[int, str]]:
    kind = column.type
    if kinds.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if is_text(kind):
        array = column.cast(pa.large_string()).combine_chunks()
        return _escaped(array), dict.fromkeys(_with(array, "\0"), "found NUL in a text")
    if is_bytes(kind):
        values = (None if value is None else f"\\\\x{value.hex()}" for value in column.to_pylist())
        return pa.array(values, pa.large_string()), {}
    if kinds.is_nested(kind):
        return _documents(column)
    if kinds.is_date(kind):
        return _as_text(column.cast(pa.date32(), safe=False)), {}
    if kinds.is_timestamp(kind):
        # As UTC without a zone: Arrow takes ten times as long to write a time that has one.
        plain = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        texts = _as_text(plain.cast(pa.timestamp("us")))
        return texts if kind.tz is None else _with_end(texts, "Z"), {}
    if kinds.is_time(kind):
        return _as_text(column.cast(pa.time64("us"), safe=False)), {}
    if kinds.is_float16(kind):
        return _as_text(column.cast(pa.float32())), {}
    return _as_text(column), {}


def _as_text(column: "pa.ChunkedArray[Any]") -> Lines:
    return column.cast(pa.string()).cast(pa.large_string()).combine_chunks()


def _with_end(texts: Lines, end: str) -> Lines:
    ended: Lines = _join(texts, *(pa.scalar(each, pa.large_string()) for each in (end, "")))
    return ended


def _escaped(array: Lines) -> Lines:
    for raw, escape in _ESCAPES.items():
        if _with(array, raw):
            array = pc.replace_substring(array, raw, escape)
    return array


def _documents(column: "pa.ChunkedArray[Any]") -> tuple[Lines, dict[int, str]]:
    rejected: dict[int, str] = {}

    def documents() -> Iterator[str | None]:
        for index, value in enumerate(column):
            try:
                yield _document(value.as_py(maps_as_pydicts="strict"))
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                cause = "a key of a map twice" if isinstance(error, KeyError) else str(error)
                rejected[index] = f"found {cause}, which JSON has not"
                yield None

    return _escaped(pa.array(documents(), pa.large_string())), rejected


def _document(value: Any) -> str | None:
    if value is None:
        return None
    if has_no_number(value):
        raise ValueError("NaN or an infinity")
    encoded = _encode(value)
    if _NUL_IN_JSON.search(encoded):
        raise ValueError("NUL in a text")
    return encoded.decode()


def _with(array: Lines, part: str) -> list[int]:
    mask: Any = pc.match_substring(array, part)
    return [*pc.indices_nonzero(mask).to_numpy().tolist()]
