"""Reference tables are read by Spark as they lie there, into Arrow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import Reference, reference
from sinks.spark.driver import SparkDriver
from sinks.spark.tables import read_reference
from topology.errors import ReferenceLoadFailed

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the socket that the rows came through to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

AIRPORTS = [
    {"faa": "EWR", "name": "Newark Liberty Intl", "alt": 18},
    {"faa": "007", "name": "É", "alt": None},
]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Airports in every format."""
    home = tmp_path_factory.mktemp("warehouse")
    (home / "airports.csv").write_text("faa,name,alt\nEWR,Newark Liberty Intl,18\n007,É,NA\n")
    (home / "airports.json").write_text("\n".join(map(json.dumps, AIRPORTS)))
    pq.write_table(pa.Table.from_pylist(AIRPORTS), home / "airports.parquet")
    (home / "odd").mkdir()
    odd = {"the.key": ["a", "b", "c"], "x`y": [1, 2, 3], "z": [[1], [], None]}
    pq.write_table(pa.table(odd), home / "odd" / "1.parquet")
    return home


@pytest.fixture(scope="module", autouse=True)
def tables(warehouse: Path, spark: SparkDriver) -> Iterator[None]:
    """Airports are a Delta table, and one of the catalogue too."""

    def prepare(session: Any) -> None:
        frame = session.read.parquet(str(warehouse / "airports.parquet"))
        frame.write.format("delta").save(str(warehouse / "airports"))
        session.sql(f"CREATE DATABASE lake LOCATION '{warehouse / 'catalogue'}'")
        frame.write.saveAsTable("lake.airports")

    spark.run(prepare, group="prepare")
    yield
    spark.run(lambda session: session.sql("DROP DATABASE lake CASCADE"), group="drop")


def loaded(made: Reference, spark: SparkDriver, warehouse: Path) -> Reference:
    made.use(made.read(read_reference(made, spark, str(warehouse))))
    return made


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("airports.parquet", {}),
        ("airports.json", {}),
        ("airports", {"format": "delta"}),
        ("lake.airports", {}),
    ],
    ids=["parquet", "json", "delta", "table"],
)
def test_a_table_is_read_with_its_types(
    spark: SparkDriver, warehouse: Path, place: str, options: dict[str, Any]
) -> None:
    airports = loaded(reference(place, key="faa", **options), spark, warehouse)
    assert dict(airports) == {
        "EWR": {"name": "Newark Liberty Intl", "alt": 18},
        "007": {"name": "É", "alt": None},
    }
    batch = pa.record_batch({"origin": ["007", "LHR", "EWR"]})
    joined = airports.join(batch, on="origin", prefix="origin_")
    assert joined["origin_name"].to_pylist() == ["É", None, "Newark Liberty Intl"]


def test_csv_is_text_unless_its_types_are_asked_for(spark: SparkDriver, warehouse: Path) -> None:
    plain = loaded(reference("airports.csv", key="faa"), spark, warehouse)
    assert plain["007"] == {"name": "É", "alt": "NA"}
    typed = reference(
        str(warehouse / "airports.csv"),
        key="faa",
        value="alt",
        properties={"inferSchema": "true", "nullValue": "NA"},
    )
    assert dict(loaded(typed, spark, warehouse)) == {"EWR": 18, "007": None}


def test_only_the_wanted_columns_are_read_whatever_their_names(
    spark: SparkDriver, warehouse: Path
) -> None:
    made = reference("odd", key="the.key", value="x`y", format="parquet")
    assert read_reference(made, spark, str(warehouse)).column_names == ["the.key", "x`y"]
    assert dict(loaded(made, spark, warehouse)) == {"a": 1, "b": 2, "c": 3}


def test_no_more_rows_are_read_than_tell_that_there_are_too_many(
    spark: SparkDriver, warehouse: Path
) -> None:
    made = reference("odd", key="the.key", format="parquet", max_rows=1)
    assert read_reference(made, spark, str(warehouse)).num_rows == 2
    with pytest.raises(ReferenceLoadFailed, match="'odd': more than 1 rows"):
        loaded(made, spark, warehouse)


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("nowhere.parquet", {}, r"'nowhere': parquet 'nowhere.parquet': .*PATH_NOT_FOUND"),
        ("no.such_table", {}, r"'no.such_table': table 'no.such_table': .*NOT_FOUND"),
        ("airports.csv", {"columns": ["iata"]}, "no column 'iata'; there are faa, name, alt"),
        ("airports.csv", {"key": "id", "columns": []}, "no column 'id'; there are faa, name, alt"),
        ("airports.csv", {"key": "id"}, "0 columns 'id', where one is needed; there are faa"),
        ("airports.json", {"format": "delta"}, "delta 'airports.json': .*DELTA"),
    ],
)
def test_a_table_that_cannot_be_read_is_named_with_what_spark_said(
    spark: SparkDriver, warehouse: Path, place: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ReferenceLoadFailed, match=message) as caught:
        loaded(reference(place, **({"key": "faa"} | options)), spark, warehouse)
    assert "\n" not in str(caught.value)


def test_what_was_appended_since_is_there_with_the_next_load(
    spark: SparkDriver, warehouse: Path
) -> None:
    made = loaded(reference("airports", key="faa", format="delta"), spark, warehouse)

    def append(session: Any) -> None:
        frame = session.createDataFrame(
            [("LHR", "Heathrow", 83)], "faa string, name string, alt long"
        )
        frame.write.format("delta").mode("append").save(str(warehouse / "airports"))

    assert "LHR" not in made
    spark.run(append, group="append")
    assert loaded(made, spark, warehouse)["LHR"]["alt"] == 83
