"""JSON documents, typed and plain."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.bolt import Kind, kind_of
from topology.errors import InvalidTopology
from topology.payloads.documents import Limits, json, raw, text
from topology.record import Record, Reject


class Order(msgspec.Struct):
    id: int
    at: datetime | None = None


@dataclass
class Line:
    sku: str
    price: Decimal


class Row(TypedDict):
    id: int


class Point(NamedTuple):
    x: float
    y: float


class Tree(msgspec.Struct):
    weight: Decimal
    branches: list["Tree"] = []


def decoded(bolt, value):
    return bolt(Record(value, None))


def reason_of(bolt, value):
    with pytest.raises(Reject) as rejected:
        decoded(bolt, value)
    return rejected.value.reason


@pytest.mark.parametrize(
    ("kind", "document", "value"),
    [
        (Order, b'{"id":1,"more":[1]}', Order(1)),
        (Line, b'{"sku":"a","price":0.10}', Line("a", Decimal("0.10"))),
        (Row, b'{"id":1}', {"id": 1}),
        (Point, b"[1,2.5]", Point(1.0, 2.5)),
        (list[int], b" [1,2] ", [1, 2]),
        (Tree, b'{"weight":1e2,"branches":[{"weight":1}]}', Tree(Decimal(100), [Tree(Decimal(1))])),
    ],
)
def test_a_type_is_what_comes_out(kind, document, value):
    found = decoded(json(kind), document)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "the record has no value"),
        (b"", "invalid JSON at byte 0: expecting value"),
        (b'{"id":', "invalid JSON at byte 6: expecting value"),
        (b"<order/>", "invalid JSON at byte 0: expecting value"),
        (b"[]", "wrong value at `$`: found `array`, expected `object`"),
        (b"{}", "wrong value at `$`: object missing required field `id`"),
        (b'{"id":"1"}', "wrong value at `$.id`: found `str`, expected `int`"),
        (b'{"id":null}', "wrong value at `$.id`: found `null`, expected `int`"),
        (b'{"id":1.5}', "wrong value at `$.id`: found `float`, expected `int`"),
        (b'{"id":NaN}', "invalid JSON at byte 6: found NaN"),
        (b'{"id":1}x', "invalid JSON at byte 8: extra data"),
    ],
)
def test_what_is_not_of_the_type_is_rejected_with_its_place(value, reason):
    assert reason_of(json(Order), value) == reason


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("1e400", Decimal("1e400")),
        ("-" + "9" * 400, Decimal("-" + "9" * 400)),
        ("1e1000", Decimal("1e1000")),
        ("1e1001", Decimal("Infinity")),
        ("-1e99999999999999999999999", Decimal("-Infinity")),
        ("18446744073709551616", 1.8446744073709552e19),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775809", -9.223372036854775809e18),
    ],
)
def test_number_beside_one_that_no_float_holds_is_what_it_is_alone(number, value):
    assert decoded(json(), f'{{"a":[{number}],"b":1e999}}'.encode())["a"] == [value]


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_rejected(value):
    for bolt in (json(), json(Order), json(Any, limits=None)):
        try:
            decoded(bolt, value)
        except Reject:
            continue


def test_depth_that_recursion_cannot_bear_is_rejected_without_limits_too():
    deep = b"[" * 100_000 + b"]" * 100_000
    for bolt in (json(limits=None), json(Any, limits=None)):
        assert reason_of(bolt, deep)


def test_plain_json_and_text_are_decoded():
    assert decoded(json(), b'{"a":[1,2.5,null,true]}') == {"a": [1, 2.5, None, True]}
    assert decoded(raw(), b"\x00\xff") == b"\x00\xff"
    assert decoded(text(), "grüß".encode()) == "grüß"
    assert decoded(text("latin-1"), b"\xfc") == "ü"
    assert [kind_of(each) for each in (json(), json(Order), raw(), text())] == [Kind.FUNCTION] * 4
    assert [each.__name__ for each in (json(), raw(), text())] == ["json", "raw", "text"]


@pytest.mark.parametrize(
    ("bolt", "value", "reason"),
    [
        (json(), b"[1]", "wrong value at `$`: found `array`, expected `object`"),
        (raw(), None, "the record has no value"),
        (text(), None, "the record has no value"),
        (raw(limits=Limits(max_bytes=3)), b"1234", "4 bytes; at most 3 are allowed"),
        (text(limits=Limits(max_bytes=3)), b"1234", "4 bytes; at most 3 are allowed"),
        (text(), b"a\xff", "not utf-8 text: invalid start byte at byte 1"),
    ],
)
def test_other_bytes_are_rejected_with_the_reason(bolt, value, reason):
    assert reason_of(bolt, value) == reason


def test_unknown_encoding_is_refused():
    with pytest.raises(InvalidTopology, match="utf-9"):
        text("utf-9")


def test_a_limit_is_kept_before_the_parser_is_called():
    limits = Limits(max_bytes=20, max_depth=2)
    assert reason_of(json(Order, limits=limits), b" " * 21) == "21 bytes; at most 20 are allowed"
    assert reason_of(json(limits=limits), b'{"a":[[1]]}') == "nested 3 deep; at most 2 is allowed"


@pytest.mark.parametrize("kind", [Line, Tree, list[Decimal], dict[str, Decimal | None]])
def test_a_decimal_wherever_it_stands_has_its_exponent_bounded(kind):
    assert "an exponent of 999999999" in reason_of(json(kind), b'[{"price":1e999999999}]')


def test_a_type_that_msgspec_cannot_decode_is_refused_when_the_topology_is_drawn():
    with pytest.raises(InvalidTopology, match=r"json\(.*msgspec"):
        json(Order | Line)


@pytest.mark.parametrize("bolt", [json(), json(Order)], ids=["plain", "typed"])
@pytest.mark.parametrize(
    "value",
    [
        b'{"id":1',
        b'{"id":Infinity}',
        b"[1e999]",
        b'{"id":1,"at":"\xff"}',
        b'\xef\xbb\xbf{"id":1}',
        b'{"id":' + b"[" * 60_000 + b"]" * 60_000 + b"}",
        b'{"id":' + b"1" * 5_000 + b"}",
    ],
)
def test_neither_parser_lets_an_error_out_that_would_be_retried(bolt, value):
    assert reason_of(bolt, value)
