import datetime as dt
import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from headrace import Reference, Topology, reference
from service import wiring
from service.config.settings import load
from sinks.references import needs_spark, read_reference
from sinks.storage import Storage
from topology.errors import ReferenceLoadFailed


def table(place, **options):
    return reference(place, **({"key": "k"} | options))


def rows(made, warehouse):
    return read_reference(made, Storage(str(warehouse)), None).to_pylist()


@pytest.mark.parametrize(
    ("made", "by_spark"),
    [
        (table("a.parquet"), False),
        (table("s3a://bucket/a.parquet"), False),
        (table("a.jsonl.gz"), False),
        (table("a.delta"), False),
        (table("lake.a", format="iceberg"), False),
        (table("a.csv", properties={"NullValue": "-", "sep": "\t", "quote": ""}), False),
        (table("a.csv", properties={"inferSchema": "true"}), True),
        (table("a.csv", properties={"sep": "\\t"}), True),
        (table("a.csv", properties={"escape": ""}), True),
        (table("a.parquet", properties={"mergeSchema": "true"}), True),
        (table("a.json", properties={"multiLine": "true"}), True),
        (table("a.delta", properties={"versionAsOf": "1"}), True),
        (table("a%41.delta"), True),
        (table("hdfs://node/a.parquet"), True),
        (table("s3://bucket/a?.parquet"), True),
        (table("a.orc", format="orc"), True),
        (table("lake.a"), True),
        (table("delta.`/lake/a`"), True),
    ],
    ids=lambda it: f"{it.place} {it.properties}" if isinstance(it, Reference) else None,
)
def test_the_place_and_the_properties_say_who_reads(made, by_spark):
    assert needs_spark(made, Storage("/warehouse")) is by_spark
    config = load(None, {"kafka": {"bootstrap.servers": "-"}, "zookeeper": {"hosts": "-"}})
    topology = Topology("shop")
    topology.uses(made)
    driver = wiring.spark_of(topology, config)
    assert (driver is not None) is by_spark


def test_only_the_wanted_columns_are_read_in_their_order(tmp_path):
    odd = pa.table(
        {"x`y": [1, 2], 'a"b': ["u", "v"], "the.key": ["a", "b"], "the": [{"key": 5}, None]}
    )
    pq.write_table(odd, tmp_path / "odd.parquet")
    write_deltalake(tmp_path / "odd.delta", odd)
    for place in ("odd.parquet", "odd.delta"):
        made = reference(place, key="the.key", columns=['a"b', "x`y"])
        found = read_reference(made, Storage(str(tmp_path)), None)
        assert found.column_names == ["the.key", 'a"b', "x`y"]
        assert found.to_pylist() == odd.select(found.column_names).to_pylist()


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "delta"])
def test_no_more_rows_are_read_than_tell_that_there_are_too_many(tmp_path, kind):
    place = tmp_path / "it"
    if kind == "delta":
        write_deltalake(place, pa.table({"k": list(range(50))}))
    else:
        place.mkdir()
        for number in range(5):
            keys = range(10 * number, 10 * number + 10)
            if kind == "parquet":
                pq.write_table(pa.table({"k": list(keys)}), place / f"{number}")
            else:
                lines = [f'{{"k":{key}}}' if kind == "json" else str(key) for key in keys]
                head = ["k"] if kind == "csv" else []
                (place / f"{number}").write_text("\n".join(head + lines))
    for max_rows, count in [(11, 12), (49, 50), (50, 50)]:
        made = table("it", format=kind, max_rows=max_rows)
        found = read_reference(made, Storage(str(tmp_path)), None)
        assert found.num_rows == count


def test_a_key_may_be_in_the_folders_names_only(tmp_path):
    for day in ("2024-01-01", "2024-01-02"):
        (tmp_path / "it" / f"k={day}").mkdir(parents=True)
        (tmp_path / "it" / f"k={day}" / "x.csv").write_text("v\n1\n")
    made = table("it", format="csv", columns=[])
    assert rows(made, tmp_path) == [{"k": dt.date(2024, 1, 1)}, {"k": dt.date(2024, 1, 2)}]


def test_packed_text_is_unpacked(tmp_path):
    (tmp_path / "it.csv.gz").write_bytes(gzip.compress(b"k,v\n1,2\n") + gzip.compress(b"3,4\n"))
    assert rows(table("it.csv.gz"), tmp_path) == [{"k": "1", "v": "2"}, {"k": "3", "v": "4"}]


def test_what_was_appended_since_is_there_with_the_next_load(tmp_path):
    write_deltalake(tmp_path / "it.delta", pa.table({"k": ["a"]}))
    assert rows(table("it.delta"), tmp_path) == [{"k": "a"}]
    write_deltalake(tmp_path / "it.delta", pa.table({"k": ["b"]}), mode="append")
    assert sorted(row["k"] for row in rows(table("it.delta"), tmp_path)) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", 'k,v\n1,"he ""said"" x"\n', 'a.csv, line 2: .* expected \\\\" for quotes'),
        ("a.csv", 'k,v\n1,"x\ny"\n', "a.csv, line 2: .* or not in this line"),
        ("a.csv", "k\n\xff\n", "a.csv.*can't decode byte"),
        ("a.csv", "v\n1\n", "found no column 'k', expected it among v"),
        ("a.json", '{"k":1}\n{"k":\n', r"a.json, line 2: .*; Spark may read it: .*\"json.`…`\""),
        ("a.json", '{"k":1}\n7\n', "a.json, line 2: Expected `object | array`, got `int`"),
        ("a.json", '{"k":1}\n{"k":"x"}\n', "column 'k' is int64, and once not: "),
        ("a.json", '{"k":9223372036854775808}\n', "column 'k' is int64, and once not: "),
        ("a.parquet", "junk", "a.parquet"),
        ("a.csv/b=1/x.csv", "k\n1\n", "a.csv has different partition columns: b, c"),
        ("a.csv/b/x.csv", "k\n1\n", "b/x.csv is in no partition, and .*c=1/x.csv is"),
        ("a.csv/c=2/x.csv", "v,k\n1,2\n", "c=2/x.csv has the columns v, k, expected .* k"),
        ("a.csv/c=1e5/x.csv", "k\n1\n", "found a folder of '1.*', expected numbers without exp"),
    ],
)
def test_what_is_not_read_as_spark_would_is_refused_and_named(tmp_path, name, text, message):
    place = name.partition("/")[0]
    if place != name:
        (tmp_path / place / "c=1").mkdir(parents=True)
        (tmp_path / place / "c=1" / "x.csv").write_text("k\n1\n")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(ReferenceLoadFailed, match=message) as caught:
        rows(table(place, columns=[]), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "delta", "iceberg"])
def test_a_table_that_is_not_there_is_named(tmp_path, kind):
    with pytest.raises(ReferenceLoadFailed, match=f"reference 'nowhere': {kind} 'nowhere': .*not"):
        rows(table("nowhere", format=kind), tmp_path)


def test_a_missing_package_is_named_with_what_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(ReferenceLoadFailed, match=r"pip install 'headrace\[delta\]'"):
        rows(table("a.delta"), tmp_path)
