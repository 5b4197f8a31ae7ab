import json as standard
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import msgspec
import orjson
import pydantic
import pytest
from hypothesis import example, given
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


class Parcel(pydantic.BaseModel):
    id: int
    weights: list[Decimal] = []


class Point(NamedTuple):
    x: float
    y: float


class Tree(msgspec.Struct):
    size: Decimal
    parts: list["Tree"] = []


def decoded(bolt, value):
    return bolt(Record(value, None))


@pytest.mark.parametrize(
    ("bolt", "document", "value"),
    [
        (json(Order), b'{"id":1,"more":[1]}', Order(1)),
        (json(Line), b'{"sku":"a","price":0.10}', Line("a", Decimal("0.10"))),
        (json(TypedDict("Row", {"id": int})), b'{"id":1}', {"id": 1}),
        (json(Parcel), b'{"id":1,"weights":[0.10]}', Parcel(id=1, weights=[Decimal("0.10")])),
        (json(Point), b"[1,2.5]", Point(1.0, 2.5)),
        (json(list[int]), b" [1,2] ", [1, 2]),
        (json(Tree), b'{"size":1e2,"parts":[{"size":1}]}', Tree(Decimal(100), [Tree(Decimal(1))])),
        (json(), b'{"a":[1,2.5,null,true]}', {"a": [1, 2.5, None, True]}),
        (raw(), b"\x00\xff", b"\x00\xff"),
        (text(), "grüß".encode(), "grüß"),
        (text("latin-1"), b"\xfc", "ü"),
    ],
)
def test_decoded_value_has_its_type(bolt, document, value):
    found = decoded(bolt, document)
    assert (found, type(found)) == (value, type(value))
    assert kind_of(bolt) is Kind.FUNCTION
    assert bolt.__name__ in ("json", "raw", "text")


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
@example(b"[" * 100_000 + b"]" * 100_000)  # deeper than recursion can bear
@example(b'{"id":' + b"1" * 5_000 + b"}")
def test_any_bytes_are_a_value_or_rejected(value):
    for bolt in (json(), json(Order), json(limits=None), json(Any, limits=None)):
        try:
            decoded(bolt, value)
        except Reject:
            continue


SMALL = Limits(max_bytes=20, max_depth=2)


@pytest.mark.parametrize(
    ("bolt", "value", "reason"),
    [
        (raw(), None, "the record has no value"),
        (text(), None, "the record has no value"),
        (text(), b"a\xff", "not utf-8 text: invalid start byte at byte 1"),
        *(
            (bolt, b" " * 21, "21 bytes, expected at most 20")
            for bolt in (raw(limits=SMALL), text(limits=SMALL), json(Order, limits=SMALL))
        ),
        (json(limits=SMALL), b'{"a":[[1]]}', "nested 3 deep, expected at most 2"),
        (json(Parcel), None, "the record has no value"),
        (json(Parcel, limits=SMALL), b'{"a":[[1]]}', "nested 3 deep, expected at most 2"),
        (json(Parcel), b"{}", "wrong value at `$.id`: field required"),
        (json(Parcel), b'{"id":1', "invalid JSON at byte 7: expecting ',' delimiter"),
        (json(Parcel), b'{"id":NaN}', "invalid JSON at byte 6: found NaN"),
        (
            json(Parcel),
            b'{"id":1,"weights":[1,"x"],"more":1}',
            "wrong value at `$.weights[1]`: input should be a valid decimal",
        ),
        *(
            (
                json(kind),
                b'[{"price":1e999999999}]',
                "an exponent of 999999999, expected at most 1000",
            )
            for kind in (Line, Tree, list[Decimal], dict[str, Decimal | None], Parcel)
        ),
    ],
)
def test_other_bytes_are_rejected_with_the_reason(bolt, value, reason):
    with pytest.raises(Reject) as rejected:
        decoded(bolt, value)
    assert rejected.value.reason == reason


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: text("utf-9"), "utf-9"),
        (lambda: json(Order | Line), r"json\(.*msgspec"),
        *(
            (lambda wrong=wrong: Limits(max_depth=wrong), r"Limits\(max_depth=.*whole number >= 1")
            for wrong in [0, 1.5, True, None]
        ),
    ],
)
def test_invalid_argument_is_refused_when_the_bolt_is_made(make, error):
    with pytest.raises(InvalidTopology, match=error):
        make()


LIMITS = Limits(max_bytes=400, max_depth=3, max_number_digits=12, max_exponent=30)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[[[1]]]", None),
        (b"[[[[1]]]]", "nested 4 deep, expected at most 3"),
        (b'{"a":{"b":{"c":{}}}}', "nested 4 deep, expected at most 3"),
        (b"[[],[],[],[],[],[]]", None),  # many brackets, and flat
        (b'{"a":"\\"[[[[[["}', None),  # in a string they are letters
        (b"1" * 12, None),
        (b"[" + b"1" * 13 + b"]", "a number of 13 digits, expected at most 12"),
        (b"0." + b"1" * 40, "a number of 40 digits, expected at most 12"),
        (b'{"a":"' + b"1" * 40 + b'"}', None),
        (b" " * 401, "401 bytes, expected at most 400"),
        (b"", None),
        (b"1e30", None),
        (b"1E+0030", None),
        (b"1e31", "an exponent of 31, expected at most 30"),
        (b"[1,-2.5e-99]", "an exponent of 99, expected at most 30"),
        (b'{"a":"1e99"}', None),
    ],
)
def test_text_is_refused_for_what_breaks_a_limit_and_for_nothing_else(text, reason):
    assert LIMITS.decimal_screen()(text) == reason
    if reason is None or "exponent" not in reason:
        assert LIMITS.json_screen()(text) == reason


VALUES = st.recursive(
    st.none() | st.booleans() | st.text(max_size=8) | st.integers(-(10**15), 10**15),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


def measured(value):
    """The depth of a value, and the digits of its longest number."""
    if isinstance(value, dict | list):
        parts = map(measured, value.values() if isinstance(value, dict) else value)
        depths, digits = zip((0, 0), *parts, strict=True)
        return 1 + max(depths), max(digits)
    return 0, len(str(abs(value))) if type(value) is int else 0


@given(VALUES, st.integers(1, 5), st.integers(1, 40))
@example([10**15], 1, 15)
def test_the_screen_agrees_with_the_values_themselves(value, max_depth, max_digits):
    refused = Limits(max_depth=max_depth, max_number_digits=max_digits).json_screen()
    depth, digits = measured(value)
    for written in (standard.dumps(value).encode(), orjson.dumps(value)):
        assert (refused(written) is None) == (depth <= max_depth and digits <= max_digits)


@given(st.integers(1, 300), st.integers(0, 50), st.integers(0, 50), st.integers(-2, 40))
def test_no_number_slips_between_the_samples(max_digits, before, after, more):
    text = b"x" * before + b"7" * max(0, max_digits + more) + b"x" * after
    refused = Limits(max_number_digits=max_digits).json_screen()(text)
    assert (refused is not None) == (more > 0)


def test_texts_made_to_be_slow_are_checked_in_linear_time():
    assert Limits().too_deep_or_long((b"1" * 1_000 + b",") * 1_000) is None
    assert LIMITS.too_deep_or_long(b'"\\' * 500_000) is None
    assert LIMITS.too_deep_or_long(b'"' + b"\\\\" * 500_000) is None
