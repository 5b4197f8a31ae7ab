"""The fast alternative: parse, keep those that flew and name the carrier, whole chunks at once.

It gives the rows that `parse`, `keep_flown` and `NameCarrier` give, as Arrow columns, so no
dictionary is made per row and the sink has nothing left to convert. The decoding is still
msgspec's, value by value: into `Flight`s and then columns it takes 1.2 µs per record, where
`pyarrow.json` takes 2.0, and no line break in a value can shift the rows.
"""

from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from examples.flights import tables
from examples.flights.rows import Flight
from headrace import Reject, bolt

_decode = msgspec.json.Decoder(Flight).decode


def _field(name: str, kind: pa.DataType, *, nullable: bool = False) -> "pa.Field[pa.DataType]":
    return pa.field(name, kind, nullable=nullable)


NAMED_FLIGHT = pa.schema(  # the columns of rows.NamedFlight
    [
        _field("time_hour", pa.string()),
        _field("carrier", pa.string()),
        _field("carrier_name", pa.string()),
        _field("flight", pa.int64()),
        _field("tailnum", pa.string(), nullable=True),
        _field("origin", pa.string()),
        _field("dest", pa.string()),
        _field("dep_delay", pa.int64(), nullable=True),
        _field("arr_delay", pa.int64(), nullable=True),
        _field("distance", pa.int64()),
    ]
)


@bolt(vectorised=True, columns=["value"])
def enrich_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Parse a chunk's values, keep the flights that departed, add their carriers' names.

    Raises Reject if any record is no flight or its carrier is unknown: the executor then
    halves the chunk until the bad records stand alone.
    """
    values: list[Any] = batch.column("value").to_pylist()
    try:
        flights = list(map(_decode, values))
    except (msgspec.DecodeError, TypeError) as error:  # TypeError: no value
        raise Reject(f"not a flight: {error}") from error
    flown = [flight for flight in flights if flight.dep_time is not None]
    carriers = pa.array([flight.carrier for flight in flown], pa.string())
    columns: list[pa.Array[Any]] = [
        pa.array([flight.time_hour for flight in flown], pa.string()),
        carriers,
        _names_of(carriers),
        pa.array([flight.flight for flight in flown], pa.int64()),
        pa.array([flight.tailnum for flight in flown], pa.string()),
        pa.array([flight.origin for flight in flown], pa.string()),
        pa.array([flight.dest for flight in flown], pa.string()),
        pa.array([flight.dep_delay for flight in flown], pa.int64()),
        pa.array([flight.arr_delay for flight in flown], pa.int64()),
        pa.array([flight.distance for flight in flown], pa.int64()),
    ]
    # The lineage is a column too: what is not ours is filtered as the flights were.
    keep = pa.array([flight.dep_time is not None for flight in flights], pa.bool_())
    others = [place for place, name in enumerate(batch.schema.names) if name != "value"]
    columns += [batch.column(place).filter(keep) for place in others]
    schema = pa.schema([*NAMED_FLIGHT, *(batch.schema.field(place) for place in others)])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _names_of(carriers: "pa.Array[pa.StringScalar]") -> "pa.Array[pa.StringScalar]":
    codes, names = _airlines()
    places = pc.index_in(carriers, value_set=codes)
    if places.null_count:
        unknown = carriers.filter(places.is_null())[0].as_py()
        raise Reject(f"carrier {unknown!r} is not in the table of airlines")
    return names.take(places)


@cache
def _airlines() -> "tuple[pa.Array[pa.StringScalar], pa.Array[pa.StringScalar]]":
    airlines = tables.airlines()
    return pa.array(list(airlines), pa.string()), pa.array(list(airlines.values()), pa.string())
