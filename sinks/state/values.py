"""What a transaction makes of a state's stored rows: Trident's rules. Pure.

A value is stored with the txid of the last transaction that changed it, in its line. Under
"transactional", a transaction that comes again has the same records: a value that has its txid
has them. Under "opaque" it may have others: they are merged into the value before it, which is
stored for that. A store that changes all rows and its lines' txids at once never comes to see a
txid again; the rules hold for what a store has lost or kept of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.state.deltas import Deltas
from topology.aggregates import Aggregate, Reducer
from topology.errors import AggregateFailed
from topology.state import LINE, TXID, Shape, before_of, grouped


def changed(shape: Shape, deltas: Deltas, stored: pa.Table) -> pa.Table:
    """The rows of the deltas' keys as they are to be; `stored` are those that are there.

    Raises AggregateFailed: values cannot be merged, or a row has a later txid.
    """
    if shape.has_one_line:
        _check_lines(shape, deltas.keys, stored)
    found = places_of(deltas.keys, stored, shape.row_key)
    stored_txids: Any = stored[TXID].combine_chunks().take(found)
    txids = stored_txids.fill_null(-1).to_numpy()
    later = np.flatnonzero((deltas.txids > 0) & (txids > deltas.txids))
    if len(later):
        place = int(later[0])
        row = deltas.keys.slice(place, 1).to_pylist()[0]
        raise AggregateFailed(
            f"state '{shape.state}': {row} is of txid {txids[place]}, after {deltas.txids[place]}"
        )
    again = (deltas.txids > 0) & (txids == deltas.txids)
    columns: dict[str, Any] = {name: deltas.keys[name] for name in shape.row_key}
    for name, aggregate in shape.aggregates.items():
        now = stored[name].combine_chunks().take(found)
        base = now
        if shape.layout == "opaque":
            before = stored[before_of(name)].combine_chunks().take(found)
            columns[before_of(name)] = base = _chosen(again, before, now)
        try:
            merged = _merged(name, aggregate, base, deltas)
        except AggregateFailed as error:
            raise AggregateFailed(f"state '{shape.state}', '{name}': {error}") from error
        is_kept = shape.layout == "transactional"
        columns[name] = _chosen(again, now, merged) if is_kept else merged
    columns[TXID] = pa.array(deltas.txids)
    return pa.table([columns[name] for name in shape.schema.names], schema=shape.schema)


def _check_lines(shape: Shape, keys: pa.Table, stored: pa.Table) -> None:
    """Raise AggregateFailed when a key has rows of two lines."""
    rows = pa.concat_tables([keys, stored.select(shape.row_key)])
    counted = rows.group_by(shape.key.names, use_threads=False)
    lines = counted.aggregate([(LINE, "min"), (LINE, "max")])
    for row in lines.filter(pc.not_equal(lines[f"{LINE}_min"], lines[f"{LINE}_max"])).to_pylist():
        found = {name: row[name] for name in shape.key.names}
        raise AggregateFailed(
            f"state '{shape.state}': {found} has rows of {row[f'{LINE}_min']} and of "
            f"{row[f'{LINE}_max']}, whose values a reducer cannot merge; give it merge=, or have "
            "each key in one partition"
        )


def places_of(keys: pa.Table, rows: pa.Table, names: Sequence[str]) -> "pa.Array[Any]":
    """Where the row of each key stands; null: nowhere. Both have each key once."""
    both = [
        pa.chunked_array([*keys[name].chunks, *rows[name].chunks], keys.schema.field(name).type)
        for name in names
    ]
    _, groups = grouped(both)
    places = np.full(len(groups), -1, np.int64)
    places[groups[keys.num_rows :]] = np.arange(rows.num_rows)
    found = places[groups[: keys.num_rows]]
    column: pa.Array[Any] = pa.array(found, mask=found < 0)
    return column


def _merged(
    name: str, aggregate: Aggregate, base: "pa.Array[Any]", deltas: Deltas
) -> "pa.Array[Any]":
    if isinstance(aggregate, Reducer):
        return aggregate.reduced(base, deltas.rows)
    numbers = np.arange(len(base))
    both = pa.concat_arrays([base, deltas.values[name]])
    return aggregate.merged(both, np.concatenate([numbers, numbers]))


def _chosen(mask: Any, yes: "pa.Array[Any]", no: "pa.Array[Any]") -> "pa.Array[Any]":
    column: pa.Array[Any] = pc.if_else(pa.array(mask), yes, no) if mask.any() else no
    return column
