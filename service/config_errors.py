"""Says in one line what is wrong with a configuration."""

from typing import Any

from pydantic import BaseModel, ValidationError

from service.errors import BadConfig

_LONGEST_FOUND = 80


def as_bad_config(error: ValidationError, model: type[BaseModel], place: str) -> BadConfig:
    """The first fault of a validation, as key path, what was found, what is allowed."""
    fault = error.errors(include_url=False)[0]
    parts = [str(part) for part in fault["loc"]]
    key = ".".join(parts)
    kind = fault["type"]
    if kind == "extra_forbidden":
        return BadConfig(place, key, "an unknown key", _keys_at(model, parts[:-1]))
    if kind == "missing":
        return BadConfig(place, key, "nothing", _hint(model, parts) or "a value is required")
    found = "a hidden value" if _is_secret(key) else repr(fault["input"])[:_LONGEST_FOUND]
    allowed = fault["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return BadConfig(place, key, found, allowed)


def _is_secret(key: str) -> bool:
    return any(word in key for word in ("password", "secret", "token", "key", "kafka"))


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
