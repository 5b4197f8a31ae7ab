"""The bolt that all three formats are."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from topology.bolt import Bolt
from topology.errors import BoltError
from topology.payloads.limits import Limits
from topology.payloads.plain import value_of
from topology.payloads.registry.fetching import Fetching
from topology.payloads.registry.gate import Gate, NotCached, is_of_the_registry, says_unknown
from topology.payloads.registry.place import Registry, not_installed
from topology.record import Record, Reject, Retry, headers_of

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

T = TypeVar("T")
Deserialiser: TypeAlias = Callable[[bytes, Any], Any]  # a payload and its SerializationContext

_ID_HEADER = "__value_schema_id"
_SHOWN = 300  # characters of an error


class RegistryBolt(Bolt[Record, T]):
    """Decodes records' values with a deserialiser of confluent-kafka.

    A record whose schema cannot be had just now raises Retry; one that has an unknown schema,
    or does not fit its schema, Reject. With `blocking` it runs in threads and waits there.
    """

    def __init__(
        self,
        name: str,
        registry: Registry | None,
        make: Callable[["SchemaRegistryClient | None"], Deserialiser],
        *,
        limits: Limits,
        blocking: bool,
    ) -> None:
        self.__name__ = name
        self.blocking = blocking  # type: ignore[misc]  # one class for both
        self._registry = registry
        self._make = make
        self._limits = limits
        self._fetching = Fetching(f"schemas-{name}")
        self._gate = Gate()
        self._client: SchemaRegistryClient | None = None
        self._deserialise: Deserialiser | None = None
        self._context: Callable[[Record], Any] = lambda _record: None

    def open(self) -> None:
        """Make the client. Raises ModuleNotFoundError, saying what to install, or ValueError.

        A reader's schema that refers to others is looked up here, and waited for.
        """
        self._context = _contexts()
        if self._registry is not None:
            self._client = self._registry.connect()
            self._gate = Gate()
            self._gate.stand_before(self._client)
        try:
            self._deserialise = self._make(self._client)
        except ModuleNotFoundError as error:
            raise not_installed(error) from error
        if self._client is not None and not self.blocking:
            self._fetching.open()
            self._gate.opens_to = lambda: self._fetching.here

    def process(self, record: Record, /) -> T:
        """Decode one record's value."""
        value = value_of(record, self._limits)
        context = self._context(record)
        deserialise = self._deserialise
        if deserialise is None:
            raise BoltError(f"bolt '{self.__name__}' is not open")
        try:
            return self._decode(deserialise, value, context)  # type: ignore[no-any-return]
        except NotCached:
            key = record.topic, _schema_id(value, record)
            self._fetching.fetch(key, lambda: self._prepare(deserialise, value, context))
        try:
            return self._decode(deserialise, value, context)  # type: ignore[no-any-return]
        except NotCached as error:  # gone from a cache already
            raise Retry("the schema must be fetched again") from error

    def _prepare(self, deserialise: Deserialiser, value: bytes, context: Any) -> None:
        """Fill the caches. Raises only what is to be said of the schema, not of this value."""
        try:
            deserialise(value, context)
        except Exception as error:  # the owner will see the others for itself
            if is_of_the_registry(error):
                raise self._meaning_of(error) from error

    def _decode(self, deserialise: Deserialiser, value: bytes, context: Any) -> Any:
        try:
            return deserialise(value, context)
        except (Reject, NotCached, MemoryError):
            raise
        except Exception as error:
            raise self._meaning_of(error) from error

    def close(self) -> None:
        """Close the client. It can be opened again, as tests do."""
        self._fetching.close()
        self._gate.leave()
        if self._client is not None and self._registry and self._registry.client is None:
            self._client.close()
        self._client = None

    def _meaning_of(self, error: Exception) -> Exception:
        """What an exception of a deserialiser says about the record."""
        if says_unknown(error):
            return Reject(f"the registry does not know the schema: {error}"[:_SHOWN])
        if is_of_the_registry(error):
            return Retry(f"the schema registry gave no answer: {error}"[:_SHOWN])
        return Reject(f"no {self.__name__} value: {str(error) or type(error).__name__}"[:_SHOWN])


def _contexts() -> Callable[[Record], Any]:
    """Return a function that makes what a deserialiser wants to know besides the bytes."""
    from confluent_kafka.serialization import (  # noqa: PLC0415
        MessageField,
        SerializationContext,
    )

    field = MessageField.VALUE

    def context(record: Record) -> Any:
        headers: Any = headers_of(record.message)
        return SerializationContext(record.topic, field, headers)

    return context


def _schema_id(value: bytes, record: Record) -> Hashable:
    """What names a record's schema: a header, or the first bytes of its value."""
    for name, found in record.headers:
        if name == _ID_HEADER:
            return found
    return value[:17] if value[:1] == b"\x01" else value[:5]
