import logging
import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import partial

import msgspec
import pyarrow as pa
import pytest
import structlog
from confluent_kafka import KafkaError

from sinks.kafka.client import ClientErrorLog, is_news
from sinks.kafka.messages import OutgoingMessage, as_json, encode, message_of
from sinks.kafka.sink import KafkaTopicSink
from topology.sink import NO_TRACES

TRACE = (("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"),)


def name_of(row):
    return str(row["name"])


def encoded(pieces, value=name_of, key=None, headers=None, size=1_000, traces=NO_TRACES):
    return encode(pieces, partial(message_of, "t", value, key, headers), size, traces)


def values(found):
    return [message.value for message in found.messages]


def test_row_becomes_a_message_by_the_users_functions():
    def headers(row):
        yield "a", b"\x00"
        yield "a", row["name"]

    found = encoded([[{"name": "é"}]], msgspec.json.encode, name_of, headers)
    value = '{"name":"é"}'.encode()
    assert found.messages == [OutgoingMessage("t", value, "é", (("a", b"\x00"), ("a", "é")))]
    assert found.rejected == {}


def test_rows_of_columns_are_dictionaries():
    columns = pa.RecordBatch.from_pylist([{"name": "b"}, {"name": "c"}])
    found = encoded([[{"name": "a"}, {}], columns, [{}]])
    assert values(found) == ["a", "b", "c"]
    assert found.rejected == dict.fromkeys([1, 4], "KeyError: 'name'")


def test_message_without_a_value_is_sent():
    """It deletes its key where the topic is compacted."""
    assert encoded([["a"]], lambda _: None, str).messages == [OutgoingMessage("t", None, "a")]


def test_invalid_content_is_rejected():
    found = encoded([[1, b"1", 1.5]], lambda row: row)
    assert values(found) == [b"1"]
    assert found.rejected == {
        0: "TypeError: the value is a int, expected bytes, str or None",
        2: "TypeError: the value is a float, expected bytes, str or None",
    }


def test_too_large_message_is_rejected_alone():
    rows = ["a", "b" * 1_000, "é" * 400]
    found = encoded([rows], lambda row: row, None, lambda _: [("h", b"x" * 100)])
    assert values(found) == ["a"]
    assert found.rejected == {
        1: "a message of 1245 bytes; topic 't' allows 1000",
        2: "a message of 1045 bytes; topic 't' allows 1000",
    }


def test_trace_headers_replace_older_ones_and_need_room():
    def value(row):
        if row == "bad":
            raise ValueError(row)
        return row

    def headers(row):
        return [("Traceparent", "old"), ("own", row)]

    traces = {1: TRACE, 2: TRACE}
    found = encoded([["a", "bad"], ["b", "c"]], value, None, headers, traces=traces)
    assert (list(found.rejected), values(found)) == ([1], ["a", "b", "c"])
    old = (("Traceparent", "old"),)
    assert [tuple(message.headers) for message in found.messages] == [
        (*old, ("own", "a")),
        (("own", "b"), *TRACE),
        (*old, ("own", "c")),
    ]
    (large,) = encoded([["a" * 100]], value, size=240, traces={0: TRACE}).messages
    assert large.headers == ()


@dataclass
class Reading:
    value: float | None


class Level(Enum):
    NONE = math.nan
    HALF = 0.5


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "row",
    [
        lambda x: x,
        lambda x: {"a": None, "b": [x]},
        lambda x: {"a": None, "b": x},
        lambda x: [{}, {"a": [1, {"b": x}]}],
        Reading,
        lambda x: {"a": (Reading(x),)},
        lambda x: {"a": {x}},
        lambda x: OrderedDict(a=None, b=x),
        lambda x: {"a": msgspec.Raw(b"1"), "b": x},
        lambda x: (Reading(msgspec.Raw(b"1")), x),
        lambda x: [Level.HALF if x == 1.5 else Level.NONE],
    ],
)
def test_number_that_json_lacks_is_rejected(row, number):
    found = encoded([[row(number), row(1.5)]], as_json)
    assert values(found) == [msgspec.json.encode(row(1.5))]
    assert found.rejected == {0: "ValueError: found NaN or an infinity, which JSON has not"}


@pytest.mark.parametrize(
    "row",
    [
        {"a": None, "b": 1.5, "c": "null", "d": [None, {"e": None}], "f": datetime.now(UTC)},
        {"a": None, "b": msgspec.Raw(b'{"x":null}')},
        {"a": Reading(None), "b": Decimal("NaN"), "c": Level.HALF, "d": {None}, "e": b"null"},
    ],
)
def test_null_in_a_row_is_sent(row):
    found = encoded([[row]], as_json)
    assert (values(found), found.rejected) == ([msgspec.json.encode(row)], {})
    assert encode([[row]], KafkaTopicSink("t")._message, 1_000) == found


def test_maps_and_short_times_of_columns_become_json():
    kind = pa.struct([("when", pa.timestamp("ns", "UTC")), ("tags", pa.map_(pa.string(), "int32"))])
    row = {"when": datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "tags": {"a": 1}}
    columns = pa.RecordBatch.from_pylist(
        [{"deep": [row], "flat": row["when"]}, {"deep": None, "flat": None}],
        pa.schema([("deep", pa.list_(kind)), ("flat", pa.timestamp("ns"))]),
    )
    columns = columns.set_column(
        1, "flat", pa.array([1_000_000_000_000_000_789, None], pa.timestamp("ns"))
    )
    found = encoded([columns], as_json)
    assert found.rejected == {}
    assert values(found) == [
        b'{"deep":[{"when":"2026-01-02T03:04:05.000006Z","tags":{"a":1}}],"flat":"2001-09-09T01:46:40"}',
        b'{"deep":null,"flat":null}',
    ]


def test_null_that_a_schema_denies_is_sent_beside_times():
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("ns"))])
    columns = pa.RecordBatch.from_pylist([{"id": 1}, {"id": None}], schema)
    assert values(encoded([columns], as_json)) == [b'{"id":1,"at":null}', b'{"id":null,"at":null}']


def test_invalid_row_of_columns_is_rejected_alone():
    kind = pa.map_(pa.string(), pa.int64())
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array([[("a", 1)], [("a", 1), ("a", 2)], [("b", 1)], []], kind),
            pa.array([0, 0, 2**62, 0], pa.timestamp("s")),
        ],
        names=["tags", "when"],
    )
    found = encoded([[{"n": 1}], columns], as_json)
    assert values(found) == [
        b'{"n":1}',
        b'{"tags":{"a":1},"when":"1970-01-01T00:00:00"}',
        b'{"tags":{},"when":"1970-01-01T00:00:00"}',
    ]
    assert list(found.rejected) == [2, 3]
    assert "KeyError" in found.rejected[2]


RESOLVE = KafkaError(KafkaError._RESOLVE, "no such name")
DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
REFUSED = KafkaError(KafkaError._AUTHENTICATION, "bad password")


def test_repeated_error_is_logged_every_half_minute():
    now = [100.0]
    errors = ClientErrorLog("broker_error", "t.dead", lambda: now[0])
    with structlog.testing.capture_logs() as logged:
        for _ in range(1000):
            errors.take(RESOLVE)
        errors.take(DOWN)
        now[0] += 30.0
        errors.take(RESOLVE)
    assert [(each["error"], each["held_back"]) for each in logged] == [
        ("no such name", 0),
        ("no such name", 999),
    ]
    assert {(each["event"], each["topic"]) for each in logged} == {("broker_error", "t.dead")}


def test_rejected_credentials_and_the_last_error_are_kept():
    errors = ClientErrorLog("broker_error", "t.dead")
    assert (errors.refused, errors.last) == (None, "")
    for each in (REFUSED, DOWN):
        errors.take(each)
    assert errors.refused is REFUSED
    assert errors.last == "bad password", "that all are down says less"


def test_lines_of_errors_that_the_callback_hears_stay_out_of_the_log():
    texts = [f"{each} [rdkafka#producer-1] x" for each in ("FAIL", "ERROR", "GETPID", "CONFWARN")]
    passed = [text for text in texts if is_news(logging.makeLogRecord({"msg": text}))]
    assert passed == ["CONFWARN [rdkafka#producer-1] x"]
