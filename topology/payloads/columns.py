"""JSON documents as Arrow columns: a whole chunk at once, and without the GIL.

The values are lines of one text (`lines.py` says why no row can become another's), and the
text is parsed by `pyarrow.json`. A chunk that it refuses, or that needs a closer look, is read
again by `json` of the same type, record by record, and written anew for Arrow.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.json as pj

from topology.bolt import RECORD_COLUMNS, VectorisedBolt
from topology.errors import BoltError, InvalidTopology
from topology.payloads.documents import json
from topology.payloads.limits import Limits
from topology.payloads.lines import Values, lines_of, own_values
from topology.payloads.nested import all_finite, as_type, with_nulls
from topology.payloads.plain import DEFAULT
from topology.record import Record, Reject, RejectRows
from topology.schema import schema_of
from topology.values import without_misplaced_nulls
from topology.vectorised import has_line_breaks

_VALUE = "value"


def json_columns(
    schema: type | pa.Schema, *, keep: Sequence[str] = (), limits: Limits = DEFAULT
) -> VectorisedBolt:
    """Make a vectorised bolt that reads each record's value as a row of the schema.

    `schema` is a `pa.Schema`, or a TypedDict, dataclass or msgspec.Struct whose hints give
    it, as for a sink. The bolt gives the schema's columns, then those columns of the record
    that are named in `keep` (some of key, partition, offset, timestamp_ms). The JSON types
    must be the schema's: 1.5 is no int64. Members the schema does not name are passed over;
    one that is missing or null is null if the schema allows that. Any other row is rejected
    with its reason, as `json` of a type does it, and its neighbours go on. `max_exponent` has
    no part in it. Raises InvalidTopology for a schema that JSON cannot be read into, and for a
    column that is named twice.
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
        """Return the schema's columns. Raises Reject, or RejectRows, whose rows are bad.

        `with_breaks` says that a line break that is not the record's ends each value.
        """
        if not len(values):
            return [pa.array([], field.type) for field in self._schema]
        text = lines_of(values, self._limits, with_breaks=with_breaks)
        if text is not None:
            try:
                return self._columns(text, len(values))
            except ValueError:  # which row is to blame Arrow does not say
                pass
        lines = self._rewritten(own_values(values, with_breaks=with_breaks))
        try:
            return self._columns(pa.py_buffer(b"\n".join(lines)), len(lines))
        except ValueError as error:  # the executor halves the chunk
            raise Reject(self._misfit(lines, error)) from error

    def _rewritten(self, values: list[bytes | None]) -> list[bytes]:
        """Return each value as `json` reads it, with nothing but the schema's members."""
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
    """Return a column in its own type. Raises ValueError for a null that may not be, and NaN."""
    array = as_type(array, field.type)
    without_misplaced_nulls(array, field)
    if not all_finite(array):
        raise ValueError(f"`{field.name}` holds no finite number")
    return array


def _parsing_of(fields: "Iterable[pa.Field[Any]]") -> "pj.ParseOptions":
    # Of a missing field Arrow would say no name, so it is told that all may be missing.
    lenient = pa.schema(list(map(with_nulls, fields)))
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
    """Return the type whose values are the rows; what is no JSON type stands in it as it is."""
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
        return list[part if part is msgspec.Raw or not kind.value_field.nullable else part | None]  # type: ignore[misc]
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
