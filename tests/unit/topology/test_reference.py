"""A reference table: a plain mapping, an Arrow join, and one load at a time."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace import InvalidTopology, Reference, ReferenceNotLoaded, reference
from tests.support.patience import seconds
from topology.errors import BoltError, InvalidReference, ReferenceLoadFailed
from topology.vectorised import PARENT, call_columns

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
def airports() -> Reference:
    made = reference("airports.csv", key="faa")
    made.load(AIRPORTS)
    return made


@pytest.fixture
def weather() -> Reference:
    made = reference("db.weather", key=("origin", "hour"), value="temp")
    made.load(WEATHER)
    return made


def test_a_reference_is_a_mapping_from_its_key_to_the_other_columns(airports):
    assert airports["EWR"] == {"name": "Newark", "alt": 18}
    assert airports.get("IAH") == {"name": "Houston", "alt": None}
    assert airports.get("LHR") is None
    assert airports.get("LHR", "?") == "?"
    assert "EWR" in airports
    assert "LHR" not in airports
    assert len(airports) == 2
    assert list(airports) == list(airports.keys()) == ["EWR", "IAH"]
    assert [row["name"] for row in airports.values()] == ["Newark", "Houston"]
    assert dict(airports) == dict(airports.items())
    with pytest.raises(KeyError, match="LHR"):
        airports["LHR"]


def test_a_row_cannot_be_changed_because_all_records_share_it(airports):
    with pytest.raises(TypeError):
        airports["EWR"]["name"] = "New York"
    with pytest.raises(TypeError):
        airports["LHR"] = {}
    assert {"code": "EWR", **airports["EWR"]} == {"code": "EWR", "name": "Newark", "alt": 18}


def test_a_key_of_several_columns_is_a_tuple_and_value_gives_one_column(weather):
    assert weather["EWR", 5] == 39.0
    assert weather.get(("EWR", 6), "not there") is None
    assert weather.get(("EWR", 7), "not there") == "not there"


def test_columns_say_what_is_wanted_beside_the_key():
    made = reference("airports.csv", key="faa", columns=["name"])
    there = ["alt", "name", "faa"]
    assert made.wanted_of(there) == ["faa", "name"]
    made.load(AIRPORTS)
    assert made["EWR"] == {"name": "Newark"}
    assert reference("airports.csv", key="faa", value="alt").wanted_of(there) == ["faa", "alt"]
    assert reference("airports.csv", key="faa", value="faa").wanted_of(there) == ["faa"]
    assert reference("airports.csv", key="faa").wanted_of(there) == there
    with pytest.raises(ReferenceLoadFailed, match="no column 'faa'; there are alt, name"):
        made.wanted_of(there[:2])


def test_a_table_of_keys_only_is_a_set():
    made = reference("blocked.csv", key="faa", columns=[])
    made.load(AIRPORTS)
    assert made["EWR"] == {}
    assert "LHR" not in made
    batch = pa.record_batch({"faa": ["LHR"]})
    assert made.join(batch, on="faa") == batch


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


def test_a_join_on_several_columns_and_on_a_sliced_batch(weather):
    batch = pa.record_batch(
        {"at": ["JFK", "EWR", "EWR", None], "hour": pa.array([5, 5, 7, 5], pa.int32())}
    )
    joined = weather.join(batch.slice(1), on=["at", "hour"], prefix="w_")
    assert joined["w_temp"].to_pylist() == [39.0, None, None]


def test_a_join_keeps_the_lineage_of_a_vectorised_bolt(airports):
    def enrich(batch: pa.RecordBatch) -> pa.RecordBatch:
        joined = airports.join(batch, on="faa", prefix="at_")
        return joined.filter(pc.is_valid(joined["at_name"]))

    called = call_columns("enrich", enrich, pa.record_batch({"faa": ["LHR", "EWR", "IAH"]}))
    assert called.failures == {}
    assert called.parents.tolist() == [1, 2]
    assert PARENT not in called.piece.schema.names


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": ["EWR"]}, {"on": "dest"}, "cannot be joined on 'dest': the batch has the columns a"),
        ({"a": [5]}, {"on": "a"}, "it is int64, the key 'faa' is string; cast it first"),
        ({"a": ["EWR"]}, {"on": ["a", "a"]}, r"has the key \['faa'\]"),
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
    assert not made.is_loaded
    for use in uses:
        with pytest.raises(ReferenceNotLoaded, match=r"'airports' is not loaded; .*topology\.uses"):
            use()
    made.load(AIRPORTS)
    assert made["EWR"]["name"] == "Newark"
    made.unload()
    for use in uses:
        with pytest.raises(ReferenceNotLoaded):
            use()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "'airports': no rows, so its columns are not known"),
        ([{"fab": "EWR"}], "0 columns 'faa', where one is needed; there are fab"),
        ([{"faa": "A"}, {"faa": None}], r"1 keys \['faa'\] are null"),
        ([{"faa": "A"}, {"faa": "B"}, {"faa": "A"}], "1 keys .* more than once: 'A'$"),
        ([{"faa": c} for c in "ABCDABCD"], "4 keys .* more than once: '.', '.', '.', …$"),
        ([{"faa": 1.5}], "the key 'faa' is double; text, bytes, whole numbers"),
        ([{"faa": str(n)} for n in range(11)], "more than 10 rows; raise max_rows="),
        (pa.table([["A"], ["B"]], names=["faa", "faa"]), "2 columns 'faa', where one is needed"),
    ],
)
def test_a_table_that_cannot_be_looked_up_in_is_refused_and_the_old_one_stays(rows, message):
    made = reference("airports.csv", key="faa", max_rows=10)
    made.load(AIRPORTS)
    with pytest.raises(ReferenceLoadFailed, match=message):
        made.load(rows)
    assert made["EWR"]["name"] == "Newark"


def test_a_key_that_is_there_twice_is_named_as_it_is_looked_up():
    made = reference("weather.csv", key=["origin", "hour"])
    with pytest.raises(ReferenceLoadFailed, match=r"more than once: \('EWR', 5\)$"):
        made.load([*WEATHER, WEATHER[0]])


def test_an_empty_table_and_one_in_pieces_can_be_loaded():
    made = reference("airports.csv", key="faa")
    made.load(pa.schema([("faa", pa.string()), ("alt", pa.int64())]).empty_table())
    batch = pa.record_batch({"faa": ["EWR"]})
    assert (len(made), list(made), made.get("EWR")) == (0, [], None)
    assert made.join(batch, on="faa").to_pylist() == [{"faa": "EWR", "alt": None}]
    table = pa.Table.from_pylist(AIRPORTS)
    made.load(pa.concat_tables([table.slice(0, 1), table.slice(1)]))
    assert made.join(batch, on="faa")["alt"].to_pylist() == [18]
    assert list(made) == ["EWR", "IAH"]


def test_rows_given_by_hand_may_lack_columns():
    made = reference("airports.csv", key="faa")
    made.load([{"faa": "EWR"}, {"faa": "IAH", "alt": 30}])
    assert dict(made) == {"EWR": {"alt": None}, "IAH": {"alt": 30}}


def test_a_new_load_is_in_use_only_once_it_is_put_in_place(airports):
    loaded = airports.read(pa.table({"faa": ["LHR"], "name": ["Heathrow"]}))
    batch = pa.record_batch({"faa": ["EWR", "LHR"]})
    assert list(airports) == ["EWR", "IAH"]
    assert airports.join(batch, on="faa")["name"].to_pylist() == ["Newark", None]
    airports.use(loaded)
    assert list(airports) == ["LHR"]
    assert airports.join(batch, on="faa")["name"].to_pylist() == [None, "Heathrow"]


def test_the_dictionary_is_made_when_first_needed_and_then_with_each_load(airports):
    airports.join(pa.record_batch({"faa": ["EWR"]}), on="faa")
    table = pa.Table.from_pylist(AIRPORTS)
    assert not airports.read(table).has_rows
    assert "EWR" in airports
    assert airports.read(table).has_rows


def test_an_old_look_up_that_ends_late_does_not_bring_the_old_rows_back(airports):
    keys = airports.keys()  # of the load that is in place
    airports.load([{"faa": "LHR"}])
    assert list(keys) == ["EWR", "IAH"]
    assert list(airports) == ["LHR"]


def test_many_threads_may_be_the_first_to_look_up(airports):
    together = Barrier(8)

    def look_up(_number: int) -> str:
        together.wait(seconds(10))
        return str(airports["EWR"]["name"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(look_up, range(8))) == ["Newark"] * 8


def test_two_references_are_never_equal_and_can_be_keys(airports):
    other = reference("airports.csv", key="faa")
    other.load(AIRPORTS)
    assert airports != other
    assert {airports: 1, other: 2}[airports] == 1
    assert repr(other) == "reference('airports.csv', key=('faa',))"


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
        ("/data/airports", {}, "a path with format=, or the name of a table is allowed"),
        ("a.csv", {"format": "a b"}, "format='a b'; the name of a format of Spark's is allowed"),
        ("lake/airports", {"format": "iceberg"}, "or the name of a table is allowed"),
        ("a", {"format": "iceberg", "properties": {"x": "1"}}, r"=\['x'\]; 'catalog' is allowed"),
        ("a.csv", {"key": ()}, "one or more columns are allowed"),
        ("a.csv", {"key": ("a", "a")}, "one or more columns are allowed"),
        ("a.csv", {"value": "b", "columns": ["c"]}, "value= and columns= were given"),
        ("a.csv", {"columns": ["faa"]}, "columns beside the key are allowed, once"),
        ("a.csv", {"columns": ["b", "b"]}, "columns beside the key are allowed, once"),
        ("a.csv", {"max_rows": 0}, "must be positive"),
        ("a.csv", {"refresh_seconds": 0}, "must be positive"),
    ],
)
def test_a_reference_that_cannot_be_is_refused_when_it_is_named(place, options, message):
    with pytest.raises(InvalidReference, match=message) as caught:
        reference(place, **({"key": "faa"} | options))
    assert isinstance(caught.value, InvalidTopology)


def test_a_row_s_columns_are_plain_python_values(airports):
    assert json.dumps(dict(airports["EWR"])) == '{"name": "Newark", "alt": 18}'
