"""What a Delta table would be like that has the columns of an Arrow schema."""

import json
from collections.abc import Sequence

import pyarrow as pa

from sinks.spark.delta.facts import Facts

_KINDS = {
    "int64": "long",
    "bool": "boolean",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamp",
}


def facts_of(schema: pa.Schema, partition_by: Sequence[str] = ()) -> Facts:
    """A plain table's facts: every column may be null, and nothing is special."""
    fields = [
        {
            "name": field.name,
            "type": _KINDS.get(str(field.type), str(field.type)),
            "nullable": True,
            "metadata": {},
        }
        for field in schema
    ]
    schema_json = json.dumps({"type": "struct", "fields": fields})
    return Facts(schema_json, tuple(partition_by), frozenset(), {})
