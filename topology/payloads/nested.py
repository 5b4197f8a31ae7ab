"""Nested columns: read leniently, given their own types, and looked through.

Arrow's JSON parser refuses a null above what must not be null. So it is told that everything
may be null, at any depth, and the types are put right behind it.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def with_nulls(field: "pa.Field[Any]") -> "pa.Field[Any]":
    """The field, but it and all that is within it may be null."""
    kind = field.type
    if isinstance(kind, pa.StructType):
        kind = pa.struct([with_nulls(kind.field(at)) for at in range(kind.num_fields)])
    elif isinstance(kind, pa.ListType):
        kind = pa.list_(with_nulls(kind.value_field))
    return pa.field(field.name, kind, nullable=True)


def as_type(array: Any, kind: pa.DataType) -> "pa.Array[Any]":
    """An array that was read `with_nulls` as one of the type; nothing is copied.

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
