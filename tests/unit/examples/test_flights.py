import zlib
from collections import Counter
from datetime import UTC, datetime

import msgspec
import orjson
import pyarrow as pa
import pytest

from examples.flights import bolts, columns, publish, tables
from examples.flights.malformed import damaged
from examples.flights.rows import Airport, Flight, FlightEvent
from headrace import SKIP, Record, Reject
from tests.oracles import flights as oracle
from topology.calls import call_each, call_fan_out
from topology.schema import schema_of
from topology.vectorised import call_columns

LIMIT = 3_000
ROW = {
    "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2,
    "arr_time": 830, "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545,
    "tailnum": "N14228", "origin": "EWR", "dest": "IAH", "air_time": 227, "distance": 1400,
    "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
}  # fmt: skip


def record(value):
    return Record(value, None)


def flight(**changes):
    return msgspec.convert(ROW | changes, Flight)


@pytest.fixture(scope="module")
def enrich():
    bolt = bolts.Enrich()
    bolt.open()
    return bolt


def test_a_cancelled_flight_is_skipped():
    assert bolts.keep_flown(flight(dep_time=None)) is SKIP


@pytest.mark.parametrize("number", range(9))
def test_a_malformed_record_is_rejected_by_parse(number):
    with pytest.raises(Reject, match="not a flight"):
        bolts.parse(record(damaged(ROW, number)))


def test_unknown_carrier_and_hour_are_rejected_by_enrich(enrich):
    parsed = bolts.parse(record(damaged(ROW | {"dep_time": None}, 9)))
    assert bolts.keep_flown(parsed) is parsed
    with pytest.raises(Reject, match=r"carrier '\?\?' is not in the table"):
        enrich.process(parsed)
    with pytest.raises(Reject, match="'noon' is not an ISO 8601 time"):
        enrich.process(flight(time_hour="noon"))


@pytest.mark.parametrize(("miles", "fits"), [(1400, True), (1300, False), (1500, False)])
def test_a_distance_is_checked_against_the_great_circle(miles, fits):
    airports = tables.airports()
    assert bolts.distance_fits(miles, airports["EWR"], airports["IAH"]) is fits


def test_the_distance_of_an_unknown_airport_cannot_be_checked():
    assert bolts.distance_fits(1, Airport("here", 0.0, 0.0), None) is None


def test_the_tables_schema_is_the_oracles():
    assert schema_of(FlightEvent).names == oracle.SCHEMA.names
    assert schema_of(FlightEvent).types == oracle.SCHEMA.types


def test_messages_are_stable_and_spread_over_partitions():
    flights = tables.flights().slice(0, LIMIT)
    sent = list(publish.messages(flights))
    assert sent == list(publish.messages(flights))
    assert len(sent) == LIMIT + publish.MALFORMED
    bad = Counter(message.partition for message in sent if message.key.startswith(b"malformed"))
    assert bad == {0: 13, 1: 13, 2: 12, 3: 12}
    good = [message for message in sent if not message.key.startswith(b"malformed")]
    assert {message.partition for message in good} == {0, 1, 2, 3}
    assert all(message.partition == zlib.crc32(message.key) % 4 for message in good)
    assert good[0].timestamp_ms == datetime(2013, 1, 1, 10, tzinfo=UTC).timestamp() * 1000


def test_the_bolts_give_the_oracles_answer(enrich):
    sent = publish.messages(tables.flights().slice(0, LIMIT))
    records = [record(message.value) for message in sent]
    parsed = call_each("parse", bolts.parse.process, records)
    flown = call_each("keep_flown", bolts.keep_flown.process, parsed.sent["default"].piece)
    enriched = call_each("Enrich", enrich.process, flown.sent["default"].piece)
    events = call_fan_out("events", bolts.events.process, enriched.sent["default"].piece)
    wanted = oracle.expected(limit=LIMIT)
    assert len(records) == wanted.read
    assert len(parsed.failures) + len(enriched.failures) == wanted.dead_lettered
    assert len(parsed.sent["default"].piece) - len(flown.sent["default"].piece) == wanted.filtered
    table = pa.Table.from_pylist(events.sent["default"].piece, schema=schema_of(FlightEvent))
    assert oracle.differences(table, wanted.table).num_rows == 0


def test_the_columnar_bolt_gives_what_the_plain_ones_give():
    values = [m.value for m in publish.messages(tables.flights().slice(0, LIMIT))]
    named = bolts.NameCarrier()
    named.open()
    parsed = call_each("parse", bolts.parse.process, [record(value) for value in values])
    flown = call_each("keep_flown", bolts.keep_flown.process, parsed.sent["default"].piece)
    plain = call_each("NameCarrier", named.process, flown.sent["default"].piece)
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    read = call_columns("parse_columns", columns.parse_columns.process, batch)
    assert isinstance(read.sent["default"].piece, pa.RecordBatch)
    assert read.sent["default"].parents is not None
    name_carriers = columns.name_carriers.process
    called = call_columns("name_carriers", name_carriers, read.sent["default"].piece)
    assert isinstance(called.sent["default"].piece, pa.RecordBatch)
    assert called.sent["default"].parents is not None
    assert called.sent["default"].piece.schema == columns.NAMED_FLIGHT
    assert called.sent["default"].piece.to_pylist() == plain.sent["default"].piece
    errors = [*read.failures.values(), *called.failures.values()]
    assert len(errors) == publish.MALFORMED
    assert all(isinstance(error, Reject) for error in errors)
    assert values[read.sent["default"].parents[called.sent["default"].parents[-1]]] == values[-1]


def test_the_columnar_bolt_takes_a_chunk_without_any_flown_flight():
    value = orjson.dumps(ROW | {"dep_time": None})
    batch = pa.record_batch({"value": pa.array([value], pa.binary())})
    flights = columns.parse_columns(batch)
    assert columns.name_carriers(flights).num_rows == 0
    assert columns.name_carriers(flights.slice(0, 0)).num_rows == 0


def test_the_oracle_sees_missing_unknown_and_repeated_rows():
    wanted = oracle.expected(limit=50).table
    other = oracle.expected(limit=51).table.slice(wanted.num_rows)
    actual = pa.concat_tables([wanted.slice(1), wanted.slice(2, 3), other])
    difference = oracle.differences(actual, wanted)
    assert oracle.missing(difference) == 1
    assert oracle.repeated(difference) == 3
    assert oracle.unknown(difference) == other.num_rows
