"""Bytes and text."""

import pytest

from topology.bolt import Kind, kind_of
from topology.errors import InvalidTopology
from topology.payloads.limits import Limits
from topology.payloads.plain import raw, text
from topology.record import Record, Reject


def record(value):
    return Record(value, None)


def test_raw_gives_the_value_as_it_is():
    assert raw()(record(b"\x00\xff")) == b"\x00\xff"
    assert raw()(record(b"")) == b""


def test_text_is_decoded():
    assert text()(record("grüß".encode())) == "grüß"
    assert text("latin-1")(record(b"\xfc")) == "ü"


@pytest.mark.parametrize(
    ("bolt", "value", "reason"),
    [
        (raw(), None, "the record has no value"),
        (text(), None, "the record has no value"),
        (raw(limits=Limits(max_bytes=3)), b"1234", "4 bytes; at most 3 are allowed"),
        (text(limits=Limits(max_bytes=3)), b"1234", "4 bytes; at most 3 are allowed"),
        (text(), b"a\xff", "not utf-8 text: invalid start byte at byte 1"),
    ],
)
def test_what_is_none_of_it_is_rejected_with_its_reason(bolt, value, reason):
    with pytest.raises(Reject) as rejected:
        bolt(record(value))
    assert rejected.value.reason == reason


def test_an_encoding_that_does_not_exist_is_refused_when_the_topology_is_drawn():
    with pytest.raises(InvalidTopology, match="utf-9"):
        text("utf-9")


def test_they_are_plain_bolts_named_after_what_they_do():
    assert [bolt.__name__ for bolt in (raw(), text())] == ["raw", "text"]
    assert {kind_of(raw()), kind_of(text())} == {Kind.FUNCTION}
