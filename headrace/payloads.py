"""Ready-made bolts that turn the bytes of records into values."""

from topology.payloads.columns import json_columns
from topology.payloads.documents import json
from topology.payloads.limits import Limits
from topology.payloads.plain import raw, text
from topology.payloads.registry.bolt import RegistryBolt
from topology.payloads.registry.formats import avro, json_schema, protobuf
from topology.payloads.registry.place import Registry

__all__ = [
    "Limits",
    "Registry",
    "RegistryBolt",
    "avro",
    "json",
    "json_columns",
    "json_schema",
    "protobuf",
    "raw",
    "text",
]
