"""Says in one line what is wrong with a configuration."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from service.errors import BadConfig
from topology.masking import is_secret

_LONGEST_FOUND = 80
_CREDENTIALS = re.compile(r"[^/'\"]*@")  # user:password@host, where only hosts belong
_BITS = 63  # beside the sign: what TOML asks of those who read it
_SCALARS = ("str", "int", "float", "bool")  # the arms of a property's type, in pydantic's words


def as_bad_config(
    error: ValidationError,
    model: type[BaseModel],
    place: str,
    variables: Iterable[str] = (),
    prefix: str = "",
) -> BadConfig:
    """The first fault of a validation, as key path, what was found, what is allowed.

    `place` is the file; a key that one of the `variables` sets is blamed on that one.
    """
    fault = error.errors(include_url=False)[0]
    parts = [str(part) for part in fault["loc"]]
    is_property = "kafka" in parts[:-2] or "conf" in parts[:-2]
    if is_property and parts[-1] in _SCALARS:
        parts.pop()
    else:
        is_property = False
    variable = prefix + "__".join(parts).upper().replace(".", "_")
    if variable in variables:
        place = f"environment: {variable}"
    key = ".".join(parts)
    kind = fault["type"]
    if kind == "extra_forbidden":
        return BadConfig(place, key, "an unknown key", _keys_at(model, parts[:-1]))
    if kind == "missing":
        return BadConfig(place, key, "nothing", _hint(model, parts) or "a value is required")
    allowed = fault["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if kind in ("model_type", "dict_type"):
        allowed = "a table"
    if is_property:
        allowed = "a string, a number, true or false"
    return BadConfig(place, key, _found(key, fault["input"]), allowed)


def check_numbers(place: str, value: Any, key: str = "") -> None:
    """Refuse a whole number of a file that has more than 64 bits: Python may not even print it.

    Raises BadConfig, which names the key.
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            check_numbers(place, inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            check_numbers(place, inner, key)
    elif isinstance(value, int) and value.bit_length() > _BITS:
        found = f"a whole number of {value.bit_length()} bits"
        raise BadConfig(place, key, found, "whole numbers of 64 bits, one of them the sign")


def _found(key: str, value: Any) -> str:
    """What was found, unless it is, or may hold, a secret."""
    if value is None:  # only a key that is absent is None: TOML has no such value
        return "nothing"
    if is_secret(key):
        return "a hidden value"
    if isinstance(value, Mapping):
        names = ", ".join(map(str, value)) or "none"
        return f"a table with the keys {names}"[:_LONGEST_FOUND]
    if isinstance(value, list):
        return "a list"
    return _CREDENTIALS.sub("***@", repr(value))[:_LONGEST_FOUND]


def _keys_at(model: type[BaseModel], parts: list[str]) -> str:
    """The keys that the table at `parts` knows."""
    for part in parts:
        field = model.model_fields.get(part)
        inner: Any = field.annotation if field is not None else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return "no key"
        model = inner
    return ", ".join(model.model_fields)


def _hint(model: type[BaseModel], parts: list[str]) -> str | None:
    field = None
    for part in parts:
        field = model.model_fields.get(part)
        inner = field.annotation if field is not None else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    if field is None:
        return None
    if field.description:
        return field.description
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
        required = [name for name, f in field.annotation.model_fields.items() if f.is_required()]
        return f"a table with {', '.join(required)}"
    return None
