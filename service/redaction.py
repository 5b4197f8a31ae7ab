"""Values whose names tell of a secret, hidden at any depth."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from topology.complaints import text_of
from topology.masking import HIDDEN, is_secret

_DEEPEST = 8


def redacted(value: Any, name: str = "", depth: int = 0) -> Any:
    """The value with everything hidden, at any depth, whose name tells of a secret."""
    if is_secret(name) or depth > _DEEPEST:
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: redacted(inner, str(key), depth + 1) for key, inner in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return redacted(fields, name, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [redacted(inner, name, depth + 1) for inner in value]
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {text_of(value)}"
    return value
