"""JSON documents, one per record: typed by msgspec, or plain by orjson.

Both take the same texts, and so does `json_columns`: docs/reference/values.md has the table. What
a parser refuses is looked at again (`decoded`), for the reason in our own words.
"""

import json as strict
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar, overload

import msgspec
import orjson
from msgspec.inspect import DecimalType, RawType, type_info

from topology.bolt import FunctionBolt
from topology.errors import InvalidTopology
from topology.payloads.limits import Limits, Refused
from topology.payloads.plain import DEFAULT, NO_VALUE
from topology.record import Record, Reject
from topology.values import NOT_WHOLE

T = TypeVar("T")
_SHOWN = 300  # characters of a reason
_ERRORS = (ValueError, msgspec.MsgspecError, RecursionError)
_OBJECT: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(dict[str, msgspec.Raw])
_DEEP = "nested too deep"
_LONGEST = 20  # characters of a whole number of 64 bits
_NUMBER = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|(-?[0-9][0-9.eE+-]*|-?Infinity|NaN)')
_LONE_HALF = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F])|\\.", re.DOTALL)


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
    gives dictionaries, in which a number that no float holds is a `Decimal`, and whatever is no
    object is rejected. `limits=None` parses without looking first. Raises InvalidTopology if
    msgspec cannot decode the type.
    """
    refused = _no_limit if limits is None else limits.json_screen()
    if kind is None:
        return FunctionBolt(_objects(refused))
    decode = _decoder_of(kind).decode
    if limits is not None and _holds(kind, DecimalType):
        refused = limits.decimal_screen()
    exact = _holds(kind, DecimalType, RawType)

    def json(record: Record) -> Any:
        value = record.value
        if value is None:
            raise Reject(NO_VALUE)
        if (reason := refused(value)) is not None:
            raise Reject(reason)
        try:
            if not value.isascii():
                value.decode()  # members that are passed over must be UTF-8, too
            return decode(value)
        except _ERRORS:
            return decoded(decode, value, exact=exact)

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
        except ValueError:
            found = _strict(value, _PLAIN)
        if type(found) is not dict:
            decoded(_OBJECT.decode, value)
        return found  # type: ignore[no-any-return]  # a dictionary

    return json


def decoded(decode: Callable[[bytes], T], value: bytes, *, exact: bool = False) -> T:
    """Decode a text that a parser has refused, as `_strict` reads it.

    Raises Reject with the place and the reason.
    """
    try:
        return decode(msgspec.json.encode(_strict(value, _EXACT if exact else _WHOLE)))
    except _ERRORS as error:
        raise Reject(_mismatch(error, value)) from None


def _strict(value: bytes, decoder: strict.JSONDecoder) -> Any:
    """Read a text strictly. Of members of one name the last counts.

    Raises Reject with the place and the reason.
    """
    try:
        text = value.decode()
        found = decoder.decode(text)
    except UnicodeDecodeError as error:
        raise Reject(f"invalid UTF-8 at byte {error.start}") from None
    except strict.JSONDecodeError as error:
        what = error.msg.removesuffix(" starting at").removesuffix(" at")
        raise _invalid(what[:1].lower() + what[1:], text, error.pos) from None
    except RecursionError:
        raise Reject(_DEEP) from None
    except ValueError:  # of _no_constant
        place, constant = _first_not_finite(text)
        raise _invalid(f"found {constant}", text, place) from None
    for half in _LONE_HALF.finditer(text) if "\\u" in text else ():
        if half.group(1):
            raise _invalid("half of a surrogate pair", text, half.start())
    return found


def _invalid(what: str, text: str, place: int) -> Reject:
    return Reject(f"invalid JSON at byte {len(text[:place].encode())}: {what}")


def _first_not_finite(text: str) -> tuple[int, str]:
    for found in _NUMBER.finditer(text):
        if found.group(1) and not math.isfinite(float(found.group(1))):
            return found.start(), found.group(1)[:20]
    return -1, ""


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _whole(text: str) -> msgspec.Raw:
    number = float(text)
    is_whole = number.is_integer() and abs(number) < NOT_WHOLE
    return _raw(str(int(number)) if is_whole else text)


def _exactly_whole(text: str) -> msgspec.Raw:
    return _whole(text) if Decimal(text) == float(text) else _raw(text)


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _integer(text: str) -> int | float | Decimal:
    if len(text) <= _LONGEST and -(2**63) <= (number := int(text)) < 2**64:
        return number
    return _number(text)


def _number(text: str) -> float | Decimal:
    """Return the nearest float or, where none is near, a Decimal: no column takes that.

    Its exponent has a bound, as the whole number that a bolt makes of it may be as large.
    """
    number = float(text)
    if math.isfinite(number):
        return number
    try:
        exact = Decimal(text)
    except InvalidOperation:
        return Decimal(number)
    return exact if exact.adjusted() <= DEFAULT.max_exponent else Decimal(number)


_WHOLE = strict.JSONDecoder(parse_int=_raw, parse_float=_whole, parse_constant=_no_constant)
# Floats must be whole to the last digit, as decimals may stand beside them.
_EXACT = strict.JSONDecoder(parse_int=_raw, parse_float=_exactly_whole, parse_constant=_no_constant)
_PLAIN = strict.JSONDecoder(parse_int=_integer, parse_float=_number, parse_constant=_no_constant)


def _mismatch(error: Exception, value: bytes) -> str:
    """Return the reason why JSON is not of a type, or is too much for a parser."""
    if isinstance(error, orjson.JSONDecodeError | RecursionError):
        place, _ = _first_not_finite(value.decode())
        return _DEEP if place < 0 else f"wrong value at byte {place}: number out of range"
    what, _, path = str(error).partition(" - at ")
    if found := re.fullmatch("Expected (.+), got (.+)", what):
        what = f"found {found.group(2)}, expected {found.group(1)}"
    return f"wrong value at {path or '`$`'}: {what[:1].lower()}{what[1:]}"[:_SHOWN]


def _no_limit(_value: bytes) -> None:
    return None


def _decoder_of(kind: Any) -> "msgspec.json.Decoder[Any]":
    try:
        return msgspec.json.Decoder(kind)
    except (TypeError, NameError) as error:
        raise InvalidTopology(f"json({kind!r}): no type that msgspec decodes: {error}") from error


def _holds(kind: Any, *wanted: type) -> bool:
    """Whether one of those msgspec types is within a type."""
    return any(isinstance(found, wanted) for found in _types_within(type_info(kind), set()))


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
