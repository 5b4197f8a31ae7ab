"""JSON documents as Arrow columns: a whole chunk at once, and without the GIL.

The values are lines of one text that `pyarrow.json` parses. A chunk that it refuses, or that fails
a check, is read again by `json` of the same type, record by record, and written anew for Arrow.

Each row that is parsed must be the record it came from, so no value may become two rows, or
none. It cannot: each value begins with `{` and ends with `}`, and a line break stands behind
it. In a string a line break is an error, and outside of one `}`, white space, `{` is an error
within a document. So where a value ends, a document ends; each value holds one at least, and
if there are as many rows as values, each holds exactly one. Line breaks within a value are
white space like any other, as long as the text is parsed as a whole and not in blocks of lines.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from topology.bolt import RECORD_COLUMNS, VectorisedBolt
from topology.errors import BoltError, InvalidTopology, expect
from topology.payloads.documents import DEFAULT, Limits, json
from topology.record import Record, Reject, RejectRows
from topology.schema import schema_of, with_nulls
from topology.values import without_misplaced_nulls
from topology.vectorised import has_line_breaks

Values: TypeAlias = "pa.Array[Any]"  # of type binary
_OPENING, _CLOSING, _ARRAY, _BREAK = b"{}[\n"
_N, _I, _F = b"NIf"
_LAST_ASCII = 0x7F
_FOLDED = 0xDF  # what `{` and `[` have in common, and no other byte has: `{` & 0xDF is `[`
_BLOCK = 1 << 17  # bytes; arrays of larger ones are new pages each time
_BEFORE_VALUE = np.isin(np.arange(256), list(b":,[- \t\n\r"))


def lines_of(values: Values, limits: Limits, *, with_breaks: bool) -> pa.Buffer | None:
    """Return the values as lines, or None if one of them needs an exact check.

    Most calls run without the GIL. With `with_breaks` each value ends with a line break that is
    not the record's; then nothing is copied.
    """
    if values.null_count:
        return None
    count, breaks = len(values), int(with_breaks)
    _, offsets_buffer, data_buffer = values.buffers()
    if offsets_buffer is None or data_buffer is None:
        return None
    offsets = np.frombuffer(memoryview(offsets_buffer), np.int32)
    offsets = offsets[values.offset : values.offset + count + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    begins = offsets[:-1] - first
    ends = offsets[1:] - (first + breaks)
    sizes = ends - begins
    longest = sizes.max()
    if sizes.min() <= 0 or longest > limits.max_bytes:
        return None
    codes = np.frombuffer(memoryview(data_buffer), np.uint8)[first:last]
    if (
        (codes.take(begins) != _OPENING).any()
        or (codes.take(ends - 1) != _CLOSING).any()
        or (breaks and (codes.take(ends) != _BREAK).any())
        or _may_be_deeper(codes, begins, limits.max_depth)
        or _may_hold_a_constant(codes)
        or (longest > limits.max_number_digits and limits.may_hide_a_long_number(codes))
        or (codes.max() > _LAST_ASCII and not _are_utf8(values))
    ):
        return None
    return data_buffer.slice(first, last - first) if breaks else _joined(values)


def _may_be_deeper(codes: Any, begins: Any, max_depth: int) -> bool:
    """Whether a value may be nested deeper; siblings count, too."""
    folded = codes & _FOLDED
    opened = np.equal(folded, _ARRAY, out=folded.view(np.bool_))
    spare = np.count_nonzero(opened) - len(begins)  # each value opens one at least
    if spare < max_depth:
        return False
    return int(np.add.reduceat(opened, begins, dtype=np.int32).max()) > max_depth


def _may_hold_a_constant(codes: "npt.NDArray[np.uint8]") -> bool:
    """Whether NaN or Inf may stand in the text as a value: Arrow accepts them where it skips."""
    for start in range(0, len(codes), _BLOCK):
        part = codes[start : start + _BLOCK + 3]
        is_n = part[1:] == _N
        found = part[1:-2] == _I
        found &= part[3:] == _F
        found |= is_n[:-2] & is_n[2:]
        # np.any costs ten times as much where there is none.
        if np.count_nonzero(found) and _BEFORE_VALUE[part[:-3][found]].any():
            return True
    return False


def _joined(values: Values) -> pa.Buffer:
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    joined: Any = pc.binary_join(whole, b"\n")
    text: pa.Buffer = joined[0].as_buffer()
    return text


def _are_utf8(values: Values) -> bool:
    try:
        values.cast(pa.string())  # copies nothing
    except pa.ArrowInvalid:
        return False
    return True


def as_type(array: Any, kind: pa.DataType) -> "pa.Array[Any]":
    """Put the type right of an array that was read with nulls allowed, without a copy.

    Arrow's own cast refuses nulls above a child that has none.
    """
    if not isinstance(kind, pa.StructType | pa.ListType) or array.type.equals(kind):
        return array  # type: ignore[no-any-return]  # an array of any kind
    if isinstance(kind, pa.StructType):
        children = [as_type(array.field(at), kind.field(at).type) for at in range(kind.num_fields)]
        return pa.Array.from_buffers(
            kind, len(array), array.buffers()[:1], array.null_count, children=children
        )
    values = as_type(array.values, kind.value_type)
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], array.null_count, children=[values]
    )


def all_finite(array: Any) -> bool:
    """Whether no number in an array, at any depth, is NaN or infinite."""
    kind = array.type
    if isinstance(kind, pa.StructType):
        return all(all_finite(column) for column in array.flatten())
    if isinstance(kind, pa.ListType):
        return all_finite(array.flatten())
    if not pa.types.is_floating(kind):
        return True
    return bool(pc.all(pc.is_finite(array), min_count=0).as_py())


_VALUE = "value"


def json_columns(
    schema: type | pa.Schema, *, keep: Sequence[str] = (), limits: Limits = DEFAULT
) -> VectorisedBolt:
    """Make a vectorised bolt that reads each record's value as a row of the schema.

    `schema` is a `pa.Schema`, or a TypedDict, dataclass or msgspec.Struct whose hints give
    it, as for a sink. The bolt gives the schema's columns, then those columns of the record
    that are named in `keep` (some of key, partition, offset, timestamp_ms). The JSON types
    must be the schema's: 1.5 is no int64. Unknown members are ignored; one that is missing or
    null is null if the schema allows that. Any other row is rejected alone, with its reason, as
    `json` of a type does it. `max_exponent` does not apply. Raises InvalidTopology for a schema
    that JSON cannot be read into, and for a column that is named twice.
    """
    schema = schema_of(schema)
    reader = _Reader(schema, limits)
    allowed = [name for name in RECORD_COLUMNS if name != _VALUE]
    for name in keep:
        expect(name in allowed, "json_columns(keep=)", name, f"some of {', '.join(allowed)}")
    twice = sorted({*schema.names} & {*keep})
    if twice or len(set(keep)) < len(keep):
        message = f"json_columns: {', '.join(twice or keep)} would be a column twice"
        raise InvalidTopology(message)

    def json_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
        place = batch.schema.get_field_index(_VALUE)
        field = batch.schema.field(place) if place >= 0 else None
        if field is None or not pa.types.is_binary(field.type):
            raise BoltError(
                f"json_columns reads a binary column '{_VALUE}', as a topic has it; "
                f"found {batch.schema.to_string(truncate_metadata=True)!r}"
            )
        rows = reader.read(batch.column(place), with_breaks=has_line_breaks(field))
        others = [at for at in range(batch.num_columns) if at != place]  # one is the lineage
        fields = [*schema, *(batch.schema.field(at) for at in others)]
        columns = [*rows, *(batch.column(at) for at in others)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    made = VectorisedBolt(json_columns, columns=(_VALUE, *keep), concurrent=True)
    made.line_breaks = True  # type: ignore[misc]  # a function has no class of its own
    return made


class _Reader:
    """Reads values into the columns of one schema. Any number of threads may call it."""

    def __init__(self, schema: pa.Schema, limits: Limits) -> None:
        self._schema = schema
        self._limits = limits
        self._checked = [
            place
            for place, field in enumerate(schema)
            if not field.nullable
            or pa.types.is_nested(field.type)
            or pa.types.is_floating(field.type)
        ]
        self._parsing = _parsing_of(schema)
        _check(self._parsing)
        self._typed: Any = json(_struct_of(schema), limits=limits)

    def read(self, values: Values, *, with_breaks: bool = False) -> "list[pa.Array[Any]]":
        """Return the columns. Raises Reject or RejectRows. For `with_breaks` see `lines_of`."""
        if not len(values):
            return [pa.array([], field.type) for field in self._schema]
        text = lines_of(values, self._limits, with_breaks=with_breaks)
        if text is not None:
            try:
                return self._columns(text, len(values))
            except ValueError:  # which row is to blame Arrow does not say
                pass
        own: list[bytes | None] = values.to_pylist()
        if with_breaks:
            own = [None if value is None else value[:-1] for value in own]
        lines = self._rewritten(own)
        try:
            return self._columns(pa.py_buffer(b"\n".join(lines)), len(lines))
        except ValueError as error:  # the executor halves the chunk
            raise Reject(self._misfit(lines, error)) from error

    def _rewritten(self, values: list[bytes | None]) -> list[bytes]:
        """Return each value as `json` reads it, with the schema's members only."""
        lines: list[bytes] = []
        reasons: dict[int, str] = {}
        for place, value in enumerate(values):
            try:
                lines.append(msgspec.json.encode(self._typed(Record(value, None))))
            except Reject as rejected:
                reasons[place] = rejected.reason
        if reasons:
            raise RejectRows(reasons)
        return lines

    def _columns(self, text: pa.Buffer, count: int) -> "list[pa.Array[Any]]":
        """Parse lines. Raises ValueError unless each is a row of the schema."""
        table = _read(text, self._parsing)
        if table.num_rows != count:
            raise ValueError("more than one document in a value")
        columns = [_flat(table.column(name)) for name in self._schema.names]
        for at in self._checked:
            columns[at] = _checked(columns[at], self._schema.field(at))
        return columns

    def _misfit(self, lines: list[bytes], error: ValueError) -> str:
        """Return which column a single row does not fit."""
        for field in self._schema if len(lines) == 1 else ():
            try:
                found = _read(pa.py_buffer(lines[0]), _parsing_of([field]))
                _checked(_flat(found.column(0)), field)
            except ValueError:
                return f"wrong value at `$.{field.name}`: expected {field.type}"
        return (
            "a row does not fit the schema" if isinstance(error, pa.ArrowException) else str(error)
        )


def _flat(column: Any) -> "pa.Array[Any]":
    array: pa.Array[Any] = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return array


def _checked(array: "pa.Array[Any]", field: "pa.Field[Any]") -> "pa.Array[Any]":
    """Return a column in its own type. Raises ValueError for a misplaced null or a NaN."""
    array = as_type(array, field.type)
    without_misplaced_nulls(array, field)
    if not all_finite(array):
        raise ValueError(f"`{field.name}` holds no finite number")
    return array


def _parsing_of(fields: "Iterable[pa.Field[Any]]") -> "pj.ParseOptions":
    # Of a missing field Arrow would say no name, and it refuses a null above a field that must not
    # be null. So it is told that all may be null, and `as_type` puts the types right.
    lenient = pa.schema([pa.field(field.name, with_nulls(field.type)) for field in fields])
    return pj.ParseOptions(explicit_schema=lenient, unexpected_field_behavior="ignore")


def _read(text: pa.Buffer, parsing: "pj.ParseOptions") -> pa.Table:
    """Parse without the GIL, on the calling thread.

    In one block, because a value may hold line breaks, and at a chunk's size Arrow's threads
    cost more than they bring. A block that is much larger than a small text costs time, too.
    """
    source: Any = pa.BufferReader(text)
    return pj.read_json(
        source, pj.ReadOptions(use_threads=False, block_size=text.size + 1), parsing
    )


def _struct_of(fields: "Iterable[pa.Field[Any]]") -> type[msgspec.Struct]:
    """Return the type of the rows; columns without a JSON type stay raw."""
    members: list[Any] = []
    names: dict[str, str] = {}
    for place, field in enumerate(fields):
        names[f"f{place}"] = field.name
        kind = _python_type(field.type)
        if not field.nullable:
            members.insert(0, (f"f{place}", kind))  # those without a default come first
        elif kind is msgspec.Raw:
            members.append((f"f{place}", kind, msgspec.Raw(b"null")))
        else:
            members.append((f"f{place}", kind | None, None))
    return msgspec.defstruct("Row", members, rename=names)


def _python_type(kind: pa.DataType) -> Any:
    if isinstance(kind, pa.StructType):
        return _struct_of(kind)
    if isinstance(kind, pa.ListType):
        part = _python_type(kind.value_type)
        if part is not msgspec.Raw and kind.value_field.nullable:
            part = part | None
        return list[part]  # type: ignore[valid-type]
    if pa.types.is_signed_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    for test, python in (
        (pa.types.is_unsigned_integer, Annotated[int, msgspec.Meta(ge=0)]),
        (pa.types.is_floating, float),
        (pa.types.is_boolean, bool),
        (pa.types.is_string, str),
    ):
        if test(kind):
            return python
    return msgspec.Raw


def _check(parsing: "pj.ParseOptions") -> None:
    """Raise InvalidTopology if JSON cannot be read into the schema."""
    try:
        _read(pa.py_buffer(b"{}"), parsing)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise InvalidTopology(f"json_columns: {error}; JSON cannot be read into it") from error
