import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sinks.kafka.messages import Encoder, Message, as_json
from sinks.kafka.sink import KafkaTopicSink


def name_of(row: dict[str, Any]) -> str:
    return str(row["name"])


def test_a_row_becomes_a_message_by_the_users_functions() -> None:
    encoder = Encoder(
        "t", msgspec.json.encode, name_of, lambda row: [("a", b"\x00"), ("a", row["name"])]
    )
    encoded = encoder.encode([[{"name": "é"}]], 1_000)
    assert encoded.messages == [
        Message("t", '{"name":"é"}'.encode(), "é", (("a", b"\x00"), ("a", "é")))
    ]
    assert encoded.rejected == {}


def test_rows_of_columns_are_dictionaries_and_counted_on() -> None:
    columns = pa.RecordBatch.from_pylist([{"name": "b"}, {"name": "c"}])
    encoded = Encoder("t", name_of, None, None).encode([[{"name": "a"}, {}], columns, [{}]], 1_000)
    assert [message.value for message in encoded.messages] == ["a", "b", "c"]
    assert encoded.rejected == dict.fromkeys([1, 4], "KeyError: 'name'")


def test_a_message_without_a_value_is_sent() -> None:
    """That deletes its key where the topic is compacted."""
    encoded = Encoder("t", lambda _: None, name_of, None).encode([[{"name": "a"}]], 1_000)
    assert encoded.messages == [Message("t", None, "a")]


def test_what_is_no_content_is_rejected() -> None:
    encoded = Encoder("t", lambda row: row, None, None).encode([[1, b"1", 1.5]], 1_000)
    assert [message.value for message in encoded.messages] == [b"1"]
    assert encoded.rejected == {
        0: "TypeError: the value is a int; bytes, str or None is allowed",
        2: "TypeError: the value is a float; bytes, str or None is allowed",
    }


def test_a_message_larger_than_the_topic_allows_is_rejected_alone() -> None:
    encoder = Encoder("t", lambda row: row, None, lambda _: [("h", b"x" * 100)])
    encoded = encoder.encode([["a", "b" * 1_000, "é" * 400]], 1_000)
    assert [message.value for message in encoded.messages] == ["a"]
    assert encoded.rejected == {
        1: "a message of 1245 bytes; topic 't' allows 1000",
        2: "a message of 1045 bytes; topic 't' allows 1000",
    }


def test_headers_that_come_one_by_one_are_sent_too() -> None:
    def headers(row: str) -> Iterator[tuple[str, str]]:
        yield "name", row

    encoded = Encoder("t", lambda row: row, None, headers).encode([["a"]], 1_000)
    assert [tuple(message.headers) for message in encoded.messages] == [(("name", "a"),)]


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
        lambda x: (Reading(msgspec.Raw(b"1")), x),  # type: ignore[arg-type]
        lambda x: [Level.HALF if x == 1.5 else Level.NONE],
    ],
)
def test_a_number_that_json_has_not_is_rejected_and_not_sent_as_null(row: Any, number: Any) -> None:
    encoded = Encoder("t", as_json, None, None).encode([[row(number), row(1.5)]], 1_000)
    assert [message.value for message in encoded.messages] == [msgspec.json.encode(row(1.5))]
    assert encoded.rejected == {0: "ValueError: found NaN or an infinity, which JSON has not"}


@pytest.mark.parametrize(
    "row",
    [
        {"a": None, "b": 1.5, "c": "null", "d": [None, {"e": None}], "f": datetime.now(UTC)},
        {"a": None, "b": msgspec.Raw(b'{"x":null}')},
        {"a": Reading(None), "b": Decimal("NaN"), "c": Level.HALF, "d": {None}, "e": b"null"},
    ],
)
def test_nulls_that_are_in_a_row_are_sent(row: Any) -> None:
    encoded = Encoder("t", as_json, None, None).encode([[row]], 1_000)
    assert [message.value for message in encoded.messages] == [msgspec.json.encode(row)]
    assert encoded.rejected == {}


def test_without_a_function_a_message_is_the_row_as_json() -> None:
    encoder = KafkaTopicSink[Any]("t")._encoder
    encoded = encoder.encode([[{"a": None}, {"a": math.nan}]], 1_000)
    assert [message.value for message in encoded.messages] == [b'{"a":null}']
    assert list(encoded.rejected) == [1]


def test_columns_of_maps_and_of_short_times_are_json_as_rows_of_them_are() -> None:
    kind = pa.struct([("when", pa.timestamp("ns", "UTC")), ("tags", pa.map_(pa.string(), "int32"))])
    row = {"when": datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "tags": {"a": 1}}
    columns = pa.RecordBatch.from_pylist(
        [{"deep": [row], "flat": row["when"]}, {"deep": None, "flat": None}],
        pa.schema([("deep", pa.list_(kind)), ("flat", pa.timestamp("ns"))]),
    )
    columns = columns.set_column(
        1, "flat", pa.array([1_000_000_000_000_000_789, None], pa.timestamp("ns"))
    )
    encoded = Encoder("t", as_json, None, None).encode([columns], 1_000)
    assert encoded.rejected == {}
    assert [message.value for message in encoded.messages] == [
        b'{"deep":[{"when":"2026-01-02T03:04:05.000006Z","tags":{"a":1}}],"flat":"2001-09-09T01:46:40"}',
        b'{"deep":null,"flat":null}',
    ]


def test_a_row_of_columns_that_is_no_row_is_rejected_alone() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array([[("a", 1)], [("a", 1), ("a", 2)], [("b", 1)], []], kind),
            pa.array([0, 0, 2**62, 0], pa.timestamp("s")),
        ],
        names=["tags", "when"],
    )
    encoded = Encoder("t", as_json, None, None).encode([[{"n": 1}], columns], 1_000)
    assert [message.value for message in encoded.messages] == [
        b'{"n":1}',
        b'{"tags":{"a":1},"when":"1970-01-01T00:00:00"}',
        b'{"tags":{},"when":"1970-01-01T00:00:00"}',
    ]
    assert list(encoded.rejected) == [2, 3]
    assert "KeyError" in encoded.rejected[2]
