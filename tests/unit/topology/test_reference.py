import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from threading import Barrier

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import InvalidTopology, ReferenceNotLoaded, reference
from tests.support.patience import seconds
from topology.errors import BoltError, InvalidReference, ReferenceLoadFailed
from topology.reference import KeyIndex, comparable, key_column

AIRPORTS = [
    {"faa": "EWR", "name": "Newark", "alt": 18},
    {"faa": "IAH", "name": "Houston", "alt": None},
]
WEATHER = [
    {"origin": "EWR", "hour": 5, "temp": 39.0},
    {"origin": "EWR", "hour": 6, "temp": None},
    {"origin": "JFK", "hour": 5, "temp": 41.0},
]


@pytest.fixture
def airports():
    made = reference("airports.csv", key="faa")
    made.load(AIRPORTS)
    return made


@pytest.fixture
def weather():
    made = reference("db.weather", key=("origin", "hour"), value="temp")
    made.load(WEATHER)
    return made


def test_a_reference_is_a_mapping_from_its_key_to_the_other_columns(airports):
    assert airports["EWR"] == {"name": "Newark", "alt": 18}
    assert airports.get("IAH") == {"name": "Houston", "alt": None}
    assert (airports.get("LHR"), airports.get("LHR", "?")) == (None, "?")
    assert ("EWR" in airports, "LHR" in airports, len(airports)) == (True, False, 2)
    assert list(airports) == list(airports.keys()) == ["EWR", "IAH"]
    assert [row["name"] for row in airports.values()] == ["Newark", "Houston"]
    assert dict(airports) == dict(airports.items())
    with pytest.raises(KeyError, match="LHR"):
        airports["LHR"]


@pytest.mark.parametrize(
    ("values", "key", "said"),
    [
        (["1"], 1, "found 1 of type int, expected string, the type of the key 'k'"),
        (["1"], b"1", "found b'1' of type bytes"),
        ([1], "1", "found '1' of type str, expected int64"),
        ([date(2020, 1, 1)], datetime(2020, 1, 1, tzinfo=UTC), "expected date32"),
        (["1"], None, None),
        ([1], 2.0, None),
        ([1], np.int64(2), None),
        ([Decimal(1)], 2, None),
        ([b"1"], object(), None),
    ],
)
def test_a_missing_key_of_a_type_that_no_row_has_is_an_error(values, key, said):
    made = reference("any.csv", key="k", value="v")
    made.load([{"k": value, "v": 0} for value in values])
    for look_up in (made.__getitem__, made.get, made.__contains__):
        if said is not None:
            with pytest.raises(BoltError, match=re.escape(said)):
                look_up(key)
    if said is None:
        assert made.get(key, 7) == 7
        assert key not in made


def test_a_look_up_by_a_part_of_the_key_is_an_error(weather):
    with pytest.raises(BoltError, match="found 'EWR', expected a tuple of origin, hour"):
        weather["EWR"]
    with pytest.raises(
        BoltError, match=r"found '5' of type str, expected int64, .* the key 'hour'"
    ):
        weather.get(("EWR", "5"))


def test_columns_say_what_is_wanted_beside_the_key():
    made = reference("airports.csv", key="faa", columns=["name"])
    there = ["alt", "name", "faa"]
    assert made.wanted_of(there) == ["faa", "name"]
    made.load(AIRPORTS)
    assert made["EWR"] == {"name": "Newark"}
    assert reference("airports.csv", key="faa", value="alt").wanted_of(there) == ["faa", "alt"]
    assert reference("airports.csv", key="faa", value="faa").wanted_of(there) == ["faa"]
    assert reference("airports.csv", key="faa").wanted_of(there) == there
    with pytest.raises(ReferenceLoadFailed, match="no column 'faa', expected it among alt"):
        made.wanted_of(there[:2])


def test_a_join_keeps_every_row_in_order_and_is_null_where_the_key_is_unknown(airports):
    batch = pa.record_batch({"dest": ["IAH", "LHR", None, "EWR", "EWR"], "n": [1, 2, 3, 4, 5]})
    joined = airports.join(batch, on="dest", prefix="dest_")
    assert joined.to_pydict() == {
        "dest": ["IAH", "LHR", None, "EWR", "EWR"],
        "n": [1, 2, 3, 4, 5],
        "dest_name": ["Houston", None, None, "Newark", "Newark"],
        "dest_alt": [None, None, None, 18, 18],
    }
    assert airports.join(batch.slice(0, 0), on="dest").num_rows == 0


def test_a_key_may_have_several_columns_and_value_gives_one(weather):
    assert weather["EWR", 5] == 39.0
    assert weather.get(("EWR", 6), "not there") is None
    assert weather.get(("EWR", 7), "not there") == "not there"
    batch = pa.record_batch(
        {"at": ["JFK", "EWR", "EWR", None], "hour": pa.array([5, 5, 7, 5], pa.int32())}
    )
    joined = weather.join(batch.slice(1), on=["at", "hour"], prefix="w_")
    assert joined["w_temp"].to_pylist() == [39.0, None, None]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": ["EWR"]}, {"on": "dest"}, "join: found no column 'dest', expected one of a"),
        ({"a": [5]}, {"on": "a"}, "found int64, expected string of the key 'faa'"),
        ({"a": ["EWR"]}, {"on": ["a", "a"]}, r"expected 1 columns for the key \['faa'\]"),
        ({"name": ["EWR"]}, {"on": "name"}, "a second column 'name' to the batch"),
    ],
)
def test_a_join_that_does_not_fit_says_why(airports, columns, options, message):
    with pytest.raises(BoltError, match=message):
        airports.join(pa.record_batch(columns), **options)


def test_a_reference_that_is_not_loaded_says_so_at_every_use():
    made = reference("airports.csv", key="faa")
    uses = [
        lambda: made["EWR"],
        lambda: made.get("EWR"),
        lambda: "EWR" in made,
        lambda: len(made),
        lambda: list(made),
        lambda: dict(made.items()),
        lambda: made.join(pa.record_batch({"faa": ["EWR"]}), on="faa"),
    ]
    for _ in range(2):
        assert not made.is_loaded
        for use in uses:
            with pytest.raises(ReferenceNotLoaded, match=r"'airports' is not .*topology\.uses"):
                use()
        made.load(AIRPORTS)
        assert made["EWR"]["name"] == "Newark"
        made.unload()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "'airports': found no rows, so its columns are unknown"),
        ([{"fab": "EWR"}], "found 0 columns 'faa', expected one among fab"),
        ([{"faa": "A"}, {"faa": None}], r"key \['faa'\]: found 1 nulls"),
        ([{"faa": "A"}, {"faa": "B"}, {"faa": "A"}], "found 1 duplicates, expected none: 'A'$"),
        ([{"faa": c} for c in "ABCDABCD"], "found 4 duplicates, .*: '.', '.', '.', …$"),
        ([{"faa": 1.5}], "key 'faa': found double, expected text, bytes"),
        ([{"faa": str(n)} for n in range(11)], "more than max_rows=10 rows"),
        (pa.table([["A"], ["B"]], names=["faa", "faa"]), "found 2 columns 'faa'"),
        ([{"faa": 1}], "key 'faa': found int64, expected str, its key_type"),
    ],
)
def test_a_table_that_cannot_be_looked_up_in_is_refused_and_the_old_one_stays(rows, message):
    made = reference("airports.csv", key="faa", key_type=str, max_rows=10)
    made.load(AIRPORTS)
    with pytest.raises(ReferenceLoadFailed, match=message):
        made.load(rows)
    assert made["EWR"]["name"] == "Newark"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"SE": "x"}, "'db.weather': found the key 'SE', expected a tuple of origin, hour"),
        ({5: "x"}, "found the key 5, expected a tuple of origin, hour"),
        ({("EWR", 5, 6): "x"}, r"found the key \('EWR', 5, 6\), expected a tuple of origin, hour"),
        ({("EWR", 5): 39.0}, r"key \('EWR', 5\): found 39.0, expected a mapping of the columns"),
    ],
)
def test_a_mapping_that_look_ups_could_not_return_is_refused(rows, message):
    with pytest.raises(ReferenceLoadFailed, match=message):
        reference("db.weather", key=("origin", "hour")).load(rows)


def test_the_dictionary_is_made_when_first_needed_and_then_with_each_load(airports):
    airports.join(pa.record_batch({"faa": ["EWR"]}), on="faa")
    table = pa.Table.from_pylist(AIRPORTS)
    assert not airports.read(table).has_rows
    assert "EWR" in airports
    assert airports.read(table).has_rows


def test_a_walk_over_the_rows_sees_one_load(airports):
    items, values = iter(airports.items()), iter(airports.values())
    airports.load([{"faa": "JFK", "name": "Kennedy"}])
    assert dict(items).keys() == {row["faa"] for row in AIRPORTS}
    assert [row["name"] for row in values] == [row["name"] for row in AIRPORTS]


def test_many_threads_may_be_the_first_to_look_up(airports):
    together = Barrier(8)

    def look_up(_number):
        together.wait(seconds(10))
        return str(airports["EWR"]["name"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(look_up, range(8))) == ["Newark"] * 8


@pytest.mark.parametrize(
    ("place", "options", "name", "kind"),
    [
        ("airports.csv", {}, "airports", "csv"),
        ("/data/airports.CSV.gz", {}, "airports", "csv"),
        ("s3a://bucket/airports.parquet", {}, "airports", "parquet"),
        ("airports.delta", {}, "airports", "delta"),
        ("airports.jsonl", {}, "airports", "json"),
        ("db.airports", {}, "db.airports", "table"),
        ("lake/airports", {"format": "delta"}, "airports", "delta"),
        ("lake/airports.v2", {"format": "delta", "name": "places"}, "places", "delta"),
        ("db.csv", {"format": "table"}, "db.csv", "table"),
        ("delta.`/lake/airports`", {}, "delta.`/lake/airports`", "table"),
        ("lake/airports.orc", {"format": "orc"}, "airports", "orc"),
        ("lake.airports", {"format": "iceberg"}, "lake.airports", "iceberg"),
    ],
)
def test_the_place_says_the_format_and_the_name(place, options, name, kind):
    made = reference(place, key="faa", **options)
    assert (made.name, made.format) == (name, kind)


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("", {}, "a path with one of the suffixes .parquet, .delta"),
        ("/data/airports", {}, "or with format=, or a table's name"),
        ("a.csv", {"format": "a b"}, "format: found 'a b', expected the name of one of Spark's"),
        ("lake/airports", {"format": "iceberg"}, "or a table's name"),
        ("a", {"format": "iceberg", "properties": {"x": "1"}}, "expected 'catalog'"),
        ("a.csv", {"key": ()}, "expected one or more columns"),
        ("a.csv", {"key": ("a", "a")}, "expected one or more columns"),
        ("a.csv", {"value": "b", "columns": ["c"]}, "expected either columns= or value='b'"),
        ("a.csv", {"key_type": int}, "key_type: found 'int', expected str: a CSV file's columns"),
        ("a", {"key_type": list}, "found 'list', expected one type for each of faa: text, bytes"),
        ("a", {"key": ("a", "b"), "key_type": str}, "'str', expected one type for each of a, b"),
        ("a.csv", {"columns": ["faa"]}, "each column once, and none of the key"),
        ("a.csv", {"columns": ["b", "b"]}, "each column once, and none of the key"),
        ("a.csv", {"max_rows": 0}, "max_rows: found 0"),
        ("a.csv", {"refresh_seconds": 0}, "refresh_seconds: found 0"),
    ],
)
def test_a_reference_that_cannot_be_is_refused_when_it_is_named(place, options, message):
    with pytest.raises(InvalidReference, match=message) as caught:
        reference(place, **({"key": "faa"} | options))
    assert isinstance(caught.value, InvalidTopology)


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
    monkeypatch.setattr("topology.reference._FEW", few)

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
