import importlib.util
import itertools
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.io.pyarrow import PyArrowFileIO

from sinks.tables import iceberg_maintenance
from sinks.tables.iceberg_maintenance import TAG
from tests.support.batches import LINE, SCHEMA, filled, group, put
from tests.support.delta_table import around_commit
from tests.support.iceberg_table import EXPIRE_AT_ONCE, Table
from topology.errors import SinkFailed
from topology.sink import Committed, Compaction, Removal

LAKE = {"spark.sql.catalog.default": "…"}
AGE = "history.expire.max-snapshot-age-ms"


@pytest.fixture
def table(tmp_path):
    made = Table(tmp_path)
    yield made
    made.close()


def test_expire_removes_the_files_that_only_old_snapshots_name(table):
    """Promise 9: epochs and txids stay."""
    sink = filled(table, 4)
    table.theirs().delete("number < 3")
    put(sink, 5, 5)
    table.set_properties(EXPIRE_AT_ONCE)
    before, snapshots = table.on_disk(), len(table.theirs().metadata.snapshots)
    foretold = table.sink().expire(dry_run=True)
    assert table.on_disk() == before
    assert table.sink().expire() == foretold
    assert foretold == Removal(snapshots - 1, len(before - table.on_disk()))
    assert len(table.files()) == 3
    assert table.on_disk() == table.named()
    assert table.numbers() == [3, 4, 5]
    assert table.sink().committed([LINE]) == [Committed(LINE, 1, 5)]
    put(sink, 6, 6)  # the writer that ran meanwhile
    assert table.numbers() == [3, 4, 5, 6]
    assert table.sink().expire().versions_removed == 1


def test_expire_keeps_what_branches_and_tags_name(table):
    sink = table.fenced()
    tagged = []
    for txid in range(1, 4):
        put(sink, txid, txid)
        tagged.append(table.theirs().current_snapshot())
    table.theirs().manage_snapshots().create_tag(tagged[0].snapshot_id, "first").commit()
    table.theirs().manage_snapshots().create_branch(
        tagged[1].snapshot_id, "second", min_snapshots_to_keep=2
    ).commit()
    table.theirs().delete("number > 0")
    table.set_properties(EXPIRE_AT_ONCE)
    assert table.sink().expire().versions_removed == 2  # the fence, and the third
    assert table.on_disk() == table.named()
    for name, numbers in (("first", [1]), ("second", [1, 2]), ("main", [])):
        ref = table.theirs().metadata.refs[name]
        scan = table.theirs().scan(snapshot_id=ref.snapshot_id)
        assert sorted(scan.to_arrow()["number"].to_pylist()) == numbers


def test_expire_keeps_what_the_table_says(table):
    sink = filled(table)
    assert table.sink().expire() == Removal(0, 0)  # 100 snapshots, of 15 minutes
    table.set_properties(EXPIRE_AT_ONCE | {"history.expire.min-snapshots-to-keep": "2"})
    put(sink, 2, 2)
    assert table.sink().expire(dry_run=True).versions_removed == 1
    table.set_properties(EXPIRE_AT_ONCE | {AGE: "3600000"})
    assert table.sink().expire() == Removal(0, 0)
    table.set_properties(EXPIRE_AT_ONCE | {"gc.enabled": "false"})
    with pytest.raises(SinkFailed, match=r"gc.enabled = false"):
        table.sink().expire()


def test_a_process_killed_while_it_expires_leaves_orphans_and_no_dangling_name(table, monkeypatch):
    filled(table, 3)
    table.theirs().delete("number < 3")
    table.set_properties(EXPIRE_AT_ONCE)
    original, numbers = PyArrowFileIO.delete, itertools.count(1)

    def delete(self, location):
        if next(numbers) == 3:
            raise SystemExit("killed")
        original(self, location)

    monkeypatch.setattr(PyArrowFileIO, "delete", delete)
    with pytest.raises(SystemExit, match="killed"):
        table.sink().expire()
    monkeypatch.undo()
    assert len(table.theirs().metadata.snapshots) == 1
    assert table.named() < table.on_disk()
    assert table.numbers() == [3]
    put(table.fenced(), 4, 4)
    assert table.numbers() == [3, 4]


def test_expire_beside_a_commit_decides_anew(table, monkeypatch):
    sink = filled(table)
    table.set_properties(EXPIRE_AT_ONCE | {AGE: "3600000"})
    put(sink, 2, 2)
    table.set_properties({AGE: "1"})
    around_commit(monkeypatch, table, lambda: put(table.sink(), 3, 3))
    assert table.sink().expire().versions_removed >= 1
    assert table.on_disk() == table.named()
    assert table.numbers() == [1, 2, 3]


def test_a_commit_that_would_remove_snapshots_which_are_gone_is_tried_again(table, monkeypatch):
    sink = filled(table, 3)
    table.set_properties(EXPIRE_AT_ONCE)
    sink = table.fenced()  # it knows all snapshots
    around_commit(monkeypatch, table, lambda: table.sink().expire())
    put(sink, 4, 4)
    assert table.numbers() == [1, 2, 3, 4]
    assert table.named() <= table.on_disk()
    assert sink.committed([LINE]) == [Committed(LINE, 1, 4)]


def test_a_commit_keeps_the_manifests_of_older_snapshots_that_stay(table):
    """Others' appends follow them, so they are not ours to remove."""
    filled(table)
    table.set_properties(EXPIRE_AT_ONCE)
    assert table.sink().expire().versions_removed == 1  # the fence
    theirs = table.theirs()
    theirs.append(
        pa.table({"number": [50], "place": ["theirs"]}, schema=theirs.schema().as_arrow())
    )
    table.set_properties({"commit.manifest.min-count-to-merge": "2"})
    sink = table.fenced()
    for txid in range(2, 6):  # the first merges all manifests into one
        put(sink, txid, txid)
        assert table.named() <= table.on_disk()
    assert table.numbers() == [1, 2, 3, 4, 5, 50]


def with_spark(table, *answer, conf=LAKE, meanwhile=lambda: None):
    """A sink whose Spark answers each procedure with these rows, and what that was told."""
    said = []

    def sql(statement):
        said.append(statement)
        meanwhile()
        found = [SimpleNamespace(asDict=lambda each=each: each) for each in answer]
        return SimpleNamespace(collect=lambda: found)

    session = SimpleNamespace(conf=conf, sql=sql)
    spark = SimpleNamespace(run=lambda job, **_: job(session))
    return table.sink(spark=spark), said


def test_compact_and_vacuum_call_sparks_procedures(table):
    table.fenced()
    answer = {
        "rewritten_data_files_count": 4,
        "added_data_files_count": 1,
        "rewritten_bytes_count": 99,
    }
    sink, said = with_spark(table, answer)
    assert sink.compact(1000) == Compaction(4, 1, 99)
    assert sink.vacuum(24, dry_run=True) == Removal(0, 1)
    assert said[0] == (
        "CALL `default`.system.rewrite_data_files(table => '`default`.`orders`', "
        "options => map('target-file-size-bytes', '1000', 'min-input-files', '2'))"
    )
    assert said[1].startswith(
        "CALL `default`.system.remove_orphan_files(table => '`default`.`orders`', "
        "older_than => TIMESTAMP '20"
    )
    assert said[1].endswith("Z', dry_run => True)")


def test_no_commit_removes_a_snapshot_while_spark_works(table):
    """Spark reads all of them, and follows the history since it began."""
    sink = filled(table)
    table.set_properties(EXPIRE_AT_ONCE)
    put(sink, 2, 2)  # by which it knows the properties, and no tag
    before = len(table.theirs().metadata.snapshots)
    counts = list[int]()

    def meanwhile():
        for txid in (3, 4):
            put(sink, txid, txid)
            counts.append(len(table.theirs().metadata.snapshots))

    sparks, _ = with_spark(table, meanwhile=meanwhile)
    sparks.vacuum(24)
    assert counts == [before + 1, before + 2]
    assert [*table.theirs().metadata.refs] == ["main"]
    sink = table.fenced()
    put(sink, 5, 5)
    assert len(table.theirs().metadata.snapshots) == 2
    assert table.numbers() == [1, 2, 3, 4, 5]


def test_a_tag_that_a_killed_process_left_keeps_snapshots_for_a_day(table, monkeypatch):
    filled(table)
    tagged = table.theirs().current_snapshot()
    table.theirs().manage_snapshots().create_tag(tagged.snapshot_id, TAG).commit()
    table.set_properties(EXPIRE_AT_ONCE)
    sink = table.fenced()
    for txid in (2, 3):
        put(sink, txid, txid)
    assert len(table.theirs().metadata.snapshots) == 4
    monkeypatch.setattr(iceberg_maintenance, "MAINTAINED_SECONDS", 0)
    put(sink, 4, 4)
    assert [*table.theirs().metadata.refs] == ["main"]
    assert len(table.theirs().metadata.snapshots) == 2
    assert table.named() <= table.on_disk()
    assert table.numbers() == [1, 2, 3, 4]


def test_a_clock_that_is_behind_dates_no_snapshot_before_another(table, monkeypatch):
    """Iceberg's Java library reads no table whose changes are not in order."""
    sink = filled(table)
    behind = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: behind)
    for txid in range(2, 5):
        put(sink, txid, txid)
    log = [each.timestamp_ms for each in table.theirs().metadata.snapshot_log]
    assert log == sorted(log)
    assert table.numbers() == [1, 2, 3, 4]


def test_a_clock_that_is_behind_changes_neither_columns_nor_snapshots(table, monkeypatch):
    """The catalogue would date that by it."""
    sink = filled(table)
    table.set_properties(EXPIRE_AT_ONCE)
    ahead = time.time() + 3600
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: ahead)
        put(sink, 2, 2)
    wider = SCHEMA.append(pa.field("new", pa.int64()))
    for change in (sink.expire, sink.probe, lambda: table.sink(wider, on_new_columns="add")):
        with pytest.raises(SinkFailed, match="yet to come by this host's clock"):
            change()
    put(sink, 3, 3)
    assert table.numbers() == [1, 2, 3]


def test_spark_that_is_missing_or_knows_no_catalogue_is_named(table, monkeypatch):
    filled(table)
    sink, _ = with_spark(table, conf={})
    with pytest.raises(SinkFailed, match=r'Add "spark.sql.catalog.default" and its properties'):
        sink.compact(1000)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for work in (lambda: sink.compact(1000), lambda: sink.vacuum(24)):
        with pytest.raises(SinkFailed, match=r"needs PySpark, which is not installed: pip"):
            work()


@pytest.mark.parametrize("is_new", [True, False])
def test_probe_leaves_no_table_and_no_namespace_of_its_own(table, tmp_path, is_new):
    if not is_new:
        table.catalog.create_namespace("default")
    assert table.sink().probe() == "create, load, commit to and drop a table in default"
    assert table.catalog.list_namespaces() == ([] if is_new else [("default",)])
    assert is_new or table.catalog.list_tables("default") == []
    assert not [path for path in tmp_path.rglob("*") if "headrace_check" in path.name]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("create_namespace", "create namespace default"),
        ("create_table", r"create default\.headrace_check_\w+"),
        ("commit_table", r"commit to default\.headrace_check_\w+"),
        ("purge_table", r"drop default\.headrace_check_\w+"),
        (None, r"commit to default.orders"),
    ],
)
def test_probe_names_a_right_that_is_missing(table, monkeypatch, method, said):
    sink = table.sink() if method else table.fenced()
    with monkeypatch.context() as patch:
        patch.setattr(
            SqlCatalog, method or "commit_table", Mock(side_effect=ForbiddenError("not for you"))
        )
        with pytest.raises(SinkFailed, match=f"cannot {said}: ForbiddenError: not for you"):
            sink.probe()
    if method not in (None, "purge_table"):
        assert table.catalog.list_namespaces() == []


def test_probe_sets_a_property_of_a_table_and_makes_no_snapshot(table):
    sink = table.fenced()
    staged = sink.stage(group(1, 1))
    snapshots = table.theirs().metadata.snapshots
    assert table.sink().probe() == "load and commit to default.orders"
    assert "headrace.checked-at" in table.theirs().properties
    assert table.theirs().metadata.snapshots == snapshots
    sink.commit(staged)  # a service that runs meanwhile
    assert table.numbers() == [1]
