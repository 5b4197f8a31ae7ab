"""Where a database is, and who we are there; what may be shown of it. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote_plus

from topology.errors import InvalidTopology

PREFIX = "jdbc:postgresql:"
HIDDEN = "***"

_ALLOWED = f"allowed is {PREFIX}//host[:port]/database, with properties of the driver behind a '?'"
_SECRET = re.compile("password|passphrase|secret|token", re.IGNORECASE)
_SHORTEST_HIDDEN = 4  # hiding every "a" would make a text unreadable and hide nothing


@dataclass(frozen=True, slots=True)
class Place:
    """A database's address and credentials.

    `url` is without user and password, which the driver is given beside it; `shown` is also
    without the other properties. Nothing else of it may be logged or raised.
    """

    url: str = field(repr=False)
    shown: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def with_environment(self, environment: Mapping[str, str]) -> "Place":
        """With PGUSER and PGPASSWORD where nothing else was given, as PostgreSQL's own tools."""
        password = self.password or environment.get("PGPASSWORD")
        return Place(
            self.url,
            self.shown,
            self.user or environment.get("PGUSER"),
            password,
            _hideable((*self.secrets, password)),
        )

    def hide(self, text: str) -> str:
        """The text without our secrets, however they got there."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return text


def place_of(
    url: str, user: str | None = None, password: str | None = None, *, what: str = "SqlSink"
) -> Place:
    """Read a JDBC URL; what is given beside it counts more. Raises InvalidTopology.

    `what` is who was given it. No error shows more of a URL than its scheme: it may hold a
    password anywhere.
    """
    if not url.startswith(PREFIX):
        scheme = re.match(r"[A-Za-z][A-Za-z0-9+]*:(?:[A-Za-z0-9+]+:)?", url)
        found = f"a URL of {scheme[0]!r}" if scheme else "something else"
        raise InvalidTopology(f"{what}: found {found}; {_ALLOWED}")
    address, mark, query = url.partition("?")
    if "@" in address:
        raise InvalidTopology(f"{what}: found '@' in the address of the URL; {_ALLOWED}")
    if any(c < " " or c == "\x7f" for c in url):
        raise InvalidTopology(f"{what}: found a control character in the URL; {_ALLOWED}")
    given: dict[str, str] = {}
    kept = []
    secrets: list[str | None] = [password]
    for each in query.split("&") if mark else []:
        name, _, value = each.partition("=")
        if name in ("user", "password"):
            given[name] = unquote_plus(value)
        else:
            kept.append(each)
        if _SECRET.search(name):
            secrets += [value, unquote_plus(value)]
    rest = "&".join(filter(None, kept))
    return Place(
        url=f"{address}?{rest}" if rest else address,
        shown=address,
        user=user or given.get("user"),
        password=password or given.get("password"),
        secrets=_hideable(secrets),
    )


def _hideable(secrets: Iterable[str | None]) -> tuple[str, ...]:
    known = {secret for secret in secrets if secret and len(secret) >= _SHORTEST_HIDDEN}
    return tuple(sorted(known, key=len, reverse=True))
