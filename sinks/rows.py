"""A micro-batch's rows as single values, for sinks that have no columns."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from sinks.columns import fit
from topology.sink import Piece


def rows_of(pieces: Sequence[Piece]) -> Iterator[Any]:
    """Every row in its order; those of a RecordBatch are dictionaries."""
    for piece in pieces:
        yield from piece.to_pylist() if isinstance(piece, pa.RecordBatch) else piece


def fitting_rows(
    pieces: Sequence[Piece], schema: pa.Schema | None
) -> tuple[list[Any], dict[int, str]]:
    """The rows that fit the schema, as they came, and by place why the others do not.

    Without a schema all fit.
    """
    rejected = {} if schema is None else fit(pieces, schema).rejected
    return [row for place, row in enumerate(rows_of(pieces)) if place not in rejected], rejected
