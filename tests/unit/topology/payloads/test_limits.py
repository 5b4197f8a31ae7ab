"""The limits: what the screen lets pass is within them, and what is within them passes."""

import json

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topology.errors import InvalidTopology
from topology.payloads.documents import Limits

SMALL = Limits(max_bytes=400, max_depth=3, max_number_digits=12, max_exponent=30)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":1}', None),
        (b"[[[1]]]", None),
        (b"[[[[1]]]]", "nested 4 deep; at most 3 is allowed"),
        (b'{"a":{"b":{"c":{}}}}', "nested 4 deep; at most 3 is allowed"),
        (b"[[],[],[],[],[],[]]", None),  # many brackets, and flat
        (b'{"a":"[[[[[[{{{{{"}', None),  # in a string they are letters
        (b'{"a":"\\"[[[[[["}', None),
        (b"1" * 12, None),
        (b"[" + b"1" * 13 + b"]", "a number of 13 digits; at most 12 are allowed"),
        (b"0." + b"1" * 40, "a number of 40 digits; at most 12 are allowed"),
        (b'{"a":"' + b"1" * 40 + b'"}', None),
        (b" " * 401, "401 bytes; at most 400 are allowed"),
        (b"", None),
    ],
)
def test_a_text_is_refused_for_what_breaks_a_limit_and_for_nothing_else(text, reason):
    assert SMALL.json_screen()(text) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"1e30", None),
        (b"1E+0030", None),
        (b"1e31", "an exponent of 31; at most 30 is allowed"),
        (b"[1,-2.5e-99]", "an exponent of 99; at most 30 is allowed"),
        (b"1e999999999", "an exponent of 999999999; at most 30 is allowed"),
        (b'{"a":"1e99"}', None),
    ],
)
def test_exponents_are_looked_at_where_a_decimal_may_come_of_them(text, reason):
    assert SMALL.decimal_screen()(text) == reason


VALUES = st.recursive(
    st.none() | st.booleans() | st.text(max_size=8) | st.integers(-(10**15), 10**15),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


def depth_of(value):
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def digits_of(value):
    if isinstance(value, dict):
        return max(map(digits_of, value.values()), default=0)
    if isinstance(value, list):
        return max(map(digits_of, value), default=0)
    return len(str(abs(value))) if type(value) is int else 0


@given(VALUES, st.integers(1, 5), st.integers(1, 40))
@example([10**15], 1, 15)
def test_the_screen_agrees_with_the_values_themselves(value, max_depth, max_digits):
    limits = Limits(max_depth=max_depth, max_number_digits=max_digits)
    within = depth_of(value) <= max_depth and digits_of(value) <= max_digits
    for text in (json.dumps(value).encode(), orjson.dumps(value)):
        assert (limits.json_screen()(text) is None) == within


@given(st.integers(1, 300), st.integers(0, 50), st.integers(0, 50), st.integers(-2, 40))
def test_no_number_slips_between_the_samples(max_digits, before, after, more):
    text = b"x" * before + b"7" * max(0, max_digits + more) + b"x" * after
    refused = Limits(max_number_digits=max_digits).json_screen()(text)
    assert (refused is not None) == (more > 0)


def test_texts_made_to_be_slow_are_looked_at_in_linear_time():
    wide = Limits(max_number_digits=1_000)
    assert wide.too_deep_or_long((b"1" * 1_000 + b",") * 1_000) is None
    assert SMALL.too_deep_or_long(b'"\\' * 500_000) is None
    assert SMALL.too_deep_or_long(b'"' + b"\\\\" * 500_000) is None


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None])
def test_a_limit_that_is_no_number_is_refused_by_name(wrong):
    with pytest.raises(InvalidTopology, match=r"Limits\(max_depth=.*whole number >= 1"):
        Limits(max_depth=wrong)
