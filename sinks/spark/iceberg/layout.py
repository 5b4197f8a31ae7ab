"""Where rows of a partitioned Iceberg table go, and how their partition is told. Pure."""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sinks.files.layout import Layout


class IcebergLayout(Layout):
    """Splits tables by the values of some columns, which stay in the files as well.

    Values are spelled in the JSON of Iceberg's specification (appendix D), where the empty text
    is another value than null. What a folder is called means nothing to readers.
    """

    keeps_empty_text = True

    def __init__(self, partition_by: Sequence[str], types: Mapping[str, str]) -> None:
        """`types` has what Iceberg calls the types of these columns."""
        super().__init__(partition_by)
        self._types = types

    def rest(self, table: pa.Table, present: list[str]) -> pa.Table:
        """All of it, as Iceberg's own writers have it."""
        del present
        return table

    def spelled(self, name: str, value: Any) -> str:
        """A value as JSON."""
        if isinstance(value, Decimal):
            value = format(value, "f")
        elif isinstance(value, date):
            value = value.isoformat()
        elif isinstance(value, str) and self._types[name] == "timestamptz":
            value = value.replace("Z", "+00:00")
        elif isinstance(value, str) and self._types[name] == "timestamp":
            value = value.replace(" ", "T")
        return json.dumps(value)
