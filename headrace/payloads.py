"""Ready-made bolts that turn the bytes of records into values."""

from topology.payloads.documents import Limits, json, raw, text
from topology.payloads.json_columns import json_columns
from topology.payloads.schema_registry import Registry, RegistryBolt, avro, json_schema, protobuf

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
