"""How a vectorised bolt is called over a whole chunk, and how its rows keep their records."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topology.calls import Called, Sent, failure_of
from topology.errors import BoltError, LineageLost
from topology.signals import DEFAULT_STREAM, Reject, RejectRows

PARENT = "__parent"  # the hidden column that carries the lineage through vectorised bolts

_NAMINGS = 3  # of bad rows in one batch, before it is halved

_STRANGE = (
    "bolt '{}' returned rows whose column '{}' it had changed, so their records "
    "cannot be told; take it over as it is"
)
_DROPPED = (
    "bolt '{}' returned rows without the column '{}', so their records cannot be told; "
    "keep the columns it does not know, or say row_by_row=True if row i is always made from row i"
)


def call_columns(
    step: str,
    function: Callable[[pa.RecordBatch], Any],
    batch: pa.RecordBatch,
    *,
    row_by_row: bool = False,
) -> Called:
    """Call a vectorised bolt; when it raises, halve the batch until the bad rows stand alone.

    If it names them (RejectRows), it is called again without them instead. With `row_by_row`
    it may return a batch without the lineage, whose i-th row is made from the i-th.
    """
    return _call(step, function, batch, _NAMINGS, row_by_row=row_by_row)


def _call(
    step: str,
    function: Callable[[pa.RecordBatch], Any],
    batch: pa.RecordBatch,
    namings: int,
    *,
    row_by_row: bool,
) -> Called:
    """The same; after so many `namings` of bad rows, the batch is halved for the next."""
    parent = PARENT
    while parent in batch.schema.names:  # a record may have a member of that name
        parent += "_"
    tagged = batch.append_column(parent, pa.array(np.arange(batch.num_rows)))
    try:
        out = function(tagged)
    except RejectRows as rejected:
        if not namings:  # a bolt that names the first bad row only must not cost a call for each
            return _halves(step, function, batch, row_by_row=row_by_row)
        reasons = rejected.reasons
        return _without(step, function, batch, reasons, namings - 1, row_by_row=row_by_row)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # a user's code may raise anything
        if batch.num_rows <= 1:
            failed = failure_of(step, error)
            return Called(batch.slice(0, 0), np.empty(0, np.int64), {0: failed})
        return _halves(step, function, batch, row_by_row=row_by_row)
    tables = out if isinstance(out, Mapping) else {DEFAULT_STREAM: out}
    try:
        named = {
            stream: _with_lineage(step, parent, table, batch.num_rows, row_by_row=row_by_row)
            for stream, table in tables.items()
        }
    except BoltError as error:
        failures: dict[int, Exception] = dict.fromkeys(range(batch.num_rows), error)
        return Called(batch.slice(0, 0), np.empty(0, np.int64), failures)
    plain = named.pop(DEFAULT_STREAM, None) or Sent(batch.slice(0, 0), np.empty(0, np.int64))
    return Called(plain.piece, plain.parents, {}, named)


def _without(
    step: str,
    function: Callable[[Any], Any],
    batch: pa.RecordBatch,
    reasons: Mapping[int, str],
    namings: int,
    *,
    row_by_row: bool,
) -> Called:
    """Call the bolt again without the rows that it has named."""
    nothing, none = batch.slice(0, 0), np.empty(0, np.int64)
    bad: dict[int, Exception] = {
        place: Reject(reason) for place, reason in reasons.items() if 0 <= place < batch.num_rows
    }
    if not bad or len(bad) < len(reasons):
        message = f"bolt '{step}' rejected the rows {list(reasons)} of {batch.num_rows}"
        wrong: dict[int, Exception] = dict.fromkeys(range(batch.num_rows), BoltError(message))
        return Called(nothing, none, wrong)
    good: npt.NDArray[np.int64] = np.delete(np.arange(batch.num_rows), list(bad))
    if not len(good):
        return Called(nothing, none, bad)
    rest = _call(step, function, batch.take(good), namings, row_by_row=row_by_row)
    bad.update({int(good[place]): error for place, error in rest.failures.items()})
    named = {
        stream: Sent(sent.piece, good if sent.parents is None else good[sent.parents])
        for stream, sent in rest.named.items()
    }
    parents = good if rest.parents is None else good[rest.parents]
    return Called(rest.piece, parents, bad, named)


def _halves(
    step: str, function: Callable[[Any], Any], batch: pa.RecordBatch, *, row_by_row: bool
) -> Called:
    middle = batch.num_rows // 2
    left = call_columns(step, function, batch.slice(0, middle), row_by_row=row_by_row)
    right = call_columns(step, function, batch.slice(middle), row_by_row=row_by_row)
    failures = dict(left.failures)
    failures.update({middle + place: error for place, error in right.failures.items()})
    none = Sent(batch.slice(0, 0), np.empty(0, np.int64))
    lefts = {**left.named, DEFAULT_STREAM: Sent(left.piece, left.parents)}
    rights = {**right.named, DEFAULT_STREAM: Sent(right.piece, right.parents)}
    try:
        named = {
            stream: _joined(batch, lefts.get(stream, none), rights.get(stream, none), middle)
            for stream in {**lefts, **rights}
        }
    except pa.ArrowException as error:
        broken = BoltError(f"bolt '{step}' gave other columns for other rows: {error}")
        return Called(none.piece, none.parents, dict.fromkeys(range(batch.num_rows), broken))
    plain = named.pop(DEFAULT_STREAM)
    return Called(plain.piece, plain.parents, failures, named)


def _joined(batch: pa.RecordBatch, left: Sent, right: Sent, middle: int) -> Sent:
    """One stream of two halves as that of the whole. Raises ArrowException if they differ."""
    batches: list[pa.RecordBatch] = []
    parents: list[npt.NDArray[np.int64]] = []
    for half, start in ((left, 0), (right, middle)):
        if isinstance(half.piece, pa.RecordBatch) and half.piece.num_rows:
            batches.append(half.piece)
            places = np.arange(len(half.piece)) if half.parents is None else half.parents
            parents.append(places + start)
    if not batches:
        return Sent(batch.slice(0, 0), np.empty(0, np.int64))
    tables = [pa.Table.from_batches([each]) for each in batches]
    table = pa.concat_tables(tables, promote_options="permissive")
    joined = table.combine_chunks().to_batches()[0]
    return Sent(joined, np.concatenate(parents))


def _with_lineage(step: str, parent: str, out: Any, num_rows: int, *, row_by_row: bool) -> Sent:
    if not isinstance(out, pa.RecordBatch):
        message = f"bolt '{step}' returned {type(out).__name__}; a pyarrow.RecordBatch is allowed"
        raise BoltError(message)
    place = out.schema.get_field_index(parent)
    if place >= 0:
        column = out.column(place)
        if column.null_count or not pa.types.is_int64(column.type):
            raise LineageLost(_STRANGE.format(step, parent))
        parents = column.to_numpy()
        if len(parents) and not (parents.min() >= 0 and parents.max() < num_rows):
            raise LineageLost(_STRANGE.format(step, parent))
        return Sent(out.remove_column(place), parents)
    if not row_by_row:
        raise LineageLost(_DROPPED.format(step, parent))
    if out.num_rows != num_rows:
        raise LineageLost(
            f"bolt '{step}' says row_by_row and returned {out.num_rows} rows for {num_rows}; "
            "one for each is allowed"
        )
    return Sent(out, None)
