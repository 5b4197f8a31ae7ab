from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology import reference
from topology.reference import KeyIndex, comparable, key_column

WHOLE = st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20)
KINDS = {
    "int64": (pa.int64(), WHOLE),
    "string": (pa.string(), st.text(max_size=2)),
    "large_string": (pa.large_string(), st.text(max_size=2)),
    "binary": (pa.binary(), st.binary(max_size=2)),
    "fixed": (pa.binary(1), st.binary(min_size=1, max_size=1)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates(date(2013, 1, 1), date(2013, 1, 9))),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        st.integers(0, 9).map(lambda second: datetime.fromtimestamp(second, UTC)),
    ),
    "decimal": (pa.decimal128(38, 18), st.integers(0, 9).map(Decimal)),
}


@st.composite
def look_ups(draw, kinds):
    """Keys that differ, as columns, and columns of values, some of them null, of equal length."""
    chosen = [KINDS[kind] for kind in kinds]
    rows = draw(st.lists(st.tuples(*(values for _, values in chosen)), max_size=30, unique=True))
    often = st.sampled_from(rows) if rows else st.nothing()
    rare = st.tuples(*(st.none() | values for _, values in chosen))
    asked = draw(st.lists(often | rare, max_size=60))
    columns = [
        [pa.array([row[place] for row in table], kind) for place, (kind, _) in enumerate(chosen)]
        for table in (rows, asked)
    ]
    return rows, asked, *columns


@pytest.mark.parametrize("few", [0, 1000], ids=["dictionary", "arrow"])
@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), ("string", "int64")])
def test_a_row_is_found_as_in_a_dictionary(kinds, few, monkeypatch):
    monkeypatch.setattr(reference, "_FEW", few)

    @given(look_ups(kinds))
    def check(drawn):
        rows, asked, keys, columns = drawn
        expected = {row: place for place, row in enumerate(rows)}
        assert KeyIndex(keys).of(columns).to_pylist() == [expected.get(row) for row in asked]

    check()


@pytest.mark.parametrize("keys", [[5, 3, 4, 9], [-3, 0, -1], [2**63 - 1, 2**63 - 2]])
def test_whole_numbers_without_great_gaps_are_found_without_hashing(keys):
    found = KeyIndex([pa.array(keys, pa.int64())])
    assert found._by_number is not None
    asked = [*keys, None, min(keys) - 1, 2**63 - 1, -(2**63), 0]
    expected = {key: place for place, key in enumerate(keys)}
    column = pa.array(asked, pa.int64())
    assert found.of([column]).to_pylist() == [expected.get(number) for number in asked]
    assert found.of([column.slice(1, 2)]).to_pylist() == [expected.get(n) for n in asked[1:3]]


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        (pa.array([1, 2], pa.int16()), pa.int64(), [1, 2]),
        (pa.array([1, None], pa.uint32()), pa.int64(), [1, None]),
        (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), pa.string(), ["a", "b", "a"]),
        (pa.array([b"a"], pa.large_binary()), pa.binary(), [b"a"]),
        (pa.array([None, None]), pa.string(), [None, None]),
        (pa.array(["5"]), pa.int64(), None),
        (pa.array([5]), pa.string(), None),
        (pa.array([b"a"]), pa.string(), None),
        (pa.array([1.0]), pa.int64(), None),
        (pa.array([1], pa.uint64()), pa.int64(), None),
        (pa.array([True]), pa.int64(), None),
        (pa.array([1], pa.timestamp("us")), pa.timestamp("us", tz="UTC"), None),
    ],
)
def test_only_text_bytes_and_whole_numbers_are_cast_for_a_comparison(column, kind, values):
    found = comparable(column, kind)
    assert (found and (found.type, found.to_pylist())) == (values and (kind, values))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1], pa.int8()), pa.int64()),
        (pa.array(["a"], pa.string_view()), pa.string()),
        (pa.array([b"a"], pa.binary_view()), pa.binary()),
        (pa.array(["a"]).dictionary_encode(), pa.string()),
        (pa.array(["a"], pa.large_string()), pa.large_string()),
        *((pa.array(values), None) for values in ([1.5], [[1]], np.array([1], "m8[s]"))),
    ],
)
def test_a_key_is_stored_so_that_it_can_be_compared(column, kind):
    found = key_column(column)
    assert (found and found.type) == kind
