"""The columns of rows as Iceberg has them: types, and the ids by which files tell columns.

Schemas of tables are taken and given in the JSON of Iceberg's specification (appendix C). Pure.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from topology.errors import InvalidSchema

Json: TypeAlias = Any
Fields: TypeAlias = Mapping[str, Mapping[str, Any]]  # of a table's columns, by name

_ID = b"PARQUET:field_id"
_NAMES: list[tuple[pa.DataType, str]] = [
    (pa.bool_(), "boolean"),
    (pa.int8(), "int"),
    (pa.int16(), "int"),
    (pa.int32(), "int"),
    (pa.int64(), "long"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.binary(), "binary"),
    (pa.large_binary(), "binary"),
    (pa.date32(), "date"),
]
_MOST_DIGITS = 38
_map: Any = pa.map_  # it takes fields as well as types
_ALLOWED = (
    "bool, int8 to int64, float32, float64, decimal128, text, binary, date32, timestamps, lists, "
    "maps and structs of these, and dictionaries"
)


def table_schema(schema: pa.Schema) -> Json:
    """The schema of a new table for such rows; every column may be null in it.

    Its ids are only placeholders: Iceberg gives its own. Raises InvalidSchema, naming the
    column: Iceberg has no such type, or Spark could not tell two columns apart.
    """
    seen: dict[str, str] = {}
    for name in schema.names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidSchema(alike(name, other))
    ids = itertools.count(1)
    fields = [_optional(field, field.name, ids) for field in schema]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def alike(name: str, other: str) -> str:
    """Why two columns cannot be in one table."""
    return f"columns '{other}' and '{name}' differ in case only; Spark takes them for one"


def fields_of(schema: Json) -> Fields:
    """The columns of a table's schema, by name."""
    return {field["name"]: field for field in schema["fields"]}


def shown(kind: Json) -> str:
    """A type as text: the same for the same types, whatever their ids and fields' order."""
    if isinstance(kind, str):
        return kind.replace(" ", "")
    if kind["type"] == "list":
        return f"list<{shown(kind['element'])}>"
    if kind["type"] == "map":
        return f"map<{shown(kind['key'])}, {shown(kind['value'])}>"
    inner = sorted(f"{field['name']}: {shown(field['type'])}" for field in kind["fields"])
    return f"struct<{', '.join(inner)}>"


def required_places(field: "pa.Field[Any]", kind: Json, place: str, *, required: bool) -> list[str]:
    """Where the table allows no null and the rows do; their types are the same otherwise."""
    found = [place] if required and field.nullable else []
    for inner, inner_kind, inner_required, name in _parts(field.type, kind):
        found += required_places(inner, inner_kind, f"{place}{name}", required=inner_required)
    return found


def tied(schema: pa.Schema, fields: Fields) -> pa.Schema:
    """The same schema, with the ids that the table has for its columns, at any depth.

    pyarrow writes them into a Parquet file, where Iceberg's readers find a column by its id.
    """
    return pa.schema(
        [_tied(field, fields[field.name]["id"], fields[field.name]["type"]) for field in schema]
    )


def _tied(field: "pa.Field[Any]", number: int, kind: Json) -> "pa.Field[Any]":
    tied_type = _tied_type(field.type, kind)
    return pa.field(field.name, tied_type, field.nullable, metadata={_ID: str(number).encode()})


def _tied_type(given: Any, kind: Json) -> Any:
    if isinstance(given, pa.StructType):
        fields = fields_of(kind)
        inner = [given.field(index) for index in range(given.num_fields)]
        return pa.struct(
            [_tied(each, fields[each.name]["id"], fields[each.name]["type"]) for each in inner]
        )
    if isinstance(given, pa.MapType):
        key = _tied(given.key_field, kind["key-id"], kind["key"])
        value = _tied(given.item_field, kind["value-id"], kind["value"])
        return _map(key, value, keys_sorted=given.keys_sorted)
    if _is_list(given):
        element = _tied(given.value_field, kind["element-id"], kind["element"])
        if isinstance(given, pa.FixedSizeListType):
            return pa.list_(element, given.list_size)
        return pa.large_list(element) if pa.types.is_large_list(given) else pa.list_(element)
    return given


def _parts(given: Any, kind: Json) -> Iterator[tuple["pa.Field[Any]", Json, bool, str]]:
    """The fields one level below a type, as the rows and as the table have them."""
    if isinstance(given, pa.StructType):
        fields = fields_of(kind)
        for index in range(given.num_fields):
            inner = given.field(index)
            there = fields[inner.name]
            yield inner, there["type"], there["required"], f".{inner.name}"
    elif isinstance(given, pa.MapType):
        yield given.key_field, kind["key"], False, "[key]"
        yield given.item_field, kind["value"], kind["value-required"], "[]"
    elif _is_list(given):
        yield given.value_field, kind["element"], kind["element-required"], "[]"


def _optional(field: "pa.Field[Any]", place: str, ids: Iterator[int]) -> Json:
    number = next(ids)
    kind = _type(field.type, place, ids)
    return {"id": number, "name": field.name, "required": False, "type": kind}


def _type(kind: Any, place: str, ids: Iterator[int]) -> Json:
    name = _name(kind)
    if name is not None:
        return name
    if isinstance(kind, pa.DictionaryType):
        return _type(kind.value_type, place, ids)
    if _is_list(kind):
        return {
            "type": "list",
            "element-id": next(ids),
            "element": _type(kind.value_type, place, ids),
            "element-required": False,
        }
    if isinstance(kind, pa.MapType):
        return {
            "type": "map",
            "key-id": next(ids),
            "key": _type(kind.key_type, place, ids),
            "value-id": next(ids),
            "value": _type(kind.item_type, place, ids),
            "value-required": False,
        }
    if isinstance(kind, pa.StructType) and kind.num_fields:
        inner = [kind.field(index) for index in range(kind.num_fields)]
        fields = [_optional(each, f"{place}.{each.name}", ids) for each in inner]
        return {"type": "struct", "fields": fields}
    raise InvalidSchema(f"column '{place}': found {kind}; allowed are {_ALLOWED}")


def _name(kind: Any) -> str | None:
    """What Iceberg calls a type that has no parts; None: it has, or Iceberg has no such type."""
    for each, name in _NAMES:
        if kind.equals(each):
            return name
    if isinstance(kind, pa.TimestampType):
        return "timestamp" if kind.tz is None else "timestamptz"
    if isinstance(kind, pa.Decimal128Type) and 0 <= kind.scale <= kind.precision <= _MOST_DIGITS:
        return f"decimal({kind.precision}, {kind.scale})"
    return None


def _is_list(kind: Any) -> bool:
    types = pa.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
