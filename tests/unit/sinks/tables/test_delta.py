import datetime as dt
import fcntl
import json
import os
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import deltalake
import pyarrow as pa
import pytest

from sinks import DeltaSink
from sinks.tables.delta_log import DeltaLog
from sinks.tables.log import Conflict, app_id
from tests.support.batches import LINE, SCHEMA, filled, group, group_of, put, rows, write
from tests.support.delta_table import Table, around, around_commit
from topology.errors import InvalidSchema, RowsRejected, SinkBusy, SinkFailed, SinkFenced
from topology.sink import Committed, Compaction, Fence

KEYED = pa.schema([*SCHEMA, ("value", pa.int64()), ("gone", pa.bool_())])
TARGET_BYTES = 1024 * 1024
RETENTION = "delta.setTransactionRetentionDuration"


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def row(number, value=0, place="x"):
    return {"number": number, "place": place, "value": value}


def gone(number):
    return {"number": number, "gone": True}


def test_a_retention_of_transactions_that_is_set_meanwhile_is_found_at_the_next_commit(table):
    """Promise 9: the table would forget who has fenced whom."""
    sink = filled(table)
    table.theirs().alter.set_table_properties(
        {RETENTION: "interval 1 day"}, raise_if_not_exists=False
    )
    with pytest.raises(SinkFailed, match=f"forgets transactions: {RETENTION} = interval 1 day"):
        put(sink, 2, 2)
    with pytest.raises(SinkFailed, match=RETENTION):
        table.sink()
    write(table.sink(exactly_once=False), rows(3))
    assert table.numbers() == [1, 3]


@pytest.mark.parametrize(
    ("changed", "partition_by", "reason"),
    [
        (pa.table({"number": ["a"], "place": ["b"]}), [], "'number': found int64, expected str"),
        (pa.table({"number": [1]}), [], "column 'place' is not in the table"),
        (pa.table({"number": [1], "place": ["b"]}), ["place"], "was changed while rows were writ"),
    ],
)
def test_columns_and_partitions_that_others_change_amid_a_run_stop_the_sink(
    table, changed, partition_by, reason
):
    sink = filled(table)
    staged = sink.stage(group(2, 2))
    deltalake.write_deltalake(
        table.path, changed, mode="overwrite", schema_mode="overwrite", partition_by=partition_by
    )
    with pytest.raises(SinkFailed, match=reason):
        sink.commit(staged)
    assert len(table.rows()) == 1


@pytest.mark.parametrize("is_like_ours", [False, True])
def test_log_entry_that_is_replaced_stops_the_partition(table, is_like_ours):
    """Promise 8: its rows are gone, also if the new entry has the same size and time."""
    sink = filled(table)
    entry = table.entries()[-1]
    text, seen = entry.read_text(), entry.stat()
    if is_like_ours:
        entry.write_text(re.sub('(?<="headrace":")[^"]*', lambda ours: "x" * len(ours[0]), text))
        os.utime(entry, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        assert entry.stat().st_size == seen.st_size
    else:
        entry.unlink()
        table.append(50)
    with pytest.raises(SinkFailed, match="another writer has replaced the log entry of version 2"):
        put(sink, 2, 2)
    if not is_like_ours:
        with pytest.raises(SinkFailed, match="sinkstatelost"):
            put(sink, 2, 2)


def test_transaction_below_the_fenced_epoch_is_lost_state(table):
    """Promise 8: not a fresh partition."""
    sink = table.fenced(epoch=3)
    for entry in table.entries()[1:]:
        entry.unlink()
    table.theirs().alter.set_table_description("an older table, put back")
    with pytest.raises(SinkFailed):  # the entry
        put(sink, 1, 1, epoch=3)
    with pytest.raises(SinkFailed, match=r"fenced under epoch 3, .*has nothing of it"):
        put(sink, 1, 1, epoch=3)


def protocol(feature, *of_readers):
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    return {"protocol": versions | {"writerFeatures": [feature], "readerFeatures": [*of_readers]}}


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (protocol("rowTracking"), "it has the feature rowTracking"),
        (protocol("typeWidening", "typeWidening"), "it has the feature typeWidening"),
        ({"delta.columnMapping.mode": "name"}, "it has delta.columnMapping.mode = name"),
        ({"delta.constraints.low": "number < 100"}, "it has the constraint low"),
    ],
)
def test_what_cannot_be_written_is_refused_at_the_start_and_amid_a_run(table, action, reason):
    """Some of it delta-rs would ignore."""
    sink = table.fenced()
    staged = sink.stage(group(1, 200))
    if "protocol" not in action:
        actions = [json.loads(line) for line in table.entries()[0].read_text().splitlines()]
        (metadata,) = (each["metaData"] for each in actions if "metaData" in each)
        action = {"metaData": metadata | {"configuration": action}}
    (table.log / f"{2:020d}.json").write_text(json.dumps(action))
    for work in (lambda: sink.commit(staged), table.sink):
        with pytest.raises(SinkFailed, match=f"{reason}; use SparkSink"):
            work()


def test_a_table_keeps_its_partitions_and_its_nulls_out(table):
    schema = pa.schema([("number", pa.int64()), pa.field("place", pa.string(), nullable=False)])
    deltalake.DeltaTable.create(table.path, schema=schema, partition_by=["place"])
    write(table.sink(schema, exactly_once=False), rows(1, place="a b"))
    assert (table.path / "place=a b").is_dir()
    with pytest.raises(SinkFailed, match="the table is partitioned by place"):
        table.sink(schema, partition_by=["number"])
    with pytest.raises(SinkFailed, match="column 'place' is NOT NULL in the table only"):
        table.sink()


def test_application_ids_of_different_sinks_differ():
    assert app_id("shop/eu", "rows", LINE) != app_id("shop", "eu/rows", LINE)
    assert app_id("p", "s", "orders[3]") == "headrace/p/s/orders[3]"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"a b": pa.int64()}, "column 'a b': Delta allows names without"),
        ({"n": pa.int64(), "N": pa.int64()}, "columns n, N differ in case only"),
        ({"n": pa.uint16()}, "column 'n': found uint16; Delta has no such type"),
        ({"t": pa.time64("us")}, "column 't': found time64.*; Delta has no such type"),
    ],
)
def test_columns_that_delta_cannot_have_are_named(table, schema, reason, monkeypatch):
    monkeypatch.setattr("sinks.tables.table._BUSY_SECONDS", 0.0)
    with pytest.raises(SinkFailed, match=f"'orders': .*{reason}"):
        table.sink(pa.schema(schema))


def test_a_path_that_delta_rs_would_read_as_another_is_refused(tmp_path):
    with pytest.raises(SinkFailed, match="delta-rs takes '%20' for a character that is escaped"):
        Table(tmp_path / "a%20b").sink()
    put(Table(tmp_path / "größe #1 %").fenced(), 1, 1)


def test_files_are_not_removed_while_a_version_may_name_them(table, monkeypatch):
    """The request may still be on its way to the store, until another version is in its place."""
    sink = table.fenced()
    sink._delta.ends_at_once = False  # as on an object store
    staged = sink.stage(group(1, 1))
    around_commit(monkeypatch, table, before=Mock(side_effect=ConnectionResetError("gone")))
    with pytest.raises(OSError, match="gone"):
        sink.commit(staged)
    sink.discard(staged)
    assert len(table.files()) == 1
    successor = table.fenced(epoch=2)
    with pytest.raises(SinkFenced):
        sink.commit(staged)
    sink.discard(staged)
    assert table.files() == set()
    put(successor, 1, 1, epoch=2)
    with pytest.raises(SinkFenced):
        sink.commit(staged)
    assert table.numbers() == [1]


@pytest.mark.parametrize("content", ["", "\0" * 300, '{"commitInfo":{"headrace":"1","a'])
def test_a_torn_last_entry_of_ours_is_moved_away_at_the_start(table, content):
    """Promise 3: nobody was answered that it is there."""
    filled(table)
    torn = table.log / f"{3:020d}.json"
    torn.write_text(content)
    again = table.sink()
    assert again.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 1)]
    put(again, 2, 2, epoch=2)
    assert table.numbers() == [1, 2]
    assert len([*table.log.glob(".*.torn")]) == 1


def test_torn_entry_of_others_and_missing_file_are_reported(table):
    filled(table)
    (file,) = table.files()
    content = file.read_bytes()
    file.write_bytes(b"PAR1")
    with pytest.raises(SinkFailed, match=f"adds the file {file.name}, which is not there as writt"):
        table.sink()
    file.write_bytes(content)
    table.append(50)
    torn = table.log / f"{4:020d}.json"
    torn.write_text("")
    with pytest.raises(SinkFailed, match=f"{torn} is empty or torn, and another writer's.*restore"):
        table.sink()
    assert torn.exists()


@pytest.mark.parametrize("operation", ["MERGE", "OPTIMIZE"])
def test_last_entry_of_ours_without_its_file_is_moved_away(table, operation):
    """Promise 3: delta-rs commits at once what it has written, so a power cut may come between."""
    sink = table.sink(exactly_once=False, key=["number"])
    write(sink, rows(1))
    write(sink, rows(2))
    if operation == "OPTIMIZE":
        assert sink.compact(TARGET_BYTES).files_written == 1
    last = table.entries()[-1]
    assert f'"operation":"{operation}"' in last.read_text()
    added = [json.loads(line).get("add") for line in last.read_text().splitlines()]
    (path,) = (each["path"] for each in added if each)
    (table.path / path).write_bytes(b"")
    write(table.sink(exactly_once=False, key=["number"]), rows(3))
    assert table.numbers() == ([1, 3] if operation == "MERGE" else [1, 2, 3])
    assert len([*table.log.glob(".*.torn")]) == 1


def test_what_is_answered_is_on_the_disk_and_so_is_what_is_found(table, monkeypatch):
    """Promise 3: the one who committed may have been killed before its sync."""
    synced = []
    monkeypatch.setattr("sinks.tables.delta_log_files.sync", synced.append)
    filled(table)
    mine = table.entries()[-1]
    assert {str(mine), str(table.log)} <= set(synced)
    synced.clear()
    table.sink().committed([LINE])
    assert {str(entry) for entry in table.entries()} <= set(synced)
    synced.clear()
    keyed = table.sink(exactly_once=False, key=["number"])
    write(keyed, rows(1))
    (path,) = (Path(file) for file in keyed.data_files())
    assert str(path) in synced


def test_a_frozen_writer_holds_the_others_up_for_a_moment_only(table, monkeypatch):
    """Promise 10: whose turn it is only spares them tries."""
    monkeypatch.setattr("sinks.tables.delta_log_files._TURN_SECONDS", 0.1)
    sink = table.fenced()
    frozen = os.open(table.log, os.O_RDONLY)
    fcntl.flock(frozen, fcntl.LOCK_EX)
    try:
        put(sink, 1, 1)
    finally:
        os.close(frozen)
    put(sink, 2, 2)
    assert table.numbers() == [1, 2]


def test_a_table_made_anew_is_synced_from_its_beginning(table, monkeypatch):
    """Promise 3: its versions are lower than those that were synced of the former one."""
    sink = table.sink(exactly_once=False)
    for number in range(4):
        write(sink, rows(number))
    shutil.rmtree(table.path)
    synced = []
    monkeypatch.setattr("sinks.tables.delta_log_files.sync", synced.append)
    write(sink, rows(9))
    assert {str(entry) for entry in table.entries()} <= set(synced)


def test_a_table_that_others_keep_changing_makes_the_sink_busy(table, monkeypatch):
    sink = table.fenced()
    monkeypatch.setattr(DeltaLog, "commit", Mock(side_effect=Conflict))
    with pytest.raises(SinkBusy, match="others keep changing the table"):
        put(sink, 1, 1)


def test_two_that_make_the_table_at_once_make_one(table, monkeypatch):
    first, second = table.sink(), table.sink()
    lines = [LINE, "orders[1]"]
    around(monkeypatch, DeltaLog, "create", lambda _: second.fence([Fence(lines[1], 1)]))
    first.fence([Fence(LINE, 1)])
    assert second.committed(lines) == [Committed(line, 1, 0) for line in lines]


def keyed(table, *, exactly_once=False, **options):
    options = {"key": "number", "deleted": "gone"} | options
    return table.sink(KEYED, exactly_once=exactly_once, **options)


def values(table):
    """By number; no number is there twice."""
    found = table.rows()
    assert len({each["number"] for each in found}) == len(found)
    return {each["number"]: each["value"] for each in found}


@pytest.mark.parametrize("partition_by", [[], ["place"]])
def test_a_row_replaces_that_of_its_key_and_a_deleting_one_removes_it(table, partition_by):
    sink = keyed(table, partition_by=partition_by)
    write(sink, [row(number) for number in range(5)])
    write(sink, [row(1, 1, "y"), row(2, 1), row(2, 2), gone(3), gone(99)], 2)
    assert values(table) == {0: 0, 1: 1, 2: 2, 4: 0}
    with pytest.raises(RowsRejected) as caught:
        write(sink, [row(0, 5), {"number": None}, gone(4)], 3)
    assert "'number': found None" in caught.value.reasons[1]
    assert values(table) == {0: 5, 1: 1, 2: 2}
    before = table.entries()
    write(sink, [], 4)
    assert table.entries() == before


def test_what_is_replaced_and_the_txids_are_in_one_commit_and_a_replay_changes_nothing(table):
    """Promise 9, Storm 45: a stale replay does not replace newer rows."""
    sink = keyed(table, exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    first = sink.stage(group_of(1, [row(1, 1), row(2, 1)]))
    sink.commit(first)
    sink.commit(sink.stage(group_of(2, [row(1, 2), row(3, 2)])))
    before = len(table.entries())
    sink.commit(sink.stage(group_of(3, [gone(2)])))
    sink.commit(sink.stage(group_of(4, [gone(77)])))  # no row has the key
    assert len(table.entries()) == before + 2
    sink.commit(first)
    assert keyed(table, exactly_once=True).fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 4)]
    assert values(table) == {1: 2, 3: 2}


def test_files_that_hold_none_of_the_keys_are_left_alone(table):
    sink = keyed(table)
    write(sink, [row(1), row(2)])
    write(sink, [row(10), row(11)], 2)
    before = table.files()
    write(sink, [row(10, 5)], 3)
    (untouched,) = before & {Path(file) for file in sink.data_files()}
    assert untouched in before
    assert values(table) == {1: 0, 2: 0, 10: 5, 11: 0}


def test_a_table_whose_readers_want_changes_is_refused_for_rows_by_key(table):
    write(keyed(table), [row(1)])
    table.theirs().alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(
        SinkFailed, match=r"rows have a key, and it has delta\.enableChangeDataFeed"
    ):
        keyed(table)
    write(table.sink(pa.schema(list(KEYED)[:3]), exactly_once=False), [row(2)])


def test_files_are_listed_whatever_times_others_have_written(table):
    """Python has no date behind the year 9999."""
    sink = table.sink(pa.schema({"day": pa.date32()}), exactly_once=False)
    write(sink, [{"day": dt.date(2026, 11, 27)}])
    theirs = pa.table({"day": pa.array([3_000_000], pa.int32()).cast(pa.date32())})
    deltalake.write_deltalake(table.path, theirs, mode="append")
    assert len(table.sink(pa.schema({"day": pa.date32()}), exactly_once=False).data_files()) == 2


def test_small_files_are_joined_beside_a_running_writer(table):
    sink = table.fenced()
    for txid in range(1, 5):
        put(sink, txid, txid, 10 * txid)
    staged = sink.stage(group(5, 5))
    other = table.sink(exactly_once=False)
    size = sum(Path(file).stat().st_size for file in other.data_files())
    assert other.compact(TARGET_BYTES) == Compaction(4, 1, size)
    assert len(other.data_files()) == 1
    assert other.compact(TARGET_BYTES) == Compaction(0, 0, 0)
    sink.commit(staged)
    sink.commit(staged)
    assert sink.committed([LINE]) == [Committed(LINE, 1, 5)]
    assert table.numbers() == [1, 2, 3, 4, 5, 10, 20, 30, 40]


def test_a_sink_that_cannot_be_is_refused_when_it_is_made():
    for kind in (pa.float64(), pa.list_(pa.string())):
        schema = pa.schema([("x", kind), ("y", pa.int64())])
        with pytest.raises(InvalidSchema, match=r"key column 'x': found .*, expected whole"):
            DeltaSink("t", schema=schema, key="x")
    options = {"on_new_columns": "drop"}
    with pytest.raises(InvalidSchema, match="on_new_columns is 'drop', expected 'reject' and"):
        DeltaSink("orders", schema=SCHEMA, **options)
