"""Values as lines: where they stand if they end with line breaks, and the same if they do not."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from partition.records import Partition
from tests.support.messages import message
from topology.payloads.documents import Limits
from topology.payloads.json_columns import json_columns, lines_of
from topology.vectorised import call_columns, columns_of

SMALL = Limits(max_bytes=40, max_depth=3, max_number_digits=12)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
READ = json_columns(SCHEMA, limits=SMALL).function
pa.array(np.arange(1))  # the first call imports pandas, which is no part of an example's time
PIECES = st.sampled_from(
    [b"%c" % code for code in b'{}[]",:1 \\\n\r\0']
    + [b'"id"', b'"id":1', b"null", b"\xff", "é".encode(), b'{"id":1}', b'{"id":2,"x":[{}']
    + [b'{"id":3}\n', b'{"id":\n4,"name":"b"}', b'{"id":5,"name":"', b"[" * 4, b"1" * 13]
)
VALUES = st.lists(st.none() | st.lists(PIECES, max_size=6).map(b"".join), min_size=1, max_size=6)


def batch_of(values, *, line_breaks):
    place = Partition("in", 0)
    messages = [message(place, at, value) for at, value in enumerate(values)]
    return columns_of(messages, ["value"], line_breaks=line_breaks)


def column_of(values):
    return batch_of(values, line_breaks=True).column("value")


def outcome_of(batch):
    """The rows by their places, and the reasons of those rejected."""
    called = call_columns("json_columns", READ, batch)
    places = range(len(called.piece)) if called.parents is None else called.parents.tolist()
    rows = dict(zip(places, called.piece.to_pylist(), strict=True))
    return rows, {place: error.reason for place, error in called.failures.items()}


@given(VALUES, st.data())
@example([b'{"id":1}{"id":2}', b'{"id":3}\0}', b'{"id":4}'], None)
@example([b'{"id":5,"name":"}', b'{"}', b'{"id":1}{"id":2}'], None)
@example([b'{"id":1}\n{"id":2}', b'{"id":3,"x":[{"a":1}', b'{"id":4}]}'], None)
@example([b'{"id":3}\n', b'{"id":3}', b'{"id":3}\n\n'], None)
@example([b'{"id":1,"name":"' + b"a" * 23 + b'"}', b'{"id":1,"name":"' + b"a" * 22 + b'"}\n'], None)
def test_values_with_and_without_line_breaks_read_the_same(values, data):
    with_breaks = batch_of(values, line_breaks=True)
    without = batch_of(values, line_breaks=False)
    expected = outcome_of(without)
    assert outcome_of(with_breaks) == expected
    order = list(reversed(range(len(values))))
    start, stop = 0, len(values)
    if data is not None:
        order = data.draw(st.permutations(order))
        start = data.draw(st.integers(0, len(values)))
        stop = data.draw(st.integers(start, len(values)))
    for part in (slice(start, stop), order):
        if isinstance(part, slice):
            pair = [batch.slice(start, stop - start) for batch in (without, with_breaks)]
            alone = batch_of(values[part], line_breaks=False)
        else:
            pair = [batch.take(pa.array(order)) for batch in (without, with_breaks)]
            alone = batch_of([values[at] for at in order], line_breaks=False)
        expected = outcome_of(alone)
        assert [outcome_of(batch) for batch in pair] == [expected, expected]


def test_lines_stand_where_the_values_are_also_of_a_slice_and_of_rows_that_were_taken():
    whole = column_of([b'{"id":%d}' % number for number in range(20)])
    for values, first, size in (
        (whole, 0, 10 * 9 + 10 * 10),
        (whole.slice(3, 5), 27, 45),
        (whole.slice(8).slice(1, 2), 81, 19),
        (whole.take(pa.array([12, 3])), 0, 19),
    ):
        text = lines_of(values, SMALL, with_breaks=True)
        assert text.to_pybytes() == b"".join(values.to_pylist())
        assert (text.address, text.size) == (values.buffers()[2].address + first, size)


@pytest.mark.parametrize("line_breaks", [False, True])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"id":1,"name":"' + b"a" * 22 + b'"}', None),
        (b'{"id":1,"name":"' + b"a" * 23 + b'"}', "41 bytes; at most 40 are allowed"),
        (b'{"id":1,"x":[[1,2]]}', None),
        (b'{"id":1,"x":[[[1]]]}', "nested 4 deep; at most 3 is allowed"),
        (b'{"id":1,"x":{"y":{"z":{}}}}', "nested 4 deep; at most 3 is allowed"),
        (b'{"id":123456789012}', None),
        (b'{"id":1234567890123}', "a number of 13 digits; at most 12 are allowed"),
        ('{"id":1,"name":"é"}'.encode(), None),
        (b'{"id":1,"name":"\xed\xa0\x80"}', "invalid UTF-8 at byte 16"),  # half a surrogate pair
        (b'{"id":1,"name":"\xc0\xaf"}', "invalid UTF-8 at byte 16"),  # longer than it must be
    ],
)
def test_a_limit_is_kept_to_the_byte_among_many_rows(value, reason, line_breaks):
    values = [b'{"id":%d,"x":[]}' % number for number in range(100)]
    rows, reasons = outcome_of(batch_of([*values, value, *values], line_breaks=line_breaks))
    assert reasons == ({} if reason is None else {100: reason})
    assert len(rows) == (200 if reason else 201)


@given(st.lists(st.lists(st.sampled_from(b'{}[]"x'), max_size=12), min_size=1, max_size=8))
def test_no_value_that_is_too_deep_passes_for_one_that_is_not(inner):
    values = [b"{" + bytes(each) + b"}" for each in inner]
    screen = SMALL.json_screen()
    for value in values:
        text = lines_of(column_of([value]), SMALL, with_breaks=True)
        assert text is None or screen(value) is None
