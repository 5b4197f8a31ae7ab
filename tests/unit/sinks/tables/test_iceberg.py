import pickle
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException

from sinks import IcebergSink
from sinks.storage import Storage
from sinks.tables import iceberg_files
from tests.support.batches import LINE, SCHEMA, filled, group, put, rows, write
from tests.support.delta_table import around_commit
from tests.support.iceberg_table import EXPIRE_AT_ONCE, Table
from topology.errors import InvalidSchema, SinkFailed
from topology.sink import Batch, Fence, SinkContext

PROPERTY = f"headrace/p/s/{LINE}"


@pytest.fixture
def table(tmp_path):
    made = Table(tmp_path)
    yield made
    made.close()


def test_fence_is_a_snapshot_and_a_lost_commit_leaves_no_manifest(table, monkeypatch):
    sink = table.fenced()
    assert len(table.theirs().snapshots()) == 1
    around_commit(monkeypatch, table, lambda: table.append(50))
    put(sink, 1, 1)
    assert len([*(table.folder() / "metadata").glob("*.avro")]) == 2 * 2 + 1
    around_commit(monkeypatch, table, after=Mock(side_effect=CommitStateUnknownException("502")))
    put(sink, 2, 2)
    assert table.numbers() == [1, 2, 50]


def test_old_snapshots_of_ours_go_with_the_next_commits_and_their_files_too(table):
    sink = table.fenced()
    kept = {"history.expire.min-snapshots-to-keep": "3", "commit.manifest.min-count-to-merge": "4"}
    table.set_properties(EXPIRE_AT_ONCE | kept)
    for txid in range(1, 12):
        put(sink, txid, txid)
    theirs = table.theirs()
    assert len(theirs.snapshots()) <= 5
    named = {each.manifest_list for each in theirs.snapshots()}
    named |= {
        each.manifest_path
        for snapshot in theirs.snapshots()
        for each in snapshot.manifests(theirs.io)
    }
    found = {f"file://{path}" for path in (table.folder() / "metadata").glob("*.avro")}
    assert found == named
    assert table.numbers() == list(range(1, 12))
    assert len(table.sink().data_files()) == 11


def test_a_snapshot_that_others_followed_stays(table):
    sink = filled(table)
    theirs = table.theirs()
    table.set_properties(EXPIRE_AT_ONCE)
    theirs.delete("number = 1")
    kept = theirs.current_snapshot()
    for txid in (2, 3, 4):
        put(sink, txid, txid)
    assert table.theirs().snapshot_by_id(kept.parent_snapshot_id or 0) is not None
    assert table.numbers() == [2, 3, 4]


def test_partition_transforms_split_files_and_their_values_are_in_the_manifest(table):
    zoned, coded = pa.timestamp("ns", tz="Europe/Berlin"), pa.dictionary(pa.int32(), pa.string())
    kinds = {"number": pa.int64(), "place": coded, "at": zoned, "local": pa.timestamp("us")}
    schema = pa.schema(kinds | {"day": pa.date32(), "price": pa.decimal128(10, 2)})
    times = ["hour(at)", "month(local)", "year(day)"]
    by = ["place", *times, "bucket(8,number)", "truncate(2, place)"]
    sink = table.sink(schema, partition_by=by)
    early, march = datetime(1969, 12, 31, 22, 30, tzinfo=UTC), datetime(2026, 3, 1)  # noqa: DTZ001
    given = [
        {"number": 1, "place": "abc", "at": early, "local": march, "day": date(1969, 1, 1)},
        {"number": 1, "place": "abd", "price": Decimal("1.5")},
        {"number": 2, "place": "", "at": early},
    ]
    write(sink, given)
    parts = table.theirs().inspect.files()["partition"].to_pylist()
    parts.sort(key=lambda part: part["place"])
    assert parts[1] == {
        "place": "abc", "at_hour": -2, "local_month": (2026 - 1970) * 12 + 2, "day_year": -1,
        "number_bucket_8": parts[2]["number_bucket_8"], "place_trunc_2": "ab",
    }  # fmt: skip
    assert [part["place"] for part in parts] == ["", "abc", "abd"]
    assert parts[2]["at_hour"] is None
    for where, numbers in {
        "place == 'abc'": [1],
        "at < '1970-01-01T00:00:00+00:00'": [1, 2],
        "number == 1": [1, 1],
        "day < '1970-01-01'": [1],
    }.items():
        assert table.numbers(where) == numbers
    write(table.sink(schema, partition_by=["place", *times, "bucket(8, number)", by[-1]]), given)
    with pytest.raises(SinkFailed, match=r"partition_by is \['place'\]; .* by place, hour\(at\)"):
        table.sink(schema, partition_by=["place"])
    copy = pickle.loads(pickle.dumps(sink.stager()))  # noqa: S301 - ours
    assert len(copy.stage(group(1, 1)).parts) == 1


def test_a_null_above_a_child_that_has_none_harms_no_other_row(table):
    deep = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema([("number", pa.int64()), ("deep", deep)])
    found = pa.array([{"x": 7}], deep).take(pa.array([0, None, 0]))  # as a look-up gives it
    columns = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), found], schema=schema)
    sink = table.sink(schema)
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(replace(group(1, 1), pieces=[columns], num_rows=3))
    assert set(staged.rejected) <= {1}


def test_a_column_dropped_and_added_again_is_another_one(table):
    sink, other = table.sink(), table.fenced()
    write(sink, rows(1))
    staged = other.stage(group(1, 7))
    with table.theirs().update_schema() as change:
        change.delete_column("place")
    with pytest.raises(SinkFailed, match="'orders' was removed or changed while rows"):
        other.commit(staged)
    with pytest.raises(SinkFailed, match="column 'place' is not in the table"):
        table.sink()
    with table.theirs().update_schema() as change:
        change.union_by_name(pa.schema([("place", pa.string())]))
    with pytest.raises(SinkFailed, match="was removed or changed while"):
        other.commit(staged)
    with pytest.raises(SinkFailed, match="was removed or changed while"):
        sink.commit(sink.stage(Batch(2, [rows(2)], 1)))
    write(sink, rows(2))  # it fences first, as a run does
    assert table.numbers("place == 'x'") == [2]


def test_an_epoch_below_the_one_that_was_fenced_is_a_lost_state(table):
    sink = table.fenced(epoch=5)
    with table.theirs().transaction() as change:
        change.remove_properties(PROPERTY)
    sink._state = None
    with pytest.raises(SinkFailed, match="fenced under epoch 5, and the sink has nothing"):
        put(sink, 1, 1, epoch=5)


def test_a_table_that_pyiceberg_cannot_write_is_refused_with_its_reason(table):
    sink = table.fenced()
    table.set_properties({PROPERTY: "many"})
    with pytest.raises(SinkFailed, match="found 'many', expected EPOCH:TXID"):
        sink.committed([LINE])
    table.set_properties({"write.data.path": "/elsewhere"})
    with pytest.raises(SinkFailed, match=r"write.data.path = /elsewhere; use SparkSink"):
        table.sink()
    table.catalog.drop_table(("default", "orders"))
    table.catalog.create_table(("default", "orders"), SCHEMA, properties={"format-version": "1"})
    with pytest.raises(SinkFailed, match="found format version 1, expected 2; use SparkSink"):
        table.sink()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        *(
            ({"table": name}, None)
            for name in ("a/b", "/orders", "a..b", ".a", "s3://lake/a", "a b")
        ),
        *(
            ({"partition_by": [by]}, "expected one of the columns number, place, or year")
            for by in ("week(number)", "day(nothing)", "bucket(number)", "no", "bucket(x, number)")
        ),
    ],
)
def test_invalid_names_and_partitions_are_refused(options, reason):
    with pytest.raises(InvalidSchema, match=reason):
        IcebergSink(**{"table": "orders", "schema": SCHEMA} | options)


def test_a_namespace_is_made_with_the_table(tmp_path):
    made = Table(tmp_path)
    sink = IcebergSink("shop.eu.orders", schema=SCHEMA)
    sink.open(SinkContext("p", "s", {}, made.storage, None))
    assert sink.path == "default.shop.eu.orders"
    write(sink, rows(1))
    assert sink.path == f"file://{tmp_path}/shop.eu/orders"
    assert made.catalog.load_table(("shop", "eu", "orders")).scan().to_arrow().num_rows == 1
    sink.close()
    made.close()


def test_a_catalogue_that_is_not_configured_is_named(tmp_path):
    for storage, catalog in ((Storage(str(tmp_path)), "lake"), (Storage("s3://lake"), "default")):
        sink = IcebergSink("orders", schema=SCHEMA, catalog=catalog)
        with pytest.raises(SinkFailed, match=rf"expected a section \[storage.catalogs.{catalog}\]"):
            sink.open(SinkContext("p", "s", {}, storage, None))


@pytest.mark.parametrize(
    ("missing", "properties", "extra"),
    [
        ("pyiceberg.catalog.glue", {"type": "glue"}, "glue"),
        ("boto3", {"type": "glue", "glue.region": "eu-west-1"}, "glue"),
        ("pyiceberg.catalog.hive", {"type": "hive", "uri": "thrift://db:9083"}, "hive"),
        ("boto3", {"uri": "http://127.0.0.1:1", "rest.sigv4-enabled": "true"}, "rest-sigv4"),
    ],
)
def test_what_a_kind_of_catalogue_needs_besides_is_named(
    tmp_path, monkeypatch, missing, properties, extra
):
    monkeypatch.delitem(sys.modules, "pyiceberg.catalog.glue", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    storage = Storage(str(tmp_path), catalogs={"lake": properties})
    sink = IcebergSink("orders", schema=SCHEMA, catalog="lake")
    with pytest.raises(SinkFailed, match=rf"catalogue 'lake': .*pyiceberg\[{extra}\]"):
        sink.open(SinkContext("p", "s", {}, storage, None))


def test_every_file_is_synced_before_the_catalogue_names_it(table, monkeypatch):
    """Promise 3: a commit that was answered survives a power cut."""
    sink = table.fenced()
    synced = []
    original = iceberg_files.sync

    def sync(path):
        synced.append(path)
        original(path)

    for module in ("iceberg_files", "iceberg_log", "files"):
        monkeypatch.setattr(f"sinks.tables.{module}.sync", sync)
    before = set(table.folder().rglob("*"))
    at_commit = []
    around_commit(monkeypatch, table, lambda: at_commit.append(set(synced)))
    put(sink, 1, 1)
    new = {str(path) for path in set(table.folder().rglob("*")) - before if path.suffix != ".json"}
    assert {path for path in new if path.endswith((".parquet", ".avro"))} <= at_commit[0]
    assert len(new) >= 4
    metadata = table.theirs().metadata_location.removeprefix("file://")
    assert synced.index(metadata) < len(synced) - 1
    assert synced[-1] == table.storage.warehouse  # the catalogue's own folder, last


def test_what_was_written_here_is_read_from_memory_up_to_a_limit(tmp_path, monkeypatch):
    files = iceberg_files.TableFileIO()

    def write(name, content):
        with files.new_output(f"{tmp_path}/{name}").create() as stream:
            stream.write(content)
        return tmp_path / name

    def read(path):
        with files.new_input(str(path)).open() as stream:
            return stream.read()

    monkeypatch.setattr(iceberg_files, "_kept", {})
    monkeypatch.setattr(iceberg_files, "_KEPT_BYTES", 10)
    old, first = write("a.metadata.json", b"1"), write("a.avro", b"12345")
    new, second = write("b.metadata.json", b"22"), write("b.avro", b"123456")
    for path in (old, first, new, second):
        path.write_bytes(b"-")
    assert [read(path) for path in (old, first, new, second)] == [b"-", b"-", b"22", b"123456"]


def test_a_file_that_was_not_written_to_its_end_is_not_there(tmp_path):
    with (
        pytest.raises(TypeError),
        iceberg_files.TableFileIO().new_output(f"{tmp_path}/half.avro").create() as stream,
    ):
        stream.write(b"half") + None
    assert list(tmp_path.iterdir()) == []
