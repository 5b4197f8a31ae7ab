"""Reference tables are what Spark makes of them, whoever reads them."""

import datetime as dt
import json
import random
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from headrace import Reference, reference
from sinks.references import Csv, needs_spark, read_reference
from sinks.spark.driver import SparkDriver
from sinks.spark.frames import read_by_spark
from sinks.storage import Storage
from tests.support.batches import rows, write
from tests.support.iceberg_table import SparkTable
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
NOON = dt.datetime(2024, 1, 1, 12)  # noqa: DTZ001 - some columns have no zone
LINES = 2000
RANDOM = 20
CSV: Mapping[str, tuple[str, dict[str, str]]] = {
    "quotes": ('a,b\n"1","x,y"\n"he \\"said\\"","D:\\dir"\n"C:\\\\",q"r\n', {}),
    "doubled": ('a,b\n"he ""said"", x",C:\\dir\n"",\n', {"escape": '"'}),
    "nothing": ('a,b\n"",2\n,3\nNA,"NA"\n', {}),
    "null": ('a,b\n"",2\n,3\nNA,"NA"\n', {"nullValue": "NA"}),
    "ragged": ("a,b,c\n1\n1,2,3,4\n\n  \n,,\n", {}),
    "spaces": ('a,b\n 1 , 2 \n "x",y\n"z" ,w\n', {}),
    "ends": ("a,b\r1,2\r\n3,4", {}),
    "marked": ("\ufeffa,b\n1,é\n", {"ENCODING": "UTF-8"}),
    "names": ('a,A,,"b,c",d\n1,2,3,4,5\n', {}),
    "headless": ("1;'x;y'\n2;3\n", {"header": "false", "sep": ";", "quote": "'"}),
    "tabs": ("a\tb\n1\t2,3\n", {"delimiter": "\t"}),
    "latin": ("a,b\n1,é\n", {"encoding": "ISO-8859-1"}),
    "unquoted": ('a,b\n"1","x\n', {"quote": ""}),
}
JSON = {
    "order": '{"z":1,"a":"x"}\n{"b":1.5}\n\n{}\n',
    "numbers": '{"a":1,"b":true}\n{"a":1.5,"b":null}\n',
    "nothing": '{"a":null,"b":{},"c":[],"d":[{}],"e":"","f":[null],"g":{"h":null}}\n',
    "dates": '{"a":"2024-01-01 00:00:00","b":"2024-01-01"}\n',
    "nested": '{"s":{"z":1,"a":[1,2.5]},"l":[{"q":1},{"p":"x"}]}\n{"s":null}\n{"s":{"b":"x"}}\n',
    "arrays": '[{"a":1},{"a":2}]\r\n{"a":3}\r\n',
    "text": '{"å":"\\u00e9","the.key":"\\ud83d\\ude00","x`y":0.1234567890123456789}\n',
}
COLUMNS: dict[str, Any] = {
    "int8": pa.array([1, None], pa.int8()),
    "uint8": pa.array([1, None], pa.uint8()),
    "uint16": pa.array([1, None], pa.uint16()),
    "uint32": pa.array([2**32 - 1, None], pa.uint32()),
    "uint64": pa.array([2**64 - 1, None], pa.uint64()),
    "float": pa.array([0.5, None], pa.float32()),
    "large": pa.array(["é", None], pa.large_string()),
    "coded": pa.array(["x", None]).dictionary_encode(),
    "bytes": pa.array([b"ab", None], pa.binary(2)),
    "decimal": pa.array([Decimal("1.5"), None], pa.decimal128(5, 2)),
    "date": pa.array([dt.date(1, 1, 1), None]),
    "date64": pa.array([NOON.date(), None], pa.date64()),
    "ms": pa.array([NOON, None], pa.timestamp("ms")),
    "us": pa.array([NOON, None], pa.timestamp("us", "Europe/Oslo")),
    "duration": pa.array([1, None], pa.duration("us")),
    "none": pa.nulls(2),
    "list": pa.array([["x"], None], pa.large_list(pa.large_string())),
    "pairs": pa.array([[("a", NOON)], None], pa.map_(pa.string(), pa.timestamp("us"))),
    "struct": pa.array([{"b": 1, "a.b": [NOON]}, None]),
    "the.key": pa.array([True, None]),
}
PARTITIONS = {
    "whole": ["007", "-3", "+5"],
    "long": ["1", "12345678901"],
    "decimal": ["1", "12345678901234567890"],
    "double": ["1", "2.5", "1f", "NaN"],
    "date": ["2024-01-01", "__HIVE_DEFAULT_PARTITION__"],
    "moment": ["2024-01-01", "2024-01-01 10%3A00%3A00.5"],
    "text": ["1", "x y", "a%2Fb", "2024-13-01"],
}
# ruff: noqa: ISC004 - statements are long
WITH_VECTORS = "TBLPROPERTIES('delta.enableDeletionVectors' = 'true')"
BY_NAME = "TBLPROPERTIES('delta.columnMapping.mode' = 'name')"
DELTA = {
    "deleted": (
        f"CREATE TABLE OURS (k STRING, n INT) USING delta {WITH_VECTORS}",
        "INSERT INTO OURS SELECT CAST(id AS STRING), id FROM range(10)",
        "DELETE FROM OURS WHERE n IN (3, 5)",
        "UPDATE OURS SET n = 100 WHERE n = 2",
    ),
    "renamed": (
        f"CREATE TABLE OURS (k STRING, n INT, s STRUCT<a: INT>) USING delta {BY_NAME}",
        "INSERT INTO OURS VALUES ('a', 1, named_struct('a', 5))",
        "ALTER TABLE OURS RENAME COLUMN n TO `x y`",
        "ALTER TABLE OURS RENAME COLUMN s.a TO b",
        "INSERT INTO OURS VALUES ('b', 2, null)",
    ),
    "partitioned": (
        "CREATE TABLE OURS (k STRING, a INT, b DATE, c TIMESTAMP, d DECIMAL(5, 2), e STRING)"
        " USING delta PARTITIONED BY (a, b, c, d, e)",
        "INSERT INTO OURS VALUES ('y', null, null, null, null, null), ('x', 1, DATE'2024-01-01',"
        " TIMESTAMP'2024-01-01 10:00:00.5', 1.5, 'x/y z%')",
    ),
    "types": (
        "CREATE TABLE OURS (k STRING, t TIMESTAMP_NTZ, u TIMESTAMP, m MAP<STRING, INT>,"
        " l ARRAY<STRUCT<x: DATE>>, b BINARY, v VARCHAR(5), i TINYINT) USING delta",
        "INSERT INTO OURS VALUES ('a', TIMESTAMP_NTZ'2024-01-01 10:00:00', TIMESTAMP'2024-01-01',"
        " map('a', 1), array(named_struct('x', DATE'0001-01-01')), X'00', 'cd', 1)",
        "ALTER TABLE OURS ADD COLUMN n INT",
    ),
}


def table(place: str, **options: Any) -> Reference:
    return reference(place, **({"key": "faa"} | options))


def as_nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(nullable=True) for field in schema])


def assert_alike(made: Reference, storage: Storage, spark: SparkDriver) -> pa.Table:
    """Spark and what reads without it give the same rows, of which there is at least one."""
    assert not needs_spark(made, storage)
    found = read_reference(made, storage, None)
    wanted = read_by_spark(made, spark, storage.warehouse)
    assert [*found.schema] == [*as_nullable(wanted.schema)]
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))
    assert found.num_rows
    return found


@pytest.mark.parametrize("case", CSV)
def test_csv_is_the_text_that_spark_finds(case, tmp_path, spark):
    text, properties = CSV[case]
    (tmp_path / "it.csv").write_bytes(text.encode(properties.get("encoding", "utf-8")))
    assert_alike(table("it.csv", properties=properties), Storage(str(tmp_path)), spark)


@pytest.mark.parametrize("escape", ["\\", '"'])
def test_every_csv_line_reads_as_spark_does(escape, tmp_path, spark):
    drawn, csv = random.Random(RANDOM), Csv.of({"escape": escape})
    lines = []
    while len(lines) < LINES:
        line = "".join(drawn.choices('ab"\\, ', [1, 1, 4, 4, 4, 1], k=drawn.randint(0, 14)))
        try:
            csv.fields(line)
        except ValueError:
            continue
        lines.append(f"{len(lines)},{line}")
    (tmp_path / "it.csv").write_text("\n".join(["0,1,2,3,4,5,6", *lines]))
    properties = {"escape": escape, "header": "false"}
    found = assert_alike(table("it.csv", properties=properties), Storage(str(tmp_path)), spark)
    assert found.num_rows == LINES + 1


@pytest.mark.parametrize("case", JSON)
def test_json_has_the_columns_and_types_that_spark_infers(case, tmp_path, spark):
    (tmp_path / "it.json").write_text(JSON[case], encoding="utf-8")
    assert_alike(table("it.json"), Storage(str(tmp_path)), spark)


def test_json_of_any_shape_is_read_as_by_spark(tmp_path, spark):
    drawn = random.Random(RANDOM)

    def kind(depth: int) -> Any:
        return drawn.choice(["int", "float", "text", "bool", *([{}, []] if depth else [])])

    def shape(depth: int) -> Any:
        found = kind(depth)
        if found == {}:
            return {name: shape(depth - 1) for name in drawn.sample("zYxBa_", 3)}
        return [shape(depth - 1)] if found == [] else found

    def value(shape: Any) -> Any:
        if drawn.random() < 0.2:
            return None
        if isinstance(shape, dict):
            return {name: value(each) for name, each in shape.items() if drawn.random() < 0.8}
        if isinstance(shape, list):
            return [value(shape[0]) for _ in range(drawn.randint(0, 3))]
        texts = ["", "é", "2024-01-01", "1", 'say "x"', "a\nb"]
        return {
            "int": drawn.randint(-(2**63), 2**63 - 1),
            "float": drawn.choice([drawn.randint(-9, 9), drawn.gauss(0, 1e9)]),
            "text": drawn.choice(texts),
            "bool": drawn.random() < 0.5,
        }[shape]

    shapes = {f"c{number}": shape(3) for number in range(30)}
    lines = [json.dumps(value(shapes) or {}) for _ in range(300)]
    (tmp_path / "it.json").write_text("\n".join(lines))
    assert_alike(table("it.json"), Storage(str(tmp_path)), spark)


@pytest.mark.parametrize("int96", [False, True])
def test_parquet_has_spark_s_types(int96, tmp_path, spark):
    whole = pa.table(COLUMNS)
    if int96:
        whole = whole.append_column("ns", pa.array([NOON, None], pa.timestamp("ns")))
    pq.write_table(whole, tmp_path / "it.parquet", use_deprecated_int96_timestamps=int96)
    assert_alike(table("it.parquet"), Storage(str(tmp_path)), spark)


def test_parquet_files_have_the_columns_of_the_first(tmp_path, spark):
    (tmp_path / "it").mkdir()
    pq.write_table(pa.table({"a": [1], "B": ["x"], "c": [1]}), tmp_path / "it" / "1.parquet")
    other = {"b": ["y"], "d": [2], "A": pa.array([5], pa.int32())}
    pq.write_table(pa.table(other), tmp_path / "it" / "2.parquet")
    found = assert_alike(table("it", format="parquet"), Storage(str(tmp_path)), spark)
    assert found.to_pylist()[1] == {"a": 5, "B": "y", "c": None}


@pytest.mark.parametrize("case", PARTITIONS)
def test_folder_names_become_columns_as_in_spark(case, tmp_path, spark):
    for value in PARTITIONS[case]:
        folder = tmp_path / "it" / f"p={value}" / "q=1"
        folder.mkdir(parents=True)
        (folder / "part-0.json").write_text('{"b":1,"q":2,"c":3}')
        (folder / ".part-0.json.crc").write_text("junk")
    (tmp_path / "it" / "_SUCCESS").write_text("junk")
    (tmp_path / "it" / "aside.json").write_text('{"b":7}')
    assert_alike(table("it", format="json"), Storage(str(tmp_path)), spark)


@pytest.mark.parametrize("place", ["it", "it/a*.json", "it/{a1,b/c}.json", "i?/*/", "it/[^b]*"])
def test_a_place_means_the_files_that_spark_finds_there(place, tmp_path, spark):
    (tmp_path / "it" / "b").mkdir(parents=True)
    for number, name in enumerate(["a1", "a2", "b/c", "_a3", ".a4"]):
        (tmp_path / "it" / f"{name}.json").write_text(f'{{"n":{number}}}')
    assert_alike(table(place, format="json"), Storage(str(tmp_path)), spark)


@pytest.mark.parametrize("case", DELTA)
def test_a_delta_table_of_spark_s_is_read_as_by_spark(case, tmp_path, spark):
    def write(session: Any) -> None:
        for statement in DELTA[case]:
            session.sql(statement.replace("OURS", f"delta.`{tmp_path / 'it'}`"))

    spark.run(write, group="write")
    assert_alike(table("it", format="delta"), Storage(str(tmp_path)), spark)


def test_what_delta_rs_cannot_read_is_named_and_spark_reads_it(tmp_path, spark):
    def write(session: Any) -> None:
        wide, padded = (f"delta.`{tmp_path / name}`" for name in ("wide", "padded"))
        widening = "TBLPROPERTIES('delta.enableTypeWidening' = 'true')"
        session.sql(f"CREATE TABLE {wide} (k STRING, n INT) USING delta {widening}")
        session.sql(f"INSERT INTO {wide} VALUES ('a', 1)")  # noqa: S608
        session.sql(f"ALTER TABLE {wide} ALTER COLUMN n TYPE BIGINT")
        session.sql(f"CREATE TABLE {padded} (k CHAR(5)) USING delta")

    spark.run(write, group="write")
    storage = Storage(str(tmp_path))
    with pytest.raises(ReferenceLoadFailed, match=r"TypeWidening.*: reference\(\"delta.`…`\"\)"):
        read_reference(table("wide", format="delta", key="k"), storage, None)
    with pytest.raises(ReferenceLoadFailed, match=r"column 'k' is char\(5\), which Spark pads"):
        read_reference(table("padded", format="delta", key="k"), storage, None)
    by_spark = table(f"delta.`{tmp_path / 'wide'}`", key="k")
    assert read_reference(by_spark, storage, spark).to_pylist() == [{"k": "a", "n": 1}]


def test_iceberg_reference_reads_as_spark_does(tmp_path, spark, postgres):
    world = SparkTable(tmp_path, spark, postgres)
    try:
        write(world.sink(exactly_once=False), rows(20))
        world.sql(
            "ALTER TABLE OURS SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', "
            "'write.distribution-mode' = 'none')"
        )
        world.sql("INSERT INTO OURS SELECT id, CAST(id AS STRING) FROM range(10)")
        world.sql("DELETE FROM OURS WHERE number IN (3, 5)")
        world.sql("ALTER TABLE OURS RENAME COLUMN place TO `the.place`")
        world.sql("ALTER TABLE OURS ADD COLUMN at TIMESTAMP")
        world.sql("INSERT INTO OURS VALUES (10, 'x', TIMESTAMP'2024-01-01 10:00:00')")
        properties = {"catalog": "lake"}
        made = reference(world.name, format="iceberg", key="number", properties=properties)
        assert not needs_spark(made, world.storage)
        found, wanted = read_reference(made, world.storage, None), world.read()
        assert [*found.schema] == [*as_nullable(wanted.schema)]
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))
        assert found.num_rows == 10
    finally:
        world.close()


def test_an_object_store_is_read_by_what_storage_says(seaweed):
    storage = seaweed.storage("references")
    files, root = storage.filesystem(storage.uri("airports"))
    airports = pa.Table.from_pylist(AIRPORTS)
    for name in ("day=2024-01-01/1.parquet", "day=2024-01-02/1.parquet", "_spark_metadata/0"):
        with files.open_output_stream(f"{root}/{name}") as out:
            pq.write_table(airports.slice(1), out)
    with files.open_output_stream(f"{root}.csv/part-0.csv") as out:
        out.write(b"faa,alt\nEWR,18\n")
    with files.open_output_stream(f"{root}.csv/_SUCCESS") as out:
        out.write(b"")
    uri = storage.uri("lake")
    write_deltalake(uri, airports, storage_options=storage.object_store_options(uri))

    parquet = read_reference(table("airports", format="parquet", value="day"), storage, None)
    assert parquet["day"].to_pylist() == [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]
    glob = table("airports.c*/*.csv", format="csv")
    assert read_reference(glob, storage, None).to_pylist() == [{"faa": "EWR", "alt": "18"}]
    delta = read_reference(table("lake", format="delta"), storage, None)
    assert sorted(delta["faa"].to_pylist()) == ["007", "EWR"]
    with pytest.raises(ReferenceLoadFailed, match="lake/references/none does not exist"):
        read_reference(table("none", format="parquet"), storage, None)


def test_what_only_spark_reads_it_reads(tmp_path, spark):
    storage = Storage(str(tmp_path))
    (tmp_path / "it.csv").write_text("faa,name,alt\nEWR,Newark Liberty Intl,18\n007,É,NA\n")

    def prepare(session: Any) -> None:
        frame = session.createDataFrame(AIRPORTS, "faa string, name string, alt long")
        session.sql(f"CREATE DATABASE hangar LOCATION '{tmp_path / 'catalogue'}'")
        frame.write.saveAsTable("hangar.airports")
        frame.write.orc(str(tmp_path / "it.orc"))

    spark.run(prepare, group="prepare")
    try:
        typed = {"inferSchema": "true", "nullValue": "NA"}
        for made in (
            table("hangar.airports"),
            table("it.orc", format="orc"),
            table("it.csv", properties=typed),
        ):
            assert needs_spark(made, storage)
            made.use(made.read(read_reference(made, storage, spark)))
            assert dict(made) == {
                "EWR": {"name": "Newark Liberty Intl", "alt": 18},
                "007": {"name": "É", "alt": None},
            }
    finally:
        spark.run(lambda session: session.sql("DROP DATABASE hangar CASCADE"), group="drop")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (table("no.such_table"), r"'no.such_table': table 'no.such_table': .*NOT_FOUND"),
        (table("no.orc", format="orc"), r"'no': orc 'no.orc': .*PATH_NOT_FOUND"),
        (table("it.csv", columns=["x"], properties={"mode": "PERMISSIVE"}), "no column 'x'"),
    ],
)
def test_unreadable_table_is_named_with_sparks_reason(made, message, tmp_path, spark):
    (tmp_path / "it.csv").write_text("faa,name\n")
    with pytest.raises(ReferenceLoadFailed, match=message) as caught:
        read_reference(made, Storage(str(tmp_path)), spark)
    assert "\n" not in str(caught.value)
