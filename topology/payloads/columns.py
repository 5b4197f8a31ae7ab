"""JSON documents as Arrow columns: a whole chunk at once, and without the GIL.

The values are lines of one text (`lines.py` says why no row can become another's), and the
text is parsed by `pyarrow.json`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from topology.bolt import RECORD_COLUMNS, VectorisedBolt
from topology.errors import BoltError, InvalidTopology
from topology.messages import has_line_breaks
from topology.nulls import MisplacedNull, without_misplaced_nulls
from topology.payloads.documents import complaint
from topology.payloads.limits import Limits
from topology.payloads.lines import Screen, Values, own_values
from topology.payloads.nested import all_finite, as_type, with_nulls
from topology.payloads.plain import DEFAULT
from topology.schema import schema_of
from topology.signals import Reject, RejectRows

_VALUE = "value"


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
        self._screen = Screen(limits)
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

    def read(self, values: Values, *, with_breaks: bool = False) -> "list[pa.Array[Any]]":
        """Return the schema's columns. Raises Reject, or RejectRows, whose rows are bad.

        `with_breaks` says that a line break that is not the record's ends each value.
        """
        if not len(values):
            return [pa.array([], field.type) for field in self._schema]
        text = self._screen.lines_of(values, with_breaks=with_breaks)
        try:
            table = _read(text, self._parsing)
        except (pa.ArrowInvalid, ValueError) as error:
            own = own_values(values, with_breaks=with_breaks)
            raise self._reason(own, str(error)) from error
        if table.num_rows != len(values):
            own = own_values(values, with_breaks=with_breaks)
            raise self._reason(own, "more than one document in a value")
        columns = [_flat(table.column(name)) for name in self._schema.names]
        self._check_nulls_and_floats(columns)
        for at in self._nested:
            columns[at] = _nested(columns[at], self._schema.field(at))
        return columns

    def _reason(self, values: list[bytes | None], message: str) -> Reject:
        """Which rows are to blame, if that can be told; else the executor halves the chunk."""
        reasons = {
            place: reason
            for place, value in enumerate(values)
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


def _read(text: pa.Buffer, parsing: "pj.ParseOptions") -> pa.Table:
    """Parse without the GIL, on the calling thread.

    In one block, because a value may hold line breaks, and at a chunk's size Arrow's threads
    cost more than they bring. A block that is much larger than a small text costs time, too.
    """
    source: Any = pa.BufferReader(text)
    return pj.read_json(
        source, pj.ReadOptions(use_threads=False, block_size=text.size + 1), parsing
    )


def _places(mask: Any) -> list[int]:
    places: list[int] = np.flatnonzero(np.array(mask.to_pylist(), np.bool_)).tolist()
    return places


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
        _read(pa.py_buffer(b"{}"), parsing)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise InvalidTopology(f"json_columns: {error}; JSON cannot be read into it") from error
