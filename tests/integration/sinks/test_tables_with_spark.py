from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.support import delta_table, iceberg_table
from tests.support.batches import LINE, SCHEMA, group, rows, write
from tests.support.spark import streamed
from tests.support.table_types import EVERY_TYPE, SOMETHING
from topology.errors import SinkFailed, SinkFenced
from topology.sink import Committed

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NIGHTLY = pytest.mark.nightly
TARGET_BYTES = 1024 * 1024
STRANGE = 'a `strange`."name" é'
VALUES = ["text", "at", "local", "day", "price"]
TRANSFORMS = ["day(at)", "month(local)", "bucket(4, number)", "truncate(2, text)", "year(day)"]


@pytest.fixture
def delta(tmp_path, spark):
    return delta_table.SparkTable(tmp_path, spark)


@pytest.fixture
def iceberg(request, tmp_path):
    servers = (request.getfixturevalue(name) for name in ("spark", "postgres"))
    made = iceberg_table.SparkTable(tmp_path, *servers)
    yield made
    made.close()


def numbers(table: Any, where: str = "true") -> list[int]:
    return sorted(table.read(where)["number"].to_pylist())


def plain(value: Any) -> Any:
    """A value without what Arrow's types alone bring along."""
    if isinstance(value, dict):
        return {name: plain(within) for name, within in value.items()}
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


@pytest.mark.parametrize(
    ("kind", "partition_by"),
    [
        ("delta", []),
        ("delta", [*VALUES, "double"]),
        pytest.param("iceberg", [], marks=NIGHTLY),
        pytest.param("iceberg", [*VALUES, "bool", "tiny", "number", "few"], marks=NIGHTLY),
        ("iceberg", TRANSFORMS),
    ],
)
def test_spark_reads_every_type_as_it_was_written(kind, partition_by, request):
    table, schema = request.getfixturevalue(kind), EVERY_TYPE
    if kind == "iceberg":
        more = [pa.field("pair", pa.list_(pa.int32(), 2)), pa.field(STRANGE, pa.string())]
        schema = pa.schema([*EVERY_TYPE, *more])
    other = {"double": 1e300, "text": " a/b=c:%41 ..", "struct": None, "number": 5, "bool": False}
    given: list[dict[str, Any]] = [{}, SOMETHING, SOMETHING | other, {"text": ".." * 200}]
    empty = SOMETHING | {"text": ""}
    if kind == "iceberg":
        given[1] = SOMETHING | {"pair": [1, 2], STRANGE: "x"}
    write(table.sink(schema, partition_by=partition_by), [*given, empty])
    nothing = dict.fromkeys(schema.names)
    if kind == "delta" and partition_by:  # as Spark has it
        empty = empty | {"text": None}
    found = [plain(row) for row in table.read().to_pylist()]
    wanted = [nothing | row for row in (*given, empty)]
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    assert table.read("text = ' a/b=c:%41 ..'").num_rows == 1
    assert table.read("number = 5 or at_ns > timestamp'2026-01-02T03:04:05Z'").num_rows == 3
    assert table.read(f"day = date'{SOMETHING['day']}'").num_rows == 3


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("delta", {}, marks=NIGHTLY),
        ("delta", {"key": ["number", "twin"]}),
        ("iceberg", {}),
    ],
    ids=["delta", "delta-merges", "iceberg"],
)
def test_filters_find_their_rows_by_file_statistics(kind, options, request):
    table = request.getfixturevalue(kind)
    schema = pa.schema(
        [
            ("number", pa.int64()),
            ("twin", pa.bool_()),
            ("x", pa.float64()),
            ("text", pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(20, 4)),
            ("day", pa.date32()),
        ]
    )
    sink = table.sink(schema, exactly_once=False, **options)
    for number in range(4):
        row = {
            "number": number,
            "twin": False,
            "x": float("nan") if number == 3 else float(number),
            "text": "z" * 40 + str(number),
            "at": datetime(2026, 1, 1, 0, 0, number, 999_999, tzinfo=UTC),
            "price": Decimal(number) + Decimal("0.0001"),
            "day": date(2026, 1, 1 + number),
        }
        write(sink, [row, row | {"x": 0.0, "twin": True}], number + 1)
    for _ in range(2):
        for where, wanted in {
            "number = 2": [2, 2],
            "x > 1000": [3],  # Spark holds NaN for the greatest
            f"text >= '{'z' * 40}2'": [2, 2, 3, 3],
            "at > timestamp'2026-01-01T00:00:01.999998Z'": [1, 1, 2, 2, 3, 3],
            "at > timestamp'2026-01-01T00:00:02.999999Z'": [3, 3],
            "price > 2": [2, 2, 3, 3],
            "day < date'2026-01-02'": [0, 0],
            "text is null": [],
        }.items():
            assert numbers(table, where) == wanted, where
        if kind == "delta":
            sink.compact(TARGET_BYTES)
    if kind == "iceberg":
        wheres = "number = 2", "price > 2.5000", "day < '2026-01-02'", "text is null", "x > 1000"
        planned = [len(list(table.theirs().scan(where).plan_files())) for where in wheres]
        assert planned == [1, 1, 1, 0, 1]


@pytest.mark.parametrize(
    "key", [pytest.param([], marks=NIGHTLY), ["number"]], ids=["files", "merges"]
)
def test_spark_changes_a_delta_table_between_our_commits(delta, key):
    sink = delta.fenced(key=key)
    sink.commit(sink.stage(group(1, 1)))
    delta.sql("INSERT INTO OURS VALUES (50, 'theirs')")
    sink.commit(sink.stage(group(2, 2)))
    delta.sql("OPTIMIZE OURS")
    staged = sink.stage(group(3, 3))
    delta.sql(
        "MERGE INTO OURS t USING (SELECT 2 AS number, 'merged' AS place) s "
        "ON t.number = s.number WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    sink.commit(staged)
    sink.commit(staged)
    assert numbers(delta) == [1, 2, 3, 50]
    assert numbers(delta, "place = 'merged'") == [2]
    assert delta.sink().committed([LINE]) == [Committed(LINE, 1, 3)]


def test_spark_changes_an_iceberg_table_between_our_commits(iceberg):
    """Promise 9, and every row is there once."""
    sink = iceberg.fenced(partition_by=["place"])
    for txid in range(1, 5):
        sink.commit(sink.stage(group(txid, txid)))
        iceberg.sql(f"INSERT INTO OURS SELECT {100 + txid}, 'theirs'")
    iceberg.sql("CALL lake.system.rewrite_data_files(table => 'OURS')")
    sink.commit(sink.stage(group(5, 5)))
    iceberg.sql(
        "MERGE INTO OURS t USING (SELECT 2L n) s ON t.number = s.n WHEN MATCHED THEN DELETE",
        "CALL lake.system.expire_snapshots(table => 'OURS', "
        "older_than => TIMESTAMP '2999-01-01', retain_last => 1)",
    )
    sink.commit(sink.stage(group(6, 6)))
    assert numbers(iceberg) == [1, 3, 4, 5, 6, 101, 102, 103, 104]
    assert iceberg.sink().committed([LINE]) == [Committed(LINE, 1, 6)]
    iceberg.fenced(epoch=2)
    with pytest.raises(SinkFenced):
        sink.commit(sink.stage(group(7, 7)))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_spark_streams_what_we_commit(kind, request, tmp_path):
    """A fence adds no file and disturbs no stream, and neither does compaction."""
    table = request.getfixturevalue(kind)
    for txid in (1, 2):
        sink = table.fenced(epoch=txid)
        sink.commit(sink.stage(group(txid, txid, 10 * txid, epoch=txid)))
        table.stream(tmp_path)
        if kind == "delta":
            sink.compact(TARGET_BYTES)
    assert sorted(streamed(tmp_path)["number"].to_pylist()) == [1, 2, 10, 20]


def test_new_columns_are_where_spark_looks_for_them(iceberg):
    write(iceberg.sink(), rows(1))
    iceberg.sql("ALTER TABLE OURS ADD COLUMN theirs STRING")
    more = pa.schema([("number", pa.int64()), ("tags", pa.list_(pa.string()))])
    write(iceberg.sink(more, on_new_columns="add"), [{"number": 2, "tags": ["a"]}])
    assert sorted(iceberg.read().to_pylist(), key=lambda row: row["number"]) == [
        {"number": 1, "place": "x", "theirs": None, "tags": None},
        {"number": 2, "place": None, "theirs": None, "tags": ["a"]},
    ]


def test_rows_that_spark_deletes_by_a_vector_stay_away(delta):
    sink = delta.sink()
    write(sink, rows(*range(9)))
    delta.sql(
        "ALTER TABLE OURS SET TBLPROPERTIES (delta.enableDeletionVectors = true)",
        "DELETE FROM OURS WHERE number = 1",
    )
    write(sink, rows(20), 2)
    with pytest.raises(SinkFailed, match="rows have a key, and it has the feature deletionVectors"):
        delta.sink(key=["number"])
    sink.compact(TARGET_BYTES)
    assert numbers(delta) == [0, 2, 3, 4, 5, 6, 7, 8, 20]


def test_a_delta_table_lies_where_its_name_says(tmp_path, spark):
    table = delta_table.SparkTable(tmp_path / "my ware#house" / "größe", spark)
    write(table.sink(), rows(1, 2))
    write(table.sink(key=["number"]), rows(2, 3), 2)
    assert numbers(table) == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["my ware#house"]
    assert SCHEMA.names == table.read().column_names
