"""Secrets: found by the names of properties, and masked in any text."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from topology.monitoring import text_of

HIDDEN = "***"

_SHORTEST_MASKED = 4  # masking every "a" would make a text unreadable and hide nothing

_WORDS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "jaas",
    "private_key",
    "access_key",
    "account_key",
    "api_key",
    "ssl_key",
    "oauthbearer_config",
    "auth_data",
    "user_info",
)


def is_secret(name: str) -> bool:
    plain = name.lower().replace(".", "_").replace("-", "_")
    return any(word in plain for word in _WORDS)


def secrets_in(properties: Mapping[str, Any]) -> list[str]:
    """Return the values of secret properties, and the password of `user:password`."""
    found = []
    for name, value in properties.items():
        if is_secret(name):
            found.append(str(value))
            if name.endswith("user.info"):
                found.append(str(value).partition(":")[2])
    return found


class Mask:
    """Masks known secrets in any text, such as an error's message."""

    def __init__(self) -> None:
        self._known: list[str] = []

    def learn(self, secrets: Iterable[str]) -> None:
        """Replace the known secrets."""
        self._known = []
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Add secrets. Call it before a secret that is given in code is used."""
        known = {secret for secret in secrets if len(secret) >= _SHORTEST_MASKED}
        known |= {json.dumps(secret)[1:-1] for secret in known}
        self._known = sorted(known.union(self._known), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, HIDDEN)
        return text


mask = Mask()


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
        name = type(value).__name__
        return f"{name}: {text_of(value).removeprefix(f'{name}: ')}"
    return value


def escaped(text: str, *, keeping: str = "") -> str:
    """The text without secrets, everything escaped that does not print, but for `keeping`."""
    return "".join(
        each if each.isprintable() or each in keeping else each.encode("unicode_escape").decode()
        for each in mask(text)
    )
