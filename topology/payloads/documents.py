"""Bolts for values that are one document each: bytes, text, JSON; and the limits of a document.

JSON is typed by msgspec, or plain by orjson. Both accept the same texts, and so does
`json_columns`: docs/reference/values.md has the table. A text that a parser refuses is read again
(`decoded`), for the reason in our own words.

Limits are checked in two steps. The screen is a handful of calls into C that lets nearly every
record pass, and none that breaks a limit. The others are checked exactly, and only that rejects.
The screen counts brackets wherever they stand, and finds long numbers in every k-th byte: a run of
digits that is too long covers so many neighbouring samples that all of them are digits.
"""

import codecs
import json as strict
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
from msgspec.inspect import DecimalType, RawType, type_info
from typing_extensions import TypeVar

from topology.bolt import FunctionBolt
from topology.errors import InvalidTopology
from topology.record import Record, Reject
from topology.values import NOT_WHOLE

Refused: TypeAlias = Callable[[bytes], str | None]  # why a payload is refused, or None

_ARRAY = ord("[")  # `int in bytes` is memchr; `bytes in bytes` is not
_SAMPLES = 32  # neighbours that a too long number covers; so many seldom are digits by chance
_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
# It ends at the text's end, too: a search for a quote that never comes must not be repeated.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_EXPONENT = re.compile(rb"[0-9][eE][+-]?0*([0-9]+)")
_STEP = np.zeros(256, np.int8)
_STEP[list(b"{[")] = 1
_STEP[list(b"}]")] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a payload. A record above a limit is rejected before it is parsed.

    `max_bytes` is the size of the value. `max_depth` counts arrays and objects within each
    other, the outermost included. `max_number_digits` is the longest run of digits outside of
    strings. `max_exponent` is the greatest power of ten, either way, of a number that becomes
    a `Decimal`: others are bounded by their own range. Raises InvalidTopology.
    """

    max_bytes: int = 1_048_576
    max_depth: int = 64
    max_number_digits: int = 1_000
    max_exponent: int = 1_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidTopology(f"Limits({name}={value!r}): expected a whole number >= 1")

    def too_large(self, value: bytes) -> str | None:
        """Return why a payload of any format is refused, or None."""
        if len(value) <= self.max_bytes:
            return None
        return f"{len(value)} bytes, expected at most {self.max_bytes}"

    def json_screen(self) -> Refused:
        """Return a function that returns why a JSON text is refused, or None; fast for most."""
        max_bytes, max_depth, max_digits = self.max_bytes, self.max_depth, self.max_number_digits
        (stride, run), to_zero = self.samples(), _TO_ZERO

        def refused(value: bytes) -> str | None:
            size = len(value)
            if size > max_bytes:
                return self.too_large(value)
            arrays = value.count(b"[") if _ARRAY in value else 0  # to count is ten times as dear
            shallow = (not arrays and value.rfind(b"{") <= 0) or (
                arrays + value.count(b"{") <= max_depth
            )
            short = size <= max_digits or run not in value[::stride].translate(to_zero)
            return None if shallow and short else self.too_deep_or_long(value)

        return refused

    def decimal_screen(self) -> Refused:
        """Return `json_screen` with an exact check of every text's exponents."""
        refused = self.json_screen()
        return lambda value: refused(value) or self.too_great(value)

    def samples(self) -> tuple[int, bytes]:
        """Return the stride of the screen for numbers, and what a too long one leaves there.

        That is a run of zeros, when every digit of the samples is made a zero.
        """
        stride = max(1, (self.max_number_digits + 1) // _SAMPLES)
        return stride, b"0" * ((self.max_number_digits + 1) // stride)

    def may_hide_a_long_number(self, codes: "npt.NDArray[np.uint8]") -> bool:
        """Whether a text's bytes must be checked exactly. O(bytes / stride)."""
        stride, run = self.samples()
        return run in codes[::stride].tobytes().translate(_TO_ZERO)

    def too_deep_or_long(self, value: bytes) -> str | None:
        """Return why a JSON text's depth or numbers are refused, or None. Exact."""
        bare = _STRING.sub(b'""', value)
        steps = _STEP[np.frombuffer(bare, np.uint8)]
        depth = int(np.cumsum(steps, dtype=np.int64).max(initial=0))
        if depth > self.max_depth:
            return f"nested {depth} deep, expected at most {self.max_depth}"
        longest = re.search(rb"(?<![0-9])[0-9]{%d,}+" % (self.max_number_digits + 1), bare)
        if longest is None:
            return None
        digits = len(longest.group())
        return f"a number of {digits} digits, expected at most {self.max_number_digits}"

    def too_great(self, value: bytes) -> str | None:
        """Return why a JSON text's exponents are refused, or None. Exact."""
        for found in _EXPONENT.finditer(_STRING.sub(b'""', value)):
            digits = found.group(1)
            if len(digits) > len(str(self.max_exponent)) or int(digits) > self.max_exponent:
                shown = digits[:20].decode()
                return f"an exponent of {shown}, expected at most {self.max_exponent}"
        return None


DEFAULT = Limits()
NO_VALUE = "the record has no value"


def raw(*, limits: Limits = DEFAULT) -> FunctionBolt[Record, bytes]:
    """Make a bolt that gives a record's value; of the limits only `max_bytes` applies."""

    def raw(record: Record) -> bytes:
        return value_of(record, limits)

    return FunctionBolt(raw)


def text(encoding: str = "utf-8", *, limits: Limits = DEFAULT) -> FunctionBolt[Record, str]:
    """Make a bolt that decodes a record's value; of the limits only `max_bytes` applies.

    A value that does not decode is rejected. Raises InvalidTopology for an unknown encoding.
    """
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise InvalidTopology(f"text({encoding!r}): Python does not know this encoding") from None

    def text(record: Record) -> str:
        value = value_of(record, limits)
        try:
            return value.decode(encoding)
        except UnicodeDecodeError as error:
            raise Reject(f"not {encoding} text: {error.reason} at byte {error.start}") from error

    return FunctionBolt(text)


def value_of(record: Record, limits: Limits) -> bytes:
    """Return a record's value. Raises Reject if it is missing or too large."""
    value = record.value
    if value is None:
        raise Reject(NO_VALUE)
    reason = limits.too_large(value)
    if reason is not None:
        raise Reject(reason)
    return value


T = TypeVar("T", default=dict[str, Any])
_SHOWN = 300  # characters of a reason
_ERRORS = (ValueError, msgspec.MsgspecError, RecursionError)
_OBJECT: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(dict[str, msgspec.Raw])
_DEEP = "nested too deep"
_LONGEST = 20  # characters of a whole number of 64 bits
_NUMBER = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|(-?[0-9][0-9.eE+-]*|-?Infinity|NaN)')
_LONE_HALF = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F])|\\.", re.DOTALL)


def json(
    kind: type[T] | None = None, /, *, limits: Limits | None = DEFAULT
) -> FunctionBolt[Record, T]:
    """Make a bolt that reads each record's value as JSON.

    With a type that msgspec decodes (a `msgspec.Struct`, dataclass, TypedDict, NamedTuple), or a
    pydantic model, it gives values of that type: a field that is missing, null or of another type
    is a Reject that names its path; unknown fields are ignored. Without a type it gives
    dictionaries, in which a number that no float holds is a `Decimal`, and rejects any other
    document. `limits=None` parses without a check. Raises InvalidTopology if msgspec cannot decode
    the type.
    """
    refused: Refused = (lambda _value: None) if limits is None else limits.json_screen()
    if kind is None:
        return FunctionBolt(_objects(refused))
    if hasattr(kind, "model_validate_json"):
        return FunctionBolt(_models(kind, refused if limits is None else limits.decimal_screen()))
    try:
        decode = msgspec.json.Decoder(kind).decode
    except (TypeError, NameError) as error:
        raise InvalidTopology(f"json({kind!r}): msgspec cannot decode it: {error}") from error
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


def _models(kind: Any, refused: Refused) -> Callable[[Record], Any]:
    """Return what makes pydantic models, which costs several times what msgspec does."""
    validate = kind.model_validate_json

    def json(record: Record) -> Any:
        value = record.value
        if value is None:
            raise Reject(NO_VALUE)
        if (reason := refused(value)) is not None:
            raise Reject(reason)
        if b"NaN" in value or b"Infinity" in value:  # which pydantic takes for numbers
            _strict(value, _PLAIN)
        try:
            return validate(value)
        except ValueError as error:
            _strict(value, _PLAIN)
            raise Reject(_unfit(error)) from None

    return json


def _unfit(error: Any) -> str:
    """Return the first of pydantic's errors with its path, without the record's own values."""
    first, *more = error.errors(include_url=False, include_context=False, include_input=False)
    path = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
    others = f" (and {len(more)} more)" if more else ""
    said = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    return f"wrong value at `${path}`: {said}{others}"[:_SHOWN]


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


def _holds(kind: Any, *wanted: type) -> bool:
    return any(isinstance(found, wanted) for found in _types_within(type_info(kind), set()))


def _types_within(info: Any, seen: set[Any]) -> Iterator[Any]:
    """Iterate over the types within a msgspec type, each class once: types may be recursive."""
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
