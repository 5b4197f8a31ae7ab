"""Records in the columns of Spark's own Kafka source."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.columns import Fitted, fit
from topology.record import HeadersUnreadable, Record, headers_of
from topology.sink import Piece
from topology.spark_step import KAFKA_COLUMNS
from topology.vectorised import columns_of

_PLAIN = ("key", "value", "partition", "offset", "timestamp_ms")
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999


def fit_records(pieces: Sequence[Piece]) -> Fitted:
    """Records as KAFKA_COLUMNS. What is no record is judged by its columns.

    All fit but those whose headers cannot be read. A time is null if it is none of the years 1
    to 9999: of a producer that counts nanoseconds, for example.
    """
    wrong: dict[int, str] = {}
    columns: list[Piece] = []
    first = 0
    for piece in pieces:
        columns.append(_columns(piece, first, wrong))
        first += len(piece)
    fitted = fit(columns, KAFKA_COLUMNS)
    if not wrong:
        return fitted
    kept = np.delete(np.arange(first), list(fitted.rejected))
    places = np.searchsorted(kept, list(wrong)).tolist()
    return fitted.without(dict(zip(places, wrong.values(), strict=True)))


def _columns(piece: Piece, first: int, wrong: dict[int, str]) -> Piece:
    """A piece's records as columns; `wrong` takes those that cannot be read, by their place."""
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
    headers: list[list[dict[str, Any]] | None] = []
    for place, message in enumerate(messages, first):
        try:
            headers.append(_headers(message))
        except HeadersUnreadable as error:
            wrong[place] = error.reason
            headers.append(None)
    columns: dict[str, pa.Array[Any]] = {
        "topic": pa.array([message.topic() for message in messages], pa.string()),
        "partition": plain["partition"],
        "offset": plain["offset"],
        "timestamp": times.cast(pa.timestamp("us", "UTC")),
        "key": plain["key"],
        "value": plain["value"],
        # Without any they are null, as Spark has it.
        "headers": pa.array(headers, _HEADERS),
    }
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in KAFKA_COLUMNS.names], schema=KAFKA_COLUMNS
    )


_HEADERS = KAFKA_COLUMNS.field("headers").type


def _headers(message: Any) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in headers_of(message) or ()] or None
