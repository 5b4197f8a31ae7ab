"""Bolts for Avro, Protobuf and JSON Schema, as serialisers with a Schema Registry write them.

confluent-kafka's own deserialisers do the work. They ask the registry about each schema that they
have not cached, in the middle of a call, and the owner thread must not wait for that. So the
client's HTTP is replaced by `Gate`, which only the fetching thread passes. A call that the gate
stops is made once on that thread, which fills the caches, and then again by the owner.
Only this module imports confluent_kafka for payloads, and only when a bolt is opened.
"""

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, wait
from queue import SimpleQueue
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
import orjson
from typing_extensions import TypeVar

from topology.bolt import Bolt
from topology.errors import BoltError, InvalidTopology, missing_extra
from topology.masking import mask, secrets_in
from topology.payloads.documents import DEFAULT, Limits, decoded, value_of
from topology.record import Record, Reject, Retry, headers_of

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

T = TypeVar("T", default=Any)
Deserialiser: TypeAlias = Callable[[bytes, Any], Any]  # a payload and its SerializationContext

NOTHING: Mapping[str, Any] = MappingProxyType({})
_CLIENT = {"timeout": 10, "max.retries": 0}  # the client's defaults: no timeout, three retries
_SUBJECTS = {"subject.name.strategy.type": "TOPIC"}  # the client's own default asks for more
_ID_HEADER = "__value_schema_id"
_SHOWN = 300  # characters of an error

BURST_SECONDS = 1.0
SHARE = 0.1
AGAIN_SECONDS = 1.0  # between two requests for a schema when the registry did not answer
FORGET_SECONDS = 60.0  # between two requests for a schema that the registry does not know
MOST = 1_024  # schemas that are being fetched, and that are known to be missing


class Registry:
    """The address of a schema registry. A plain value: nothing is asked before a bolt is opened.

    `properties` are those of confluent-kafka's `SchemaRegistryClient`, any of them
    (`basic.auth.user.info`, `ssl.ca.location`, `bearer.auth.…`). Ours are `timeout` 10 seconds,
    and `max.retries` 0, because the record is tried again. `client` is a ready one instead, as
    confluent-kafka's mock in a test; it is not closed.
    """

    def __init__(
        self,
        url: str = "",
        properties: Mapping[str, Any] = NOTHING,
        *,
        client: "SchemaRegistryClient | None" = None,
    ) -> None:
        if bool(url) == (client is not None):
            raise InvalidTopology("Registry: expected either a url or a client")
        self.url = url
        self.properties = dict(properties)  # may hold secrets: in no repr
        self.client = client

    def __repr__(self) -> str:
        return f"Registry({self.url!r})" if self.client is None else "Registry(client=…)"

    def connect(self) -> "SchemaRegistryClient":
        """Return the given client, or a new one.

        Raises ModuleNotFoundError, saying what to install, and what confluent-kafka raises for
        an unknown or invalid property (ValueError, TypeError).
        """
        if self.client is not None:
            return self.client
        mask.add([*secrets_in(self.properties), urlsplit(self.url).password or ""])
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise _not_installed(error) from error
        return SchemaRegistryClient.new_client({**_CLIENT, **self.properties, "url": self.url})


def _not_installed(error: ModuleNotFoundError) -> ModuleNotFoundError:
    message = missing_extra(f"a schema registry needs '{error.name}'", "schema-registry")
    return ModuleNotFoundError(message, name=error.name)


_NOT_FOUND = 404
_NO_SUCH = range(40400, 40500)  # the registry's own codes: no such subject, version, schema
_REQUESTS = ("get", "post", "put", "delete")


class NotCached(Exception):
    """The registry would have to be asked, on a thread that may not wait."""


class RegistryAway(Exception):
    """The registry could not be asked, or gave no usable answer."""


class Gate:
    """Stands in for a client's HTTP; threads of which `opens_to` is false get NotCached.

    Whatever HTTP raises becomes RegistryAway, except a SchemaRegistryError "not found".
    """

    def __init__(self) -> None:
        self.opens_to: Callable[[], bool] = lambda: True
        self._client: Any = None
        self._http: Any = None

    def install(self, client: "SchemaRegistryClient") -> None:
        self._client = client
        # The client has no public place for this.
        self._http, self._client._rest_client = self._client._rest_client, self  # noqa: SLF001

    def remove(self) -> None:
        if self._client is not None:
            self._client._rest_client = self._http  # noqa: SLF001
            self._client = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._http, name)
        if name not in _REQUESTS:
            return found

        def guarded(*arguments: Any, **options: Any) -> Any:
            if not self.opens_to():
                raise NotCached
            try:
                answer = found(*arguments, **options)
                if str(arguments[0]).startswith("schemas/") and "schema" not in answer:
                    raise RegistryAway("it holds no schema")  # noqa: TRY301 - the client caches it
            except Exception as error:
                if _status_of(error) == _NOT_FOUND:
                    raise  # the client itself takes some of them for an answer
                raise RegistryAway(str(error) or type(error).__name__) from error
            return answer

        return guarded


def _status_of(error: Exception) -> int | None:
    """Return the HTTP status of a SchemaRegistryError, which is not imported for this."""
    status: int | None = getattr(error, "http_status_code", None)
    return status


def _is_of_registry(error: Exception) -> bool:
    return isinstance(error, RegistryAway) or _status_of(error) is not None


class Patience:
    """A budget of seconds: `burst_seconds` at first, earned again at `share` of the time.

    All waits together take at most that share of any long time. Pure.
    """

    def __init__(self, burst_seconds: float, share: float) -> None:
        self._burst = burst_seconds
        self._share = share
        self._left = burst_seconds
        self._at: float | None = None

    def left(self, now: float) -> float:
        if self._at is not None:
            earned = max(0.0, now - self._at) * self._share
            self._left = min(self._burst, self._left + earned)
        self._at = now
        return max(0.0, self._left)

    def spend(self, seconds: float) -> None:
        self._left -= seconds


_Job: TypeAlias = "tuple[Future[object], Callable[[], object]]"


class Fetching:
    """Calls what asks the registry, once per key at a time, on the thread `name`.

    Only the bolt's thread calls it. `fetch` waits, but all waits together take at most a tenth of
    the time (and a second at first).
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._patience = Patience(BURST_SECONDS, SHARE)
        self._fetches: dict[Hashable, Future[object]] = {}
        self._verdicts: dict[Hashable, tuple[float, BaseException]] = {}
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Start the thread. It is a daemon: a registry that hangs delays no exit."""
        self._fetches.clear()
        self._queue = SimpleQueue()  # an earlier thread may still be about to end with its own
        self._thread = threading.Thread(
            target=_work, args=(self._queue,), name=self._name, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Have the thread end after its current call. May be called twice."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread = None

    @property
    def is_here(self) -> bool:
        """Whether the caller is the fetching thread."""
        return threading.current_thread() is self._thread

    def fetch(self, key: Hashable, run: Callable[[], object]) -> None:
        """Have `run` called on the thread, and return when it has returned.

        Raises Retry when that takes too long; the next call for the key waits for the same run.
        An exception of `run` is raised again without a new run: a Reject for a minute, any
        other for a second.
        """
        now = self._clock()
        if (verdict := self._verdicts.get(key)) is not None:
            if now < verdict[0]:
                raise verdict[1].with_traceback(None)  # else it grows with each time
            del self._verdicts[key]
        fetch = self._fetches.get(key) or self._begin(key, run)
        wait([fetch], self._patience.left(now))
        self._patience.spend(self._clock() - now)
        if not fetch.done():
            raise Retry("the schema is being fetched")
        del self._fetches[key]
        if (error := fetch.exception()) is not None:
            seconds = FORGET_SECONDS if isinstance(error, Reject) else AGAIN_SECONDS
            if len(self._verdicts) >= MOST:
                del self._verdicts[next(iter(self._verdicts))]
            self._verdicts[key] = (self._clock() + seconds, error)
            raise error

    def _begin(self, key: Hashable, run: Callable[[], object]) -> "Future[object]":
        if len(self._fetches) >= MOST:
            done = [each for each, fetch in self._fetches.items() if fetch.done()]
            for each in done:
                del self._fetches[each]  # the schema is cached, or will be asked for again
            if not done:
                raise Retry(f"{MOST} schemas are being fetched")
        fetch = self._fetches[key] = Future()
        self._queue.put((fetch, run))
        return fetch


def _work(queue: "SimpleQueue[_Job | None]") -> None:
    while (job := queue.get()) is not None:
        fetch, run = job
        try:
            fetch.set_result(run())
        except Exception as error:  # noqa: BLE001  # passed on to who waits
            fetch.set_exception(error)


class RegistryBolt(Bolt[Record, T]):
    """Decodes records' values with a deserialiser of confluent-kafka.

    Raises Retry for a record whose schema cannot be fetched now, Reject for one with an unknown
    schema or bytes that do not fit it. With `blocking` it runs in threads and waits there.
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

        Waits for the schemas that a reader's schema refers to.
        """
        self._context = _contexts()
        if self._registry is not None:
            self._client = self._registry.connect()
            self._gate = Gate()
            self._gate.install(self._client)
        try:
            self._deserialise = self._make(self._client)
        except ModuleNotFoundError as error:
            raise _not_installed(error) from error
        if self._client is not None and not self.blocking:
            self._fetching.open()
            self._gate.opens_to = lambda: self._fetching.is_here

    def process(self, record: Record, /) -> T:
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
        """Fill the caches. Raises only errors of the schema; the owner sees those of the value."""
        try:
            deserialise(value, context)
        except Exception as error:
            if _is_of_registry(error):
                raise self._outcome_of(error) from error

    def _decode(self, deserialise: Deserialiser, value: bytes, context: Any) -> Any:
        try:
            return deserialise(value, context)
        except (Reject, NotCached, MemoryError):
            raise
        except Exception as error:
            raise self._outcome_of(error) from error

    def close(self) -> None:
        """Close the client. It can be opened again, as tests do."""
        self._fetching.close()
        self._gate.remove()
        if self._client is not None and self._registry and self._registry.client is None:
            self._client.close()
        self._client = None

    def _outcome_of(self, error: Exception) -> Exception:
        """Return the Retry or Reject that a deserialiser's exception means for the record."""
        # A 404 without the registry's code comes from a proxy, or from a wrong URL.
        code = getattr(error, "error_code", None)
        if _status_of(error) == _NOT_FOUND and code in _NO_SUCH:
            return Reject(f"the registry does not know the schema: {error}"[:_SHOWN])
        if _is_of_registry(error):
            return Retry(f"the schema registry gave no answer: {error}"[:_SHOWN])
        return Reject(f"no {self.__name__} value: {str(error) or type(error).__name__}"[:_SHOWN])


def _contexts() -> Callable[[Record], Any]:
    """Return a function that makes a record's SerializationContext."""
    from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415

    field = MessageField.VALUE

    def context(record: Record) -> Any:
        headers: Any = headers_of(record.message)
        return SerializationContext(record.topic, field, headers)

    return context


def _schema_id(value: bytes, record: Record) -> Hashable:
    """Return the bytes that name a record's schema: a header, or the first of its value."""
    for name, found in record.headers:
        if name == _ID_HEADER:
            return found
    return value[:17] if value[:1] == b"\x01" else value[:5]


_MOST_CHECKED = 1_000  # schemas remembered


class CycleCheck:
    """Refuses schemas with a cycle; each is walked once, as it is the same object every time."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Any, str | None]] = {}  # the schema is kept, and so its id

    def __call__(self, schema: Any) -> None:
        """Raise Reject if a record of the schema may contain itself."""
        seen = self._seen.get(id(schema))
        if seen is None:
            if len(self._seen) >= _MOST_CHECKED:
                self._seen.clear()
            seen = self._seen[id(schema)] = (schema, cycle_in(schema))
        if seen[1] is not None:
            raise Reject(f"'{seen[1]}' of the schema may contain itself, which is refused")


def cycle_in(node: Any, within: tuple[str, ...] = ()) -> str | None:
    """Return the name of a record that may contain itself; of a schema as fastavro parses it."""
    if isinstance(node, str):  # stands for what was walked where it was defined
        return node if node in within else None
    if isinstance(node, list):
        inner = node
    elif "fields" in node:
        within = (*within, node["name"])
        inner = [field["type"] for field in node["fields"]]
    else:
        inner = [node[name] for name in ("items", "values", "type") if name in node]
    found = (cycle_in(each, within) for each in inner)
    return next((name for name in found if name is not None), None)


def avro(
    kind: type[T] | None = None,
    /,
    *,
    registry: Registry,
    schema: str | None = None,
    properties: Mapping[str, Any] = NOTHING,
    limits: Limits = DEFAULT,
    recursive: bool = False,
    blocking: bool = False,
) -> RegistryBolt[T]:
    """Make a bolt that reads Avro: dictionaries, or values of a type.

    `schema` is the reader's; without one each record is read by its writer's. `properties`
    are properties of confluent-kafka's `AvroDeserializer`. A schema whose records may contain
    themselves is refused unless `recursive`: fastavro recurses on the C stack, and one record
    nested some thousand deep would end the process. `max_bytes` is the limit that applies.
    """
    refuse_cycles = CycleCheck()

    def make(client: "SchemaRegistryClient | None") -> Deserialiser:
        from confluent_kafka.schema_registry.avro import AvroDeserializer  # noqa: PLC0415

        class Finite(AvroDeserializer):
            def _get_parsed_schema(self, schema: Any) -> Any:
                parsed = super()._get_parsed_schema(schema)
                refuse_cycles(parsed)
                return parsed

        deserialiser = AvroDeserializer if recursive else Finite
        return _typed(deserialiser(client, schema, conf={**_SUBJECTS, **properties}), kind)

    return RegistryBolt("avro", registry, make, limits=limits, blocking=blocking)


def protobuf(
    message: type[T],
    /,
    *,
    registry: Registry | None = None,
    properties: Mapping[str, Any] = NOTHING,
    limits: Limits = DEFAULT,
    blocking: bool = False,
) -> RegistryBolt[T]:
    """Make a bolt that reads Protobuf messages of a generated class, in the registry's framing.

    The class tells the fields. Without a registry nothing is asked, and the schema's
    id is only skipped; with one, a record with an unknown schema is rejected. `properties` are
    properties of confluent-kafka's `ProtobufDeserializer`; `max_bytes` is the limit that applies.
    """

    def make(client: "SchemaRegistryClient | None") -> Deserialiser:
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer  # noqa: PLC0415

        deserialiser: Any = ProtobufDeserializer(message, {**_SUBJECTS, **properties}, client)
        return deserialiser  # type: ignore[no-any-return]

    return RegistryBolt("protobuf", registry, make, limits=limits, blocking=blocking)


def json_schema(
    kind: type[T] | None = None,
    /,
    *,
    registry: Registry,
    schema: str | None = None,
    properties: Mapping[str, Any] = NOTHING,
    limits: Limits = DEFAULT,
    blocking: bool = False,
) -> RegistryBolt[T]:
    """Make a bolt that reads JSON and validates it: dictionaries, or values of a type.

    `schema` is the one to validate by; without it, the writer's. `properties` are properties
    of confluent-kafka's `JSONDeserializer` (`validate`). orjson parses; every limit applies.
    """
    refused = limits.json_screen()

    def parse(payload: bytes) -> Any:
        if (reason := refused(payload)) is not None:
            raise Reject(reason)
        try:
            return orjson.loads(payload)
        except ValueError:
            return decoded(orjson.loads, payload)

    def make(client: "SchemaRegistryClient | None") -> Deserialiser:
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer  # noqa: PLC0415

        conf = {**_SUBJECTS, **properties}
        return _typed(JSONDeserializer(schema, None, client, conf, json_decode=parse), kind)

    return RegistryBolt("json_schema", registry, make, limits=limits, blocking=blocking)


def _typed(deserialise: Any, kind: type[Any] | None) -> Deserialiser:
    """Convert a deserialiser's values to a type; a mismatch is a ValueError."""
    if kind is None:
        return deserialise  # type: ignore[no-any-return]
    convert = msgspec.convert
    return lambda value, context: convert(deserialise(value, context), kind)
