"""Records in the columns of Spark's own Kafka source."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.columns import Fitted, fit
from topology.messages import columns_of
from topology.record import Record
from topology.sink import Piece
from topology.spark_step import KAFKA_COLUMNS

_PLAIN = ("key", "value", "partition", "offset", "timestamp_ms")
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999


def fit_records(pieces: Sequence[Piece]) -> Fitted:
    """Records as KAFKA_COLUMNS; every one fits. What is no record is judged by its columns.

    A record's time is null if it is none of the years 1 to 9999: of a producer that counts
    nanoseconds, for example.
    """
    return fit([_columns(piece) for piece in pieces], KAFKA_COLUMNS)


def _columns(piece: Piece) -> Piece:
    if isinstance(piece, pa.RecordBatch) or not all(isinstance(row, Record) for row in piece):
        return piece
    messages = [record.message for record in piece]
    plain = columns_of(messages, _PLAIN)
    milliseconds = plain["timestamp_ms"]
    known: Any = pc.and_(
        pc.greater_equal(milliseconds, pa.scalar(_FIRST_MS)),
        pc.less_equal(milliseconds, pa.scalar(_LAST_MS)),
    )
    times = pc.if_else(known, milliseconds, None).cast(pa.timestamp("ms", "UTC"))
    columns: dict[str, pa.Array[Any]] = {
        "topic": pa.array([message.topic() for message in messages], pa.string()),
        "partition": plain["partition"],
        "offset": plain["offset"],
        "timestamp": times.cast(pa.timestamp("us", "UTC")),
        "key": plain["key"],
        "value": plain["value"],
        # Without any they are null, as Spark has it.
        "headers": pa.array([_headers(message) for message in messages], _HEADERS),
    }
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in KAFKA_COLUMNS.names], schema=KAFKA_COLUMNS
    )


_HEADERS = KAFKA_COLUMNS.field("headers").type


def _headers(message: Any) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in message.headers() or ()] or None
