"""The three formats as bolts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec
import orjson

from topology.payloads.documents import decoded
from topology.payloads.limits import Limits
from topology.payloads.plain import DEFAULT
from topology.payloads.registry.bolt import Deserialiser, RegistryBolt
from topology.payloads.registry.place import NOTHING, Registry
from topology.payloads.registry.recursion import CycleCheck
from topology.record import Reject

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

T = TypeVar("T")
_SUBJECTS = {"subject.name.strategy.type": "TOPIC"}  # the client's own default asks for more


@overload
def avro(
    kind: type[T],
    /,
    *,
    registry: Registry,
    schema: str | None = ...,
    properties: Mapping[str, Any] = ...,
    limits: Limits = ...,
    recursive: bool = ...,
    blocking: bool = ...,
) -> RegistryBolt[T]: ...
@overload
def avro(
    *,
    registry: Registry,
    schema: str | None = ...,
    properties: Mapping[str, Any] = ...,
    limits: Limits = ...,
    recursive: bool = ...,
    blocking: bool = ...,
) -> RegistryBolt[Any]: ...
def avro(
    kind: type[Any] | None = None,
    /,
    *,
    registry: Registry,
    schema: str | None = None,
    properties: Mapping[str, Any] = NOTHING,
    limits: Limits = DEFAULT,
    recursive: bool = False,
    blocking: bool = False,
) -> RegistryBolt[Any]:
    """Make a bolt that reads Avro: dictionaries, or values of a type.

    `schema` is the reader's; without one each record is read as its writer meant it. `properties`
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

    The class says what the bytes mean. Without a registry nothing is asked, and the schema's
    id is only skipped; with one, a record with an unknown schema is rejected. `properties` are
    properties of confluent-kafka's `ProtobufDeserializer`; `max_bytes` is the limit that applies.
    """

    def make(client: "SchemaRegistryClient | None") -> Deserialiser:
        from confluent_kafka.schema_registry.protobuf import (  # noqa: PLC0415
            ProtobufDeserializer,
        )

        conf = {**_SUBJECTS, **properties}
        deserialiser: Any = ProtobufDeserializer(message, conf, client)
        return deserialiser  # type: ignore[no-any-return]

    return RegistryBolt("protobuf", registry, make, limits=limits, blocking=blocking)


@overload
def json_schema(
    kind: type[T],
    /,
    *,
    registry: Registry,
    schema: str | None = ...,
    properties: Mapping[str, Any] = ...,
    limits: Limits = ...,
    blocking: bool = ...,
) -> RegistryBolt[T]: ...
@overload
def json_schema(
    *,
    registry: Registry,
    schema: str | None = ...,
    properties: Mapping[str, Any] = ...,
    limits: Limits = ...,
    blocking: bool = ...,
) -> RegistryBolt[Any]: ...
def json_schema(
    kind: type[Any] | None = None,
    /,
    *,
    registry: Registry,
    schema: str | None = None,
    properties: Mapping[str, Any] = NOTHING,
    limits: Limits = DEFAULT,
    blocking: bool = False,
) -> RegistryBolt[Any]:
    """Make a bolt that reads JSON and validates it: dictionaries, or values of a type.

    `schema` is what to validate by; without one it is the writer's. `properties` are properties
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
        from confluent_kafka.schema_registry.json_schema import (  # noqa: PLC0415
            JSONDeserializer,
        )

        conf = {**_SUBJECTS, **properties}
        return _typed(JSONDeserializer(schema, None, client, conf, json_decode=parse), kind)

    return RegistryBolt("json_schema", registry, make, limits=limits, blocking=blocking)


def _typed(deserialise: Any, kind: type[Any] | None) -> Deserialiser:
    """Convert what a deserialiser gives to a type; a mismatch is a ValueError."""
    if kind is None:
        return deserialise  # type: ignore[no-any-return]
    convert = msgspec.convert
    return lambda value, context: convert(deserialise(value, context), kind)
