"""JSON documents, one per record: typed by msgspec, or plain by orjson."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

import msgspec
import orjson
from msgspec.inspect import DecimalType, type_info

from topology.bolt import FunctionBolt
from topology.errors import InvalidTopology
from topology.payloads.limits import Limits, Refused
from topology.payloads.plain import DEFAULT, NO_VALUE
from topology.record import Record
from topology.signals import Reject

T = TypeVar("T")
_SHOWN = 300  # characters of a parser's complaint


@overload
def json(kind: type[T], /, *, limits: Limits | None = ...) -> FunctionBolt[Record, T]: ...
@overload
def json(*, limits: Limits | None = ...) -> FunctionBolt[Record, dict[str, Any]]: ...
def json(
    kind: type[Any] | None = None, /, *, limits: Limits | None = DEFAULT
) -> FunctionBolt[Record, Any]:
    """Make a bolt that reads each record's value as JSON.

    With a type (a `msgspec.Struct`, dataclass, TypedDict, NamedTuple, or what else msgspec
    decodes) it gives values of that type: a field that is missing, null or of another type is
    a Reject that names its path; fields the type does not have are passed over. Without one it
    gives dictionaries, and whatever is no object is rejected. `limits=None` parses without
    looking first. Raises InvalidTopology if msgspec cannot decode the type.
    """
    refused = _no_limit if limits is None else limits.json_screen()
    if kind is None:
        return FunctionBolt(_objects(refused))
    decode = _decoder_of(kind).decode
    if limits is not None and _has_decimals(kind):
        refused = limits.decimal_screen()

    def json(record: Record) -> Any:
        value = record.value
        if value is None:
            raise Reject(NO_VALUE)
        if (reason := refused(value)) is not None:
            raise Reject(reason)
        try:
            return decode(value)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise Reject(complaint(error, kind)) from error

    return FunctionBolt(json)


def _objects(refused: Refused) -> Callable[[Record], dict[str, Any]]:
    decode = orjson.loads

    def json(record: Record) -> dict[str, Any]:
        value = record.value
        if value is None:
            raise Reject(NO_VALUE)
        if (reason := refused(value)) is not None:
            raise Reject(reason)
        try:
            found = decode(value)
        except ValueError as error:
            raise Reject(complaint(error)) from error
        if type(found) is not dict:
            raise Reject(f"no JSON object, but {_NAMES[type(found)]}")
        return found

    return json


_NAMES = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def complaint(error: Exception, kind: Any = None) -> str:
    """A parser's words as a reason, bounded in length."""
    wanted = "" if kind is None else f" of {getattr(kind, '__name__', kind)}"
    return f"no JSON{wanted}: {error}"[:_SHOWN]


def _no_limit(_value: bytes) -> None:
    return None


def _decoder_of(kind: Any) -> "msgspec.json.Decoder[Any]":
    try:
        return msgspec.json.Decoder(kind)
    except (TypeError, NameError) as error:
        raise InvalidTopology(f"json({kind!r}): no type that msgspec decodes: {error}") from error


def _has_decimals(kind: Any) -> bool:
    """Whether a Decimal, whose exponent has no bound of its own, may come of a type."""
    return any(isinstance(found, DecimalType) for found in _types_within(type_info(kind), set()))


def _types_within(info: Any, seen: set[Any]) -> Iterator[Any]:
    """Every type within a msgspec type, each class once: types may contain themselves."""
    yield info
    cls = getattr(info, "cls", None)
    if cls is not None:
        if cls in seen:
            return
        seen.add(cls)
    for name in ("item_type", "key_type", "value_type", "type"):
        if (inner := getattr(info, name, None)) is not None:
            yield from _types_within(inner, seen)
    for name in ("item_types", "types"):
        for inner in getattr(info, name, ()):
            yield from _types_within(inner, seen)
    for field in getattr(info, "fields", ()):
        yield from _types_within(field.type, seen)
