"""Secrets: hiding their values wherever text leaves the process."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from sinks.secret_names import is_secret
from topology.complaints import text_of

HIDDEN = "***"

_SHORTEST_MASKED = 4  # hiding every "a" would make a text unreadable and hide nothing
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


def secrets_in(properties: Mapping[str, Any]) -> list[str]:
    """The values of a flat table whose names tell of a secret."""
    return [str(value) for name, value in properties.items() if is_secret(name)]


class Mask:
    """Hides known secrets in any text, however they got there (an error's message, say)."""

    def __init__(self) -> None:
        self._known: list[str] = []

    def learn(self, secrets: Iterable[str]) -> None:
        """Hide these from now on, and not those learnt before."""
        known = {secret for secret in secrets if len(secret) >= _SHORTEST_MASKED}
        known |= {json.dumps(secret)[1:-1] for secret in known}
        self._known = sorted(known, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without the secrets."""
        for secret in self._known:
            text = text.replace(secret, HIDDEN)
        return text


mask = Mask()
