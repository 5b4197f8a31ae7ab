from typing import Any

import msgspec
import pyarrow as pa

from sinks.topic.messages import Encoder, Message


def name_of(row: dict[str, Any]) -> str:
    return str(row["name"])


def test_a_row_becomes_a_message_by_the_users_functions() -> None:
    encoder = Encoder(
        "t", msgspec.json.encode, name_of, lambda row: [("a", b"\x00"), ("a", row["name"])]
    )
    encoded = encoder.encode([[{"name": "é"}]], 1_000)
    assert encoded.messages == [
        Message("t", '{"name":"é"}'.encode(), "é", [("a", b"\x00"), ("a", "é")])
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
