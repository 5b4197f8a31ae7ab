"""A micro-batch's rows as single values, for sinks that have no columns."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from sinks.columns import fit
from topology.schema import schema_of
from topology.sink import Piece


def rows_of(pieces: Sequence[Piece]) -> Iterator[Any]:
    """Every row in its order; those of a RecordBatch are dictionaries."""
    for piece in pieces:
        yield from piece.to_pylist() if isinstance(piece, pa.RecordBatch) else piece


def fitting_rows(
    pieces: Sequence[Piece], schema: type[Any] | pa.Schema | None
) -> tuple[list[Any], dict[int, str]]:
    """The rows that fit the schema, as they came, and by place why the others do not.

    A row's type says its schema, too. Without any all fit.
    """
    rejected = {} if schema is None else fit(pieces, schema_of(schema)).rejected
    if not rejected:
        return list(rows_of(pieces)), rejected
    rows: list[Any] = []
    start = 0
    for piece in pieces:
        kept = [place for place in range(len(piece)) if start + place not in rejected]
        # Of columns only these are made values: a time that does not fit may not even be one.
        if isinstance(piece, pa.RecordBatch):
            rows += piece.take(pa.array(kept, pa.int64())).to_pylist()
        else:
            rows += [piece[place] for place in kept]
        start += len(piece)
    return rows, rejected
