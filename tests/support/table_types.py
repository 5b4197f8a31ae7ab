"""A schema with every type of column that a table takes, and rows at their edges."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

EVERY_TYPE = pa.schema(
    [
        ("number", pa.int64()),
        ("tiny", pa.int8()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("bool", pa.bool_()),
        ("text", pa.large_string()),
        ("bytes", pa.binary()),
        ("few", pa.dictionary(pa.int32(), pa.string())),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("at_ns", pa.timestamp("ns", tz="Europe/Berlin")),
        ("local", pa.timestamp("ms")),
        ("price", pa.decimal128(9, 2)),
        ("long_price", pa.decimal128(17, 3)),
        ("large_price", pa.decimal128(38, 18)),
        ("list", pa.list_(pa.string())),
        ("map", pa.map_(pa.string(), pa.decimal128(10, 2))),
        ("struct", pa.struct([("a", pa.timestamp("us", tz="UTC")), ("b", pa.list_(pa.int64()))])),
    ]
)
SOMETHING: dict[str, Any] = {
    "number": 2**63 - 1,
    "tiny": -128,
    "short": -7,
    "int": 2**31 - 1,
    "float": 0.5,
    "double": float("nan"),
    "bool": True,
    "text": "é\U0001f600" * 30,
    "bytes": b"\x00\xff",
    "few": "AA",
    "day": date(1500, 1, 2),
    "at": datetime(1, 1, 1, tzinfo=UTC),
    "at_ns": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "local": datetime(2026, 1, 2, 3, 4, 5, 678000),  # noqa: DTZ001 - it has no zone
    "price": Decimal("-1234567.89"),
    "long_price": Decimal("12345678901234.567"),
    "large_price": Decimal("12345678901234567890.123456789012345678"),
    "list": ["a", None],
    "map": [("k", Decimal("1.50")), ("n", None)],
    "struct": {"a": datetime(9999, 12, 31, tzinfo=UTC), "b": [1, None]},
}
