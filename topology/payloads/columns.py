"""JSON documents as Arrow columns: a whole chunk at once, and without the GIL.

The values are joined with line breaks and parsed by `pyarrow.json`. Each row must be the
record it came from, so no value may become two rows, or none. It cannot: each value begins
with `{`, ends with `}` and has no line break, and within a document `}`, white space, `{` is
an error. So at each line's end a document ends, each line holds one at least, and if there
are as many rows as lines, each holds exactly one.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from topology.bolt import RECORD_COLUMNS, VectorisedBolt
from topology.errors import BoltError, InvalidTopology
from topology.nulls import MisplacedNull, without_misplaced_nulls
from topology.payloads.documents import complaint
from topology.payloads.limits import Limits
from topology.payloads.nested import all_finite, as_type, with_nulls
from topology.payloads.plain import DEFAULT, NO_VALUE
from topology.schema import schema_of
from topology.signals import Reject, RejectRows

Values: TypeAlias = "pa.Array[Any]"  # of a binary type
_VALUE = "value"
_MUCH_BYTES = 512 * 1024
_OPENING, _CLOSING, _ARRAY, _BREAK = b"{}[\n"


def json_columns(
    schema: type | pa.Schema, *, keep: Sequence[str] = (), limits: Limits = DEFAULT
) -> VectorisedBolt:
    """Make a vectorised bolt that reads each record's value as a row of the schema.

    `schema` is a `pa.Schema`, or a TypedDict, dataclass or msgspec.Struct whose hints give
    it, as for a sink. The bolt gives the schema's columns, then those columns of the record
    that are named in `keep` (some of key, partition, offset, timestamp_ms). The JSON types
    must be the schema's: 1.0 is no int64. Members the schema does not name are passed over;
    one that is missing or null is null if the schema allows that. Any other row is rejected
    with its reason, and its neighbours go on. `max_exponent` has no part in it. Raises
    InvalidTopology for a schema that JSON cannot be read into, and for a column that is named
    twice.
    """
    schema = schema_of(schema)
    reader = _Reader(schema, limits)
    allowed = [name for name in RECORD_COLUMNS if name != _VALUE]
    for name in keep:
        if name not in allowed:
            message = f"json_columns(keep={name!r}): allowed are some of {', '.join(allowed)}"
            raise InvalidTopology(message)
    twice = sorted({*schema.names} & {*keep})
    if twice or len(set(keep)) < len(keep):
        message = f"json_columns: {', '.join(twice or keep)} would be a column twice"
        raise InvalidTopology(message)

    def json_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
        place = batch.schema.get_field_index(_VALUE)
        if place < 0 or not pa.types.is_binary(batch.schema.field(place).type):
            raise BoltError(
                f"json_columns reads a binary column '{_VALUE}', as a topic has it; "
                f"found {batch.schema.to_string(truncate_metadata=True)!r}"
            )
        rows = reader.read(batch.column(place))
        others = [at for at in range(batch.num_columns) if at != place]  # one is the lineage
        fields = [*schema, *(batch.schema.field(at) for at in others)]
        columns = [*rows, *(batch.column(at) for at in others)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    return VectorisedBolt(json_columns, columns=(_VALUE, *keep))


class _Reader:
    """Reads values into the columns of one schema."""

    def __init__(self, schema: pa.Schema, limits: Limits) -> None:
        self._schema = schema
        self._limits = limits
        self._refused = limits.json_screen()
        # Of a missing field Arrow would say no name, so it is told that all may be missing.
        lenient = pa.schema(list(map(with_nulls, schema)))
        self._parsing = pj.ParseOptions(explicit_schema=lenient, unexpected_field_behavior="ignore")
        self._required = [place for place, field in enumerate(schema) if not field.nullable]
        self._nested = [
            place for place, field in enumerate(schema) if pa.types.is_nested(field.type)
        ]
        self._floats = [
            place for place, field in enumerate(schema) if pa.types.is_floating(field.type)
        ]
        _check(self._parsing)
        self._explain = _explainer(schema)

    def read(self, values: Values) -> "list[pa.Array[Any]]":
        """Return the schema's columns. Raises Reject, or RejectRows, whose rows are bad."""
        if not len(values):
            return [pa.array([], field.type) for field in self._schema]
        text = self._screened(values)
        if text is None:
            text = self._looked_at(values)
        columns = self._parsed(text, values)
        self._check_nulls_and_floats(columns)
        for at in self._nested:
            columns[at] = _nested(columns[at], self._schema.field(at))
        return columns

    def _screened(self, values: Values) -> bytes | None:
        """The values as lines if nothing about them needs a closer look, in a few calls."""
        count, limits = len(values), self._limits
        if values.null_count:
            return None
        _, offsets_buffer, data_buffer = values.buffers()
        if offsets_buffer is None or data_buffer is None:
            return None
        offsets = np.frombuffer(memoryview(offsets_buffer), np.int32)
        offsets = offsets[values.offset : values.offset + count + 1]
        starts, ends = offsets[:-1], offsets[1:]
        sizes = ends - starts
        if sizes.min() == 0 or sizes.max() > limits.max_bytes:
            return None
        data = np.frombuffer(memoryview(data_buffer), np.uint8)
        if (data[starts] != _OPENING).any() or (data[ends - 1] != _CLOSING).any():
            return None
        text = _lines(values)
        codes = np.frombuffer(text, np.uint8)  # numpy counts four times as fast as bytes do
        if (
            np.count_nonzero(codes == _BREAK) != count - 1
            or _most_brackets(text, codes, starts) > limits.max_depth
            or limits.may_hide_a_long_number(text)
            or not (text.isascii() or _is_utf8(text))
        ):
            return None
        return text

    def _looked_at(self, values: Values) -> bytes:
        """The values as lines, each looked at. Raises RejectRows."""
        lines: list[bytes] = []
        reasons: dict[int, str] = {}
        for place, value in enumerate(values.to_pylist()):
            try:
                lines.append(self._line_of(value))
            except Reject as rejected:
                reasons[place] = rejected.reason
        if reasons:
            raise RejectRows(reasons)
        return b"\n".join(lines)

    def _line_of(self, value: bytes | None) -> bytes:
        if value is None:
            raise Reject(NO_VALUE)
        if (reason := self._refused(value)) is not None:
            raise Reject(reason)
        if not value.isascii() and not _is_utf8(value):
            raise Reject("no JSON: not UTF-8")
        if value[:1] == b"{" and value[-1:] == b"}" and b"\n" not in value:
            return value
        try:
            line = msgspec.json.format(value, indent=-1)  # without any white space
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise Reject(complaint(error)) from error
        if line[:1] != b"{":
            raise Reject("no JSON object")
        return line

    def _parsed(self, text: bytes, values: Values) -> "list[pa.Array[Any]]":
        try:
            table = _read(text, self._parsing)
        except (pa.ArrowInvalid, ValueError) as error:
            raise self._reason(values, str(error)) from error
        if table.num_rows != len(values):
            raise self._reason(values, "more than one document in a value")
        return [_flat(table.column(name)) for name in self._schema.names]

    def _reason(self, values: Values, message: str) -> Reject:
        """Which rows are to blame, if that can be told; else the executor halves the chunk."""
        reasons = {
            place: reason
            for place, value in enumerate(values.to_pylist())
            if (reason := self._explain(value)) is not None
        }
        if reasons:
            return RejectRows(reasons)
        return Reject(f"no row of the schema: {message.removesuffix(' in row 0')}"[:300])

    def _check_nulls_and_floats(self, columns: "list[pa.Array[Any]]") -> None:
        """Raise RejectRows for nulls where the schema allows none, NaN and infinity."""
        reasons: dict[int, str] = {}
        for at in self._required:
            if columns[at].null_count:
                reason = f"no value for `{self._schema.names[at]}`, which may not be null"
                reasons.update(dict.fromkeys(_places(columns[at].is_null()), reason))
        for at in self._floats:
            odd = pc.invert(pc.is_finite(columns[at]))
            if pc.any(odd).as_py():
                reason = f"`{self._schema.names[at]}` is no finite number"
                reasons.update(dict.fromkeys(_places(odd), reason))
        if reasons:
            raise RejectRows(reasons)


def _lines(values: Values) -> bytes:
    """Join the values with line breaks, in C++."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    joined: Any = pc.binary_join(whole, b"\n")
    text: bytes = joined[0].as_py()
    return text


def _most_brackets(text: bytes, codes: Any, starts: Any) -> int:
    """At least as many brackets as the row with the most of them opens."""
    count = len(starts)
    opened = codes == _OPENING
    if _ARRAY not in text and np.count_nonzero(opened) == count:
        return 1
    opened |= codes == _ARRAY
    begins = starts - starts[0] + np.arange(count)  # in the text, with its line breaks
    return int(np.add.reduceat(opened, begins, dtype=np.int64).max())


def _nested(column: "pa.Array[Any]", field: "pa.Field[Any]") -> "pa.Array[Any]":
    """A nested column in its own type. Raises Reject for a null within that may not be, and NaN."""
    column = as_type(column, field.type)
    try:
        without_misplaced_nulls(column, field)
    except MisplacedNull as null:
        raise Reject(f"no value for `{null.place}`, which may not be null") from null
    if not all_finite(column):
        raise Reject(f"`{field.name}` holds no finite number")
    return column


def _flat(column: Any) -> "pa.Array[Any]":
    array: pa.Array[Any] = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return array


def _read(text: bytes, parsing: "pj.ParseOptions") -> pa.Table:
    """Parse without the GIL: in Arrow's threads, two blocks of whole lines, if it is much."""
    source: Any = pa.BufferReader(text)
    much = len(text) >= _MUCH_BYTES
    size = len(text) // 2 + 1 if much else len(text) + 1
    return pj.read_json(source, pj.ReadOptions(use_threads=much, block_size=size), parsing)


def _places(mask: Any) -> list[int]:
    places: list[int] = np.flatnonzero(np.array(mask.to_pylist(), np.bool_)).tolist()
    return places


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _explainer(schema: pa.Schema) -> Callable[[Any], str | None]:
    """Return a function that says what is wrong with a row, in msgspec's words, or None."""
    fields: list[Any] = []
    for place, field in enumerate(schema):
        kind = _python_type(field.type)
        if field.nullable:
            fields.append((f"f{place}", kind | None if kind is not Any else Any, None))
        else:
            fields.insert(0, (f"f{place}", kind))  # those without a default come first
    names = {f"f{place}": name for place, name in enumerate(schema.names)}
    decode = msgspec.json.Decoder(msgspec.defstruct("Row", fields, rename=names)).decode

    def explain(value: Any) -> str | None:
        try:
            decode(value)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            return complaint(error)
        return None

    return explain


def _python_type(kind: pa.DataType) -> Any:
    for test, python in (
        (pa.types.is_integer, int),
        (pa.types.is_floating, float),
        (pa.types.is_boolean, bool),
        (pa.types.is_string, str),
    ):
        if test(kind):
            return python
    return Any


def _check(parsing: "pj.ParseOptions") -> None:
    """Raise InvalidTopology if JSON cannot be read into the schema."""
    try:
        _read(b"{}", parsing)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise InvalidTopology(f"json_columns: {error}; JSON cannot be read into it") from error
