"""What a data file holds, for readers who want to skip it: out of the Parquet footer."""

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from math import isfinite
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sinks.tables.partitioning import can_partition

_JSON = msgspec.json.Encoder(decimal_format="number")
_LONGEST_TEXT = 32  # characters; Delta's readers need no more to skip
_HIGHEST = "\U0010ffff"
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The bounds of a file's columns; a column that is not named is not bounded.

    A bound may be wider than the values, never narrower. Columns within columns have none.
    """

    num_rows: int
    minima: dict[str, Any] = field(default_factory=dict)
    maxima: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)

    def as_delta_json(self) -> str:
        """As the add action of Delta's protocol wants them ("Per-file Statistics")."""
        return _JSON.encode(
            {
                "numRecords": self.num_rows,
                "minValues": {name: _lower(value) for name, value in self.minima.items()},
                "maxValues": {
                    name: upper
                    for name, value in self.maxima.items()
                    if (upper := _upper(value)) is not None
                },
                "nullCount": self.nulls,
            }
        ).decode()


def statistics_of(footer: pq.FileMetaData, schema: pa.Schema) -> Statistics:
    """Read a footer of a file of this schema, as far as it tells (see FileOptions)."""
    found = Statistics(footer.num_rows)
    leaf = 0
    for column in schema:
        width = _leaves(column.type)
        if not pa.types.is_nested(column.type):
            _read(footer, leaf, column, found)
        leaf += width
    return found


def _read(footer: pq.FileMetaData, leaf: int, column: "pa.Field[Any]", into: Statistics) -> None:
    lows: list[Any] = []
    highs: list[Any] = []
    nulls = 0
    counted = True
    bounded = _has_bounds(column.type)
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(leaf)
        said: Any = chunk.statistics
        if said is None or not said.has_null_count:
            counted = bounded = False
            break
        nulls += said.null_count
        if not bounded or said.null_count == chunk.num_values:
            continue
        low, high = _bounds(said) if said.has_min_max else (None, None)
        if low is None or high is None:
            bounded = False
        lows.append(low)
        highs.append(high)
    if counted:
        into.nulls[column.name] = nulls
    if bounded and lows:
        into.minima[column.name] = min(lows)
        into.maxima[column.name] = max(highs)


def _bounds(said: Any) -> tuple[Any, Any]:
    try:
        low, high = said.min, said.max
    except (ValueError, OverflowError):  # a time that Python's datetime has not
        return None, None
    if isinstance(low, float) and not (isfinite(low) and isfinite(high)):
        return None, None  # JSON has no such number
    return low, high


def _has_bounds(kind: pa.DataType) -> bool:
    """Whether Spark skips files by this type's bounds."""
    return can_partition(kind) and not pa.types.is_boolean(kind)


def _leaves(kind: pa.DataType) -> int:
    """How many columns of Parquet a type becomes."""
    if isinstance(kind, pa.StructType):
        return sum(_leaves(kind.field(index).type) for index in range(kind.num_fields))
    if isinstance(kind, pa.MapType):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    if pa.types.is_nested(kind):
        within: Any = kind
        return _leaves(within.value_type)
    return 1


def _lower(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, datetime):
        return _spelled(value.replace(microsecond=value.microsecond // 1000 * 1000))
    return _plain(value)


def _upper(value: Any) -> Any:
    """At least the value; None if there is no such bound."""
    if isinstance(value, str):
        if len(value) <= _LONGEST_TEXT:
            return value
        # Above all that begins so, unless what was cut off begins with the highest itself.
        return None if value[_LONGEST_TEXT] == _HIGHEST else value[:_LONGEST_TEXT] + _HIGHEST
    if isinstance(value, datetime):
        floor = value.replace(microsecond=value.microsecond // 1000 * 1000)
        try:
            return _spelled(floor if floor == value else floor + _MILLISECOND)
        except OverflowError:
            return None
    return _plain(value)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def _spelled(value: datetime) -> str:
    """A time to the millisecond, as Delta's readers expect it; in UTC if it has a zone."""
    zone = "" if value.tzinfo is None else "Z"
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
