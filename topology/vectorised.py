"""Vectorised bolts: calls with lineage, and the conversion of messages and values to columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias, cast
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topology.bolt import RECORD_COLUMNS
from topology.calls import Called, Sent, failure_of, hint_for
from topology.errors import BoltError, LineageLost
from topology.record import DEFAULT_STREAM, Message, Record, Reject, RejectRows

PARENT = "__parent"  # the hidden column that carries the lineage through vectorised bolts

_NAMINGS = 3  # RejectRows for one batch, before it is halved

_STRANGE = (
    "bolt '{}' changed the column '{}' of its rows, so their records are unknown. Pass it through"
)
_DROPPED = (
    "bolt '{}' dropped the column '{}' of its rows, so their records are unknown. "
    "Pass unknown columns through, or set row_by_row=True if row i is always made from row i"
)
_MOST_BYTES = 2**31 - 1  # of one binary column
_BREAK = b"\n"
_MARK: dict[bytes | str, bytes | str] = {b"headrace": b"line breaks"}
_KINDS = (pa.binary(), pa.binary(), pa.int32(), pa.int64(), pa.int64())
_FIELDS = {name: pa.field(name, kind) for name, kind in zip(RECORD_COLUMNS, _KINDS, strict=True)}
_AS_LINES = {"value": _FIELDS["value"].with_metadata(_MARK)}


def columns_of(
    messages: Sequence[Message], wanted: Sequence[str], *, line_breaks: bool = False
) -> pa.RecordBatch:
    """Convert messages to some of RECORD_COLUMNS.

    With `line_breaks` each value ends with a line break that is not the record's, and its field
    is marked (`has_line_breaks`): for a bolt that parses the values as lines without a copy.
    """
    kind = type(messages[0]) if messages else Message
    count = len(messages)
    makers: dict[str, Callable[[], pa.Array[Any]]] = {
        "key": lambda: _binary(list(map(kind.key, messages))),
        "value": lambda: _binary(list(map(kind.value, messages)), _BREAK if line_breaks else b""),
        "partition": lambda: pa.array(np.fromiter(map(kind.partition, messages), np.int32, count)),
        "offset": lambda: pa.array(np.fromiter(map(kind.offset, messages), np.int64, count)),
        "timestamp_ms": lambda: pa.array(
            np.fromiter(map(itemgetter(1), map(kind.timestamp, messages)), np.int64, count)
        ),
    }
    fields = _FIELDS | _AS_LINES if line_breaks else _FIELDS
    schema = pa.schema([fields[name] for name in wanted])
    return pa.RecordBatch.from_arrays([makers[name]() for name in wanted], schema=schema)


def has_line_breaks(field: "pa.Field[Any]") -> bool:
    """Whether each value of the column ends with a line break that is not the record's."""
    return _MARK.items() <= (field.metadata or {}).items()


def _binary(values: list[bytes | None], ending: bytes = b"") -> "pa.Array[Any]":
    """Convert bytes to a column; without nulls from buffers, in half of the time."""
    try:
        data = ending.join(cast("list[bytes]", [*values, b""]))
    except TypeError:  # there is a null
        data = None
    if data is None or len(data) > _MOST_BYTES:
        ended = [None if value is None else value + ending for value in values]
        return pa.array(ended, pa.binary())
    offsets = np.zeros(len(values) + 1, np.int32)
    sizes = np.fromiter(map(len, cast("list[bytes]", values)), np.int32, len(values))
    np.cumsum(sizes + len(ending), dtype=np.int32, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def call_columns(
    step: str,
    function: Callable[[pa.RecordBatch], Any],
    batch: pa.RecordBatch,
    *,
    row_by_row: bool = False,
) -> Called:
    """Call a vectorised bolt; when it raises, halve the batch until the bad rows are alone.

    After RejectRows it is called again without the named rows instead. With `row_by_row` it may
    return a batch without the lineage.
    """
    return _BatchCaller(step, function, row_by_row).call(batch, _NAMINGS)


@dataclass(frozen=True, slots=True)
class _BatchCaller:
    step: str
    function: Callable[[pa.RecordBatch], Any]
    row_by_row: bool

    def call(self, batch: pa.RecordBatch, namings: int) -> Called:
        """Call the bolt; accept RejectRows `namings` times, then halve the batch."""
        parent = PARENT
        while parent in batch.schema.names:  # a record may have a member of that name
            parent += "_"
        tagged = batch.append_column(parent, pa.array(np.arange(batch.num_rows)))
        try:
            out = self.function(tagged)
        except RejectRows as rejected:
            # A bolt that names only its first bad row must not be called once per row.
            if not namings:
                return self._halves(batch)
            return self._without(batch, rejected.reasons, namings - 1)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # a user's code may raise anything
            if batch.num_rows <= 1:
                return Called({}, {0: failure_of(self.step, error)})
            return self._halves(batch)
        tables = out if isinstance(out, Mapping) else {DEFAULT_STREAM: out}
        try:
            sent = {
                stream: self._with_lineage(parent, table, batch.num_rows)
                for stream, table in tables.items()
            }
        except BoltError as error:
            return _failed(batch, error)
        return Called(sent, {})

    def _without(self, batch: pa.RecordBatch, reasons: Mapping[int, str], namings: int) -> Called:
        """Call the bolt again without the rejected rows."""
        count = batch.num_rows
        bad: dict[int, Exception] = {
            index: Reject(reason) for index, reason in reasons.items() if 0 <= index < count
        }
        if not bad or len(bad) < len(reasons):
            message = f"bolt '{self.step}' rejected the rows {list(reasons)} of {count}"
            return _failed(batch, BoltError(message))
        good: npt.NDArray[np.int64] = np.delete(np.arange(count), list(bad))
        if not len(good):
            return Called({}, bad)
        rest = self.call(batch.take(good), namings)
        bad.update({int(good[index]): error for index, error in rest.failures.items()})
        sent = {
            stream: Sent(each.piece, good if each.parents is None else good[each.parents])
            for stream, each in rest.sent.items()
        }
        return Called(sent, bad)

    def _halves(self, batch: pa.RecordBatch) -> Called:
        middle = batch.num_rows // 2
        left = self.call(batch.slice(0, middle), _NAMINGS)
        right = self.call(batch.slice(middle), _NAMINGS)
        failures = dict(left.failures)
        failures.update({middle + index: error for index, error in right.failures.items()})
        try:
            sent = {
                stream: _joined(left.sent.get(stream), right.sent.get(stream), middle)
                for stream in {**left.sent, **right.sent}
            }
        except pa.ArrowException as error:
            broken = BoltError(f"bolt '{self.step}' returned different columns per row: {error}")
            return _failed(batch, broken)
        return Called(sent, failures)

    def _with_lineage(self, parent: str, out: Any, num_rows: int) -> Sent:
        step = self.step
        if not isinstance(out, pa.RecordBatch):
            kind = type(out).__name__
            raise BoltError(f"bolt '{step}' returned {kind}, expected a pyarrow.RecordBatch")
        index = out.schema.get_field_index(parent)
        if index >= 0:
            column = out.column(index)
            if column.null_count or not pa.types.is_int64(column.type):
                raise LineageLost(_STRANGE.format(step, parent))
            parents = column.to_numpy()
            if len(parents) and not (parents.min() >= 0 and parents.max() < num_rows):
                raise LineageLost(_STRANGE.format(step, parent))
            return Sent(out.remove_column(index), parents)
        if not self.row_by_row:
            raise LineageLost(_DROPPED.format(step, parent))
        if out.num_rows != num_rows:
            raise LineageLost(
                f"bolt '{step}' has row_by_row=True: found {out.num_rows} rows, expected {num_rows}"
            )
        return Sent(out, None)


def _failed(batch: pa.RecordBatch, error: Exception) -> Called:
    return Called({}, dict.fromkeys(range(batch.num_rows), error))


def _joined(left: Sent | None, right: Sent | None, middle: int) -> Sent:
    """Join one stream of two halves. Raises ArrowException if their columns differ."""
    tables: list[pa.Table] = []
    parents: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    for half, start in ((left, 0), (right, middle)):
        if half is not None and len(half.piece):
            tables.append(pa.Table.from_batches([cast("pa.RecordBatch", half.piece)]))
            indices = np.arange(len(half.piece)) if half.parents is None else half.parents
            parents.append(indices + start)
    if not tables:
        return Sent([], parents[0])
    table = pa.concat_tables(tables, promote_options="permissive")
    return Sent(table.combine_chunks().to_batches()[0], np.concatenate(parents))


Row: TypeAlias = dict[str, Any]

_MOST_CELLS = 1_000_000  # of a batch of several rows
_KEPT_AS_THEY_ARE = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)


@dataclass(frozen=True, slots=True)
class Columns:
    """Values as columns."""

    batches: list[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]  # and the indices of their values
    refused: dict[int, str]  # reasons by index


def as_row(value: Any) -> Row | None:
    """Convert a mapping, dataclass, Struct or pydantic model (but no Record) to a dictionary."""
    if type(value) is dict:
        return value
    if isinstance(value, Record):
        return None
    try:
        if isinstance(value, Mapping):
            return dict(value)
        if hasattr(value, "model_dump"):  # pydantic's
            built = value.model_dump()
        else:
            built = msgspec.to_builtins(value, builtin_types=_KEPT_AS_THEY_ARE)
    except Exception:  # noqa: BLE001 - a user's value may raise anything
        return None
    return built if isinstance(built, dict) else None


def values_of(rows: Sequence[Row], name: str) -> list[Any]:
    """Return the values of one column; None where a row has none."""
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:
        return [row.get(name) for row in rows]


def cause_of(error: Exception) -> str:
    """Return why a value fits no column; empty for pyarrow's own errors."""
    if isinstance(error, OverflowError):
        return "a whole number is out of range"
    if isinstance(error, UnicodeError):
        return "half of a surrogate pair" if isinstance(error, UnicodeEncodeError) else "no UTF-8"
    return "" if isinstance(error, pa.ArrowException) else str(error) or type(error).__name__


def columns_of_values(values: Sequence[Any]) -> Columns:
    """Convert values to the columns of all their names, null where a value lacks one.

    Values of incompatible types get separate batches. A batch has at most a million cells, unless
    one value alone has more.
    """
    columns = Columns([], {})
    rows, indices = list(values), np.arange(len(values))
    if set(map(type, rows)) != {dict}:
        made = list(map(as_row, values))
        indices = np.flatnonzero([row is not None for row in made])
        rows = [row for row in made if row is not None]
        for index, row in enumerate(made):
            if row is None:
                expected = "expected a mapping, a dataclass or a msgspec.Struct"
                columns.refused[index] = f"{expected}{hint_for(values[index])}"
    if rows:
        _add(columns, rows, indices)
    return columns


def _add(columns: Columns, rows: list[Row], indices: npt.NDArray[np.int64]) -> None:
    try:
        columns.batches.append((_batch(rows), indices))
    except Exception as error:  # noqa: BLE001 - Arrow raises what the value's own code raises
        if len(rows) == 1:
            columns.refused[int(indices[0])] = str(error)
            return
        middle = len(rows) // 2
        _add(columns, rows[:middle], indices[:middle])
        _add(columns, rows[middle:], indices[middle:])


def _batch(rows: list[Row]) -> pa.RecordBatch:
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    if not names:
        raise ValueError("it is empty")  # a batch without columns has no rows
    if len(rows) > 1 and len(rows) * len(names) > _MOST_CELLS:
        # One row with thousands of members must not widen all others: each half is tried.
        raise ValueError("too many cells")
    arrays = [_array(name, values_of(rows, name)) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names)


def _array(name: str, values: list[Any]) -> "pa.Array[Any]":
    array: pa.Array[Any]
    try:
        array = pa.array(values)
    except (OverflowError, UnicodeError) as error:
        if len(values) > 1 or type(values[0]) is not int or not 0 <= values[0] < 2**64:
            raise ValueError(f"`{name}`: {cause_of(error)}") from error
        array = pa.array(values, pa.uint64())  # alone, so that the others keep their type
    if pa.types.is_floating(array.type) and bool in set(map(type, values)):
        raise ValueError("a bool is no number")  # pyarrow makes 1.0 of True among floats
    return array
