"""The gate in front of a registry client's HTTP."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

_NOT_FOUND = 404
_NO_SUCH = range(40400, 40500)  # the registry's own codes: no such subject, version, schema
_REQUESTS = ("get", "post", "put", "delete")


class NotCached(Exception):
    """The registry would have to be asked, on a thread that may not wait."""


class RegistryAway(Exception):
    """The registry could not be asked, or gave no answer that can be used."""


class Gate:
    """Lets those ask the registry of whom `opens_to` is true; the others get NotCached.

    Whatever HTTP raises is RegistryAway, but for a SchemaRegistryError that says "not found".
    """

    def __init__(self) -> None:
        self.opens_to: Callable[[], bool] = lambda: True
        self._client: Any = None
        self._http: Any = None

    def stand_before(self, client: "SchemaRegistryClient") -> None:
        """Take the place of a client's HTTP; it has no better place for this."""
        self._client = client
        self._http, self._client._rest_client = self._client._rest_client, self  # noqa: SLF001

    def leave(self) -> None:
        """Give the client its HTTP back."""
        if self._client is not None:
            self._client._rest_client = self._http  # noqa: SLF001
            self._client = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._http, name)
        return self._guarded(found) if name in _REQUESTS else found

    def _guarded(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            if not self.opens_to():
                raise NotCached
            try:
                return _checked(arguments, ask(*arguments, **options))
            except Exception as error:
                if _status_of(error) == _NOT_FOUND:
                    raise  # the client itself takes some of them for an answer
                raise RegistryAway(str(error) or type(error).__name__) from error

        return guarded


def _checked(arguments: tuple[Any, ...], found: Any) -> Any:
    """Return what was found; the client would cache an answer that holds no schema."""
    if not str(arguments[0]).startswith("schemas/") or "schema" in found:
        return found
    raise RegistryAway("it holds no schema")


def says_unknown(error: Exception) -> bool:
    """Whether this is the registry's own word that there is no such schema.

    A 404 without its code is of something that stands before it, or of a wrong URL.
    """
    return _status_of(error) == _NOT_FOUND and getattr(error, "error_code", None) in _NO_SUCH


def is_of_the_registry(error: Exception) -> bool:
    """Whether it came of asking the registry, and not of a record's bytes."""
    return isinstance(error, RegistryAway) or _status_of(error) is not None


def _status_of(error: Exception) -> int | None:
    """The HTTP status of a SchemaRegistryError, which is not imported for this; else None."""
    status: int | None = getattr(error, "http_status_code", None)
    return status
