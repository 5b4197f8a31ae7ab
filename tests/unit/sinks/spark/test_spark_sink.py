import os
import time
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import bolt
from headrace.sinks import SinkContext, SparkSink
from sinks.spark import frames, spark_sink
from sinks.storage import Storage
from tests.support.bolts import new_topology
from tests.support.fake_spark import FakeSpark
from topology.errors import InvalidSchema, InvalidTopology, RowsRejected
from topology.sink import Batch

SCHEMA = pa.schema([("n", pa.int64()), ("place", pa.string())])


row = bolt(lambda record: {"n": record.offset})


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, "expected either format= or write="),
        ({"format": "parquet", "write": print}, "expected either format= or write="),
        ({"write": print, "partition_by": "n"}, "belong to a format"),
        ({"format": "table", "options": {"a": "b"}}, "leave them out"),
        ({"format": "delta", "options": {"txnAppId": "b"}}, "'txnAppId' is set by SparkSink"),
        (
            {"format": "csv", "partition_by": ["x"]},
            r"is \['x'\]; expected some of the columns n, place",
        ),
        (
            {"format": "csv", "partition_by": ["n", "place"]},
            "a column that is no partition is needed",
        ),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(given, what):
    with pytest.raises(InvalidSchema, match=what):
        SparkSink("orders", schema=SCHEMA, **given)


@pytest.mark.parametrize("name", ["a b", "a; DROP TABLE b", "a.b.c.d", "../a"])
def test_the_name_of_a_catalogue_table_is_one(name):
    with pytest.raises(InvalidSchema, match="expected a table's name"):
        SparkSink(name, format="table", schema=SCHEMA)


@pytest.mark.parametrize(
    ("given", "called"),
    [({"format": "parquet"}, r"\(format='parquet'\)"), ({"write": print}, r"\(write=…\)")],
)
def test_exactly_once_is_refused_with_the_reason(given, called):
    topology, records = new_topology(reliability="exactly-once")
    records.then(row).into(SparkSink("orders", schema=SCHEMA, **given))
    with pytest.raises(InvalidTopology, match=rf"{called}.*only format='delta' keeps"):
        topology.validate()


def test_behind_a_spark_step_it_is_exactly_once_too():
    """One commit has all rows and txids of a group, so a row need not be known to be of one."""
    topology, records = new_topology(reliability="exactly-once")
    rows = records.then(row).spark(lambda frame: frame, schema=SCHEMA)
    rows.into(SparkSink("orders", format="delta", schema=SCHEMA))
    topology.validate()


def test_each_source_brings_the_jars_that_it_needs():
    def jars(name="orders", **given):
        return SparkSink(name, schema=SCHEMA, **given).needs_jars

    assert jars(format="parquet") == ()
    assert jars(format="delta") == jars(format="table") == ("delta",)
    assert jars(write=print, jars=["iceberg"]) == ("iceberg",)
    assert jars("s3a://lake/orders", format="delta") == ("delta", "s3a")


@pytest.fixture
def synced(monkeypatch):
    """The names of the files that are synced."""
    found = set[str]()
    monkeypatch.setattr(spark_sink, "sync", lambda path: found.add(Path(path).name))
    return found


@pytest.fixture
def sink(tmp_path, monkeypatch):
    """A sink of Parquet files, with one batch in them."""
    made = SparkSink("orders", format="parquet", schema=SCHEMA)
    spark = FakeSpark(monkeypatch)
    made.open(SinkContext("p", "s", {}, Storage(str(tmp_path)), spark))
    made.write(Batch(1, [[{"n": 1, "place": "x"}]], 1))
    yield made
    made.close()


def files_of(sink):
    return {path.name for path in Path(urlsplit(str(sink.path)).path).glob("*.parquet")}


def test_files_are_synced_with_a_clock_ahead(sink, synced, monkeypatch):
    """As that of a server of files; from the second batch on."""
    ahead = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: ahead)
    before = files_of(sink)
    for number in range(2, 4):
        sink.write(Batch(number, [[{"n": number, "place": "x"}]], 1))
    new = files_of(sink) - before
    assert len(new) == 2
    assert synced >= new


def test_files_are_synced_after_the_clock_was_set_back(sink, synced, monkeypatch):
    """By an hour: what is written then is older than what was there."""
    before, walk, monotonic = files_of(sink), os.walk, time.monotonic

    def walk_after(folder):
        for name in files_of(sink) - before:
            os.utime(folder / name, (time.time() - 3600,) * 2)
        return walk(folder)

    monkeypatch.setattr(os, "walk", walk_after)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 3600)
    sink.write(Batch(2, [[{"n": 2, "place": "x"}]], 1))
    new = files_of(sink) - before
    assert len(new) == 1
    assert synced >= new


def test_rows_that_no_file_or_folder_can_hold_are_rejected_and_the_others_appended_once(
    tmp_path, monkeypatch
):
    """Promise 13."""
    original = pq.write_table

    def write(rows, path, **options):
        original(rows, path, **options)
        if 3 in rows["n"].to_pylist():
            raise pa.ArrowInvalid("3 cannot be written")

    schema = pa.schema([SCHEMA.field("n"), pa.field("place", pa.string(), nullable=False)])
    sink = SparkSink("orders", format="parquet", schema=schema, partition_by=["place"])
    spark = FakeSpark(monkeypatch)
    sink.open(SinkContext("p", "s", {}, Storage(str(tmp_path)), spark))
    monkeypatch.setattr(frames.pq, "write_table", write)
    rows = [{"n": number, "place": "x"} for number in range(5)]
    with pytest.raises(RowsRejected) as caught:
        sink.write(Batch(1, [[*rows, {"n": 5, "place": ""}, {"n": 6}]], 7))
    assert set(caught.value.reasons) == {3, 5, 6}
    (file,) = tmp_path.rglob("*.parquet")  # and none is left in the spool
    assert pq.ParquetFile(file).read()["n"].to_pylist() == [0, 1, 2, 4]
    assert len(spark.groups) == 2, "to open it, and to write once"
