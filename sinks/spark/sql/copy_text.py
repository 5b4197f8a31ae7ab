r"""Rows as lines of COPY's text format, some of which can be left out. Pure, but for files.

Not as CSV, where a line of a text may end the input (`\.`, before PostgreSQL 18). The
columns are cast to text and joined by Arrow; only nested ones cost Python per value.
"""

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sinks.spark.sql.columns import is_bytes, is_nested, is_text

_NULL = "\\N"
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NUL_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, from 1970-01-01
_DAY_SECONDS = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_encode = msgspec.json.Encoder(decimal_format="number").encode

Texts: TypeAlias = "pa.Array[Any]"  # large strings
_join: Any = pc.binary_join_element_wise  # its stubs want arrays only, it takes scalars between


class CopyText:
    """The input of a COPY, row by row. Never changed."""

    def __init__(self, array: Texts) -> None:
        """`array` has a line per row, each with its end."""
        self._array = array

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self._array)

    def write(self, path: Path) -> None:
        """Write the rows to a file. Raises OSError."""
        offsets, data = _parts(self._array)
        path.write_bytes(data[int(offsets[0]) : int(offsets[-1])])

    def without(self, places: Collection[int]) -> "CopyText":
        """The other rows, in their order."""
        return CopyText(self._array.filter(_kept(self.num_rows, places))) if places else self


@dataclass(frozen=True, slots=True)
class Encoded:
    """The rows that can be sent, and by place why the others cannot."""

    lines: CopyText
    rejected: dict[int, str]


def encode(
    table: pa.Table,
    *,
    required: Collection[str] = (),
    excused: str | None = None,
    key: Collection[str] = (),
    numbered: bool = False,
) -> Encoded:
    """Turn rows into lines of all columns, in their order.

    A null in a `required` column is refused, unless it is none of the `key` and the row's
    `excused` is true. With `numbered`, a column in front counts the rows from 0.
    """
    rejected: dict[int, str] = {}
    texts: list[Texts] = []
    for name in reversed(table.schema.names):  # the first column's reason is the one that stays
        column = table.column(name)
        if name in required and column.null_count:
            mask = column.is_null()
            if excused is not None and name not in key:
                mask = pc.and_(
                    mask, pc.invert(table.column(excused).fill_null(pa.scalar(value=False)))
                )
            rejected |= dict.fromkeys(_places(mask), f"column '{name}': found null; it may not be")
        array, reasons = _texts(column)
        rejected |= {place: f"column '{name}': {reason}" for place, reason in reasons.items()}
        texts.insert(0, array)
    if numbered:
        texts.insert(0, _as_text(pa.array(np.arange(table.num_rows))))
    lines = CopyText(_joined(texts, "\t"))
    return Encoded(lines.without(rejected), rejected)


def longest(table: pa.Table, names: Collection[str]) -> int:
    """How many bytes the values of these columns have at most, in one row."""
    columns = [table.column(name) for name in names]
    sized = [each for each in columns if is_text(each.type) or is_bytes(each.type)]
    return sum(pc.max(pc.binary_length(each)).as_py() or 0 for each in sized)


def _joined(texts: list[Texts], separator: str) -> Texts:
    """One line per row; there is at least one column."""
    joined: Texts = _join(
        *texts,
        pa.scalar(separator, pa.large_string()),
        null_handling="replace",
        null_replacement=_NULL,
    )
    return _with_end(joined, "\n")


def _with_end(texts: Texts, end: str) -> Texts:
    ends = [pa.scalar(each, pa.large_string()) for each in (end, "")]
    ended: Texts = _join(texts, *ends)
    return ended


def _texts(  # noqa: PLR0911 - one for each family of types
    column: "pa.ChunkedArray[Any]",
) -> tuple[Texts, dict[int, str]]:
    """A column's values as COPY reads them, nulls as nulls; and by place what it does not take."""
    kind = column.type
    if kinds.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if is_text(kind):
        array = column.cast(pa.large_string()).combine_chunks()
        return _escaped(array), dict.fromkeys(_with(array, "\0"), "found NUL in a text")
    if is_bytes(kind):
        return _hexadecimal(column.cast(pa.large_binary()).combine_chunks()), {}
    if is_nested(kind):
        return _documents(column)
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        return _moments(column)
    if kinds.is_time(kind):
        return _as_text(column.cast(pa.time64("us"), safe=False)), {}
    if kinds.is_float16(kind):
        return _as_text(column.cast(pa.float32())), {}
    return _as_text(column), {}


def _as_text(column: "pa.ChunkedArray[Any] | pa.Array[Any]") -> Texts:
    texts = column.cast(pa.string()).cast(pa.large_string())
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts


def _escaped(array: Texts) -> Texts:
    for raw, escape in _ESCAPES.items():
        if _with(array, raw):
            array = pc.replace_substring(array, raw, escape)
    return array


def _hexadecimal(array: "pa.Array[Any]") -> Texts:
    """Bytes as bytea has them, the backslash doubled for COPY."""
    offsets, data = _parts(array)
    digits = data[int(offsets[0]) : int(offsets[-1])].hex().encode()
    begins = (offsets - offsets[0]) * 2
    plain = pa.LargeStringArray.from_buffers(
        len(array), pa.py_buffer(begins.astype(np.int64)), pa.py_buffer(digits)
    )
    prefix, nothing = (pa.scalar(text, pa.large_string()) for text in ("\\\\x", ""))
    texts = _join(prefix, plain, nothing)
    valued: Texts = pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.large_string()))
    return valued


def _moments(column: "pa.ChunkedArray[Any]") -> tuple[Texts, dict[int, str]]:
    """Days and times of day and year, of the years that Python knows, to the microsecond."""
    kind = column.type
    if kinds.is_date32(kind):
        low, high = _FIRST_DAY, _LAST_DAY
        numbers: Any = column.cast(pa.int32())
    else:
        unit = _PER_SECOND["ms" if kinds.is_date(kind) else kind.unit]
        low, high = _FIRST_DAY * _DAY_SECONDS * unit, (_LAST_DAY + 1) * _DAY_SECONDS * unit - 1
        low, high = max(low, -(2**63)), min(high, 2**63 - 1)
        numbers = column.cast(pa.int64())
    outside: Any = pc.or_(pc.less(numbers, pa.scalar(low)), pc.greater(numbers, pa.scalar(high)))
    outside = outside.fill_null(pa.scalar(value=False))
    places = _places(outside)
    if places:
        column = pc.if_else(outside, pa.scalar(None, kind), column)
    reasons = dict.fromkeys(places, "found a time outside of the years 1 to 9999")
    if kinds.is_date(kind):
        return _as_text(column.cast(pa.date32(), safe=False)), reasons
    # As UTC without a zone: Arrow takes ten times as long to write a time that has one.
    plain = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
    texts = _as_text(plain.cast(pa.timestamp("us")))
    return texts if kind.tz is None else _with_end(texts, "Z"), reasons


def _documents(column: "pa.ChunkedArray[Any]") -> tuple[Texts, dict[int, str]]:
    """Lists, maps and structs as JSON."""
    rejected: dict[int, str] = {}

    def documents() -> Iterator[str | None]:
        for place, value in enumerate(column):
            try:
                yield _document(value.as_py(maps_as_pydicts="strict"))
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                rejected[place] = f"found {_cause(error)}; it becomes JSON"
                yield None

    return _escaped(pa.array(documents(), pa.large_string())), rejected


def _document(value: Any) -> str | None:
    if value is None:
        return None
    if _has_no_number(value):
        raise ValueError("NaN or an infinity")
    encoded = _encode(value)
    if _NUL_IN_JSON.search(encoded):
        raise ValueError("NUL in a text")
    return encoded.decode()


def _has_no_number(value: Any) -> bool:
    """Whether a float in it is none that JSON has; msgspec would make it null."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_number, value.keys())) or any(map(_has_no_number, value.values()))
    return isinstance(value, list) and any(map(_has_no_number, value))


def _cause(error: Exception) -> str:
    if isinstance(error, KeyError):
        return "a key of a map twice"
    return str(error)


def _with(array: Texts, part: str) -> list[int]:
    """The places of the texts that have this in them."""
    return _places(pc.match_substring(array, part))


def _places(mask: Any) -> list[int]:
    found: list[int] = pc.indices_nonzero(mask).to_pylist()
    return found


def _kept(num_rows: int, left_out: Collection[int]) -> "pa.BooleanArray":
    mask = np.ones(num_rows, bool)
    mask[list(left_out)] = False
    return pa.array(mask)


def _parts(array: Any) -> tuple["np.ndarray[Any, np.dtype[np.int64]]", memoryview]:
    """Where each value begins and the last ends, and the bytes of all."""
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return np.zeros(len(array) + 1, np.int64), memoryview(b"")
    begins = np.frombuffer(offsets, np.int64, len(array) + 1, 8 * array.offset)
    return begins, memoryview(b"" if data is None else data)
