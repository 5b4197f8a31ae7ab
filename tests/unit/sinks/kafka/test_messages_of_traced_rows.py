"""A topic's messages carry on the traces of their rows."""

from sinks.kafka.messages import Encoder

TRACE = (("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"),)


def value(row: str) -> str:
    if row == "bad":
        raise ValueError(row)
    return row


def test_a_rows_headers_go_into_its_own_message_and_replace_such_as_are_there():
    encoder = Encoder("t", value, None, lambda row: [("Traceparent", "old"), ("own", row)])
    encoded = encoder.encode([["a", "bad"], ["b", "c"]], 1_000, {1: TRACE, 2: TRACE})
    assert list(encoded.rejected) == [1]
    assert [message.value for message in encoded.messages] == ["a", "b", "c"]
    old = (("Traceparent", "old"),)
    assert [tuple(message.headers) for message in encoded.messages] == [
        (*old, ("own", "a")),
        (("own", "b"), *TRACE),
        (*old, ("own", "c")),
    ]


def test_a_message_that_would_become_too_large_goes_without():
    encoder = Encoder("t", value, None, None)
    encoded = encoder.encode([["a" * 100]], 240, {0: TRACE})
    assert not encoded.rejected
    assert encoded.messages[0].headers == ()
