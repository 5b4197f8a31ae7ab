"""Nulls where a schema allows none, at any depth (pyarrow converts them without a word)."""

from typing import Any

import pyarrow as pa


class MisplacedNull(ValueError):
    """A null stands where the schema allows none."""

    def __init__(self, place: str) -> None:
        super().__init__(f"{place} is null")
        self.place = place


def misplaced_null(batch: pa.RecordBatch) -> str | None:
    """The first place that holds a null and must not, or None. O(columns) for flat columns."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        place = _find(column, field, field.name)
        if place is not None:
            return place
    return None


def without_misplaced_nulls(array: "pa.Array[Any]", field: "pa.Field[Any]") -> None:
    """Raise MisplacedNull if the array holds a null where the field allows none."""
    place = _find(array, field, field.name)
    if place is not None:
        raise MisplacedNull(place)


def _find(array: Any, field: "pa.Field[Any]", place: str) -> str | None:
    if not field.nullable and array.null_count:
        return place
    for child, values, name in parts_of(array, field.type):
        found = _find(values, child, f"{place}{name}")
        if found is not None:
            return found
    return None


def parts_of(array: Any, kind: pa.DataType) -> list[tuple["pa.Field[Any]", Any, str]]:
    """The arrays one level below an array (not the keys of maps), without what is under a null."""
    if not pa.types.is_nested(kind):
        return []
    array = array.drop_null()
    if isinstance(kind, pa.StructType):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return [(field, array.field(i), f".{field.name}") for i, field in enumerate(fields)]
    if isinstance(kind, pa.MapType):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return [(kind.item_field, array.items.slice(first, last - first), "[]")]
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return [(kind.value_field, array.flatten(), "[]")]
    return []
