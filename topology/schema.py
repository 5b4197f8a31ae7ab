"""From a row's type to the schema of its columns: docs/reference/python-api.md has the table."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, cast

import msgspec
import pyarrow as pa
from typing_extensions import TypeVar

from topology.errors import InvalidSchema

Row = TypeVar("Row", contravariant=True, default=Any)
"""The type of a sink's rows: that of its schema, or any where pyarrow's schema says it."""


class ArrowSchema(Protocol):
    """A `pyarrow.Schema`, as type checkers see it where no types of pyarrow are installed.

    There, `pyarrow.Schema` itself is Any, and so any row type would fit.
    """

    def __arrow_c_schema__(self) -> Any: ...


_SCALARS: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", tz="UTC"),
    date: pa.date32(),
    Decimal: pa.decimal128(38, 18),
}
_ALLOWED = (
    "str, int, float, bool, bytes, datetime, date, Decimal, list[...], dict[str, ...], Literal, "
    "a TypedDict, dataclass or msgspec.Struct, any of these `| None`, "
    "or Annotated[..., <pyarrow type>]"
)


def with_nulls(kind: pa.DataType) -> pa.DataType:
    """Return the type with nulls allowed in all its parts."""
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, with_nulls(field.type)) for field in kind])
    if isinstance(kind, pa.ListType):
        return pa.list_(pa.field("element", with_nulls(kind.value_type)))
    if isinstance(kind, pa.MapType):
        return pa.map_(with_nulls(kind.key_type), with_nulls(kind.item_type))
    return kind


class _Hint(NamedTuple):
    name: str
    hint: Any
    required: bool


def schema_of(source: type | ArrowSchema) -> pa.Schema:
    """Return the schema of a row type, or of a `pa.Schema`. Raises InvalidSchema."""
    if isinstance(source, pa.Schema):
        if len(set(source.names)) != len(source.names):
            raise InvalidSchema(f"schema: found a column twice: {', '.join(source.names)}")
        schema = source
    else:
        fields = _fields(source)
        if fields is None:
            raise InvalidSchema(
                f"schema: found {source!r}, expected a TypedDict, a dataclass, a msgspec.Struct "
                "or a pyarrow.Schema"
            )
        name = getattr(source, "__name__", repr(source))
        schema = pa.schema([_field(hint, name, (source,)) for hint in fields])
    if not schema.names:
        raise InvalidSchema("schema: found no column, expected at least one")
    return schema


def schema_of_hints(hints: Mapping[str, Any], place: str) -> pa.Schema:
    """Return the schema of columns by their type hints. Raises InvalidSchema."""
    fields = [_Hint(name, hint, required=True) for name, hint in hints.items()]
    return pa.schema([_field(field, place, ()) for field in fields])


def _fields(source: Any) -> Iterator[_Hint] | None:
    """Return the fields of a row type, or None if it is not one."""
    columns: dict[str, str]  # by attribute
    if typing.is_typeddict(source):
        columns = {name: name for name in source.__annotations__}
    elif isinstance(source, type) and issubclass(source, msgspec.Struct):
        columns = {field.name: field.encode_name for field in msgspec.structs.fields(source)}
    elif hasattr(source, "model_fields"):  # pydantic's
        columns = {name: name for name in source.model_fields}
    elif isinstance(source, type) and dataclasses.is_dataclass(source):
        columns = {field.name: field.name for field in dataclasses.fields(source)}
    else:
        return None
    try:
        hints = typing.get_type_hints(source, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidSchema(
            f"schema {source.__name__}: its type hints cannot be resolved: {error}"
        ) from error
    required = getattr(source, "__required_keys__", hints)
    return (_Hint(column, hints[name], name in required) for name, column in columns.items())


def _field(field: _Hint, path: str, within: tuple[Any, ...]) -> "pa.Field[Any]":
    place = f"{path}.{field.name}"
    hint, nullable = _unwrap(field.hint, place)
    return pa.field(field.name, _type(hint, place, within), nullable=nullable or not field.required)


def _unwrap(hint: Any, place: str) -> tuple[Any, bool]:
    """Strip Required, NotRequired and None from a hint; return it and whether it is nullable."""
    nullable = False
    while True:
        origin = typing.get_origin(hint)
        if origin in (typing.NotRequired, typing.Required, typing.Final):
            nullable = nullable or origin is typing.NotRequired
            (hint,) = typing.get_args(hint)
        elif origin in (typing.Union, types.UnionType):
            rest = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
            if len(rest) != 1:
                raise InvalidSchema(f"{place}: found {hint!r}, expected one type, or None")
            nullable = nullable or len(rest) != len(typing.get_args(hint))
            hint = rest[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint, nullable


def _type(hint: Any, place: str, within: tuple[Any, ...]) -> pa.DataType:
    if hint in within:
        raise InvalidSchema(f"{place}: found {hint!r} within itself, expected a type that ends")
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        given = [extra for extra in args[1:] if isinstance(extra, pa.DataType)]
        return given[0] if given else _item(args[0], place, within).type
    if (scalar := _SCALARS.get(hint)) is not None:
        return scalar
    if origin is list and len(args) == 1:
        return pa.list_(_item(args[0], f"{place}[]", within, "element"))
    if origin is dict and len(args) == 2:  # noqa: PLR2004 - key and value
        value = _item(args[1], f"{place}[]", within, "value")
        key = _type(args[0], f"{place} key", within)
        return cast("pa.DataType", pa.map_(key, value))
    if origin is typing.Literal and len({type(value) for value in args}) == 1:
        return _type(type(args[0]), place, within)
    if (fields := _fields(hint)) is not None:
        return pa.struct([_field(field, place, (*within, hint)) for field in fields])
    raise InvalidSchema(f"{place}: found {hint!r}, expected {_ALLOWED}")


def _item(hint: Any, place: str, within: tuple[Any, ...], name: str = "element") -> "pa.Field[Any]":
    return _field(_Hint(name, hint, required=True), place.removesuffix(f".{name}"), within)
