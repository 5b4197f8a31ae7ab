import json
import time
from dataclasses import replace
from pathlib import Path

import deltalake
import pytest

from sinks.tables import delta_log_files
from tests.support.batches import LINE, STRANGE, filled, group, put, write
from tests.support.delta_table import Table, age
from topology.errors import SinkFailed
from topology.sink import Committed, Fence, Removal


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def age_everything(table, days):
    """Have the past happen earlier: files, entries, and the time that entries tell of removals."""
    for path in table.files():
        age(path, days)
    for entry in table.entries():
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] -= int(days * 86_400_000)
        entry.write_text("\n".join(map(json.dumps, actions)) + "\n")
        age(entry, days)


@pytest.mark.parametrize("partition_by", [[], ["place"]])
def test_vacuum_removes_old_files_that_a_killed_process_left(table, partition_by):
    sink = table.fenced(partition_by=partition_by)
    put(sink, 1, 1, 2)
    write(table.sink(exactly_once=False), [{"number": 3, "place": each} for each in STRANGE])
    named = table.files()
    sink.stage(group(2, 7))
    (left,) = table.files() - named
    age_everything(table, 8)
    sink.stage(group(3, 8))
    (young,) = table.files() - named - {left}
    assert table.sink().vacuum(168, dry_run=True) == Removal(0, 1)
    assert left.exists()
    assert table.sink().vacuum(168) == Removal(0, 1)
    assert table.files() == named | {young}
    assert table.sink().vacuum(168) == Removal(0, 0)
    assert table.listed_numbers() == [1, 2, *[3] * len(STRANGE)]


def test_vacuum_removes_files_that_were_replaced_long_ago(table):
    sink = filled(table, 4)
    assert sink.compact(1024 * 1024).files_replaced == 4
    assert sink.vacuum(24) == Removal(0, 0)
    age_everything(table, 2)
    assert table.sink().vacuum(168) == Removal(0, 0)
    assert table.sink().vacuum(24) == Removal(0, 4)
    assert table.listed_numbers() == [1, 2, 3, 4]


def test_vacuum_keeps_files_as_long_as_the_table_says(table):
    filled(table)
    table.theirs().alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 10 days"}
    )
    age_everything(table, 8)
    with pytest.raises(Exception, match="240 hours"):
        table.sink().vacuum(168)


def test_vacuum_is_refused_for_young_files_and_for_deletion_vectors(table):
    sink = table.fenced()
    with pytest.raises(ValueError, match="found 23 hours, expected at least 24"):
        sink.vacuum(23)
    table.theirs().alter.add_feature(
        deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with pytest.raises(SinkFailed, match="the feature deletionVectors"):
        sink.vacuum(168)


def test_vacuum_is_refused_by_a_clock_that_is_ahead_of_the_stores(table, monkeypatch):
    """It would take files that are about to be committed for old."""
    sink = table.fenced()
    staged = sink.stage(group(1, 1))
    ahead = time.time() + 48 * 3600
    monkeypatch.setattr(time, "time", lambda: ahead)
    with pytest.raises(SinkFailed, match="clock is 48 hours ahead of the store's"):
        sink.vacuum(24)
    monkeypatch.undo()
    sink.commit(staged)
    assert table.listed_numbers() == [1]
    assert not list(table.path.glob(".headrace*"))


def test_files_that_vacuum_may_have_removed_are_never_committed(table):
    sink = table.fenced()
    staged = sink.stage(group(1, 1))
    half_a_day_ms = 13 * 3_600_000
    parts = tuple(
        replace(file, modified_ms=file.modified_ms - half_a_day_ms) for file in staged.parts
    )
    with pytest.raises(SinkFailed, match="found files staged 13 hours ago, expected at most 12"):
        sink.commit(replace(staged, parts=parts))
    assert table.listed_numbers() == []
    put(sink, 1, 1)
    assert table.listed_numbers() == [1]


@pytest.mark.parametrize("recent", [0, 3])
def test_expire_removes_old_log_entries_and_keeps_rows_and_txids(table, recent):
    """Promise 9."""
    sink = filled(table, 5)
    for path in [*table.entries(), *table.log.glob("*.parquet")]:
        age(path, 31)
    sink = table.sink()
    sink.fence([Fence(LINE, 1)])
    for txid in range(6, 6 + recent):
        put(sink, txid, txid)
    table.theirs().create_checkpoint()
    if recent:  # the last of the old versions has one, as it has every hundred commits
        deltalake.DeltaTable(table.path, version=6).create_checkpoint()
    foretold = table.sink().expire(dry_run=True)
    before = len(table.entries())
    assert table.sink().expire() == foretold
    assert foretold.versions_removed == before - len(table.entries()) >= 5
    assert len(table.entries()) == recent + 1
    last = 5 + recent
    assert table.sink().committed([LINE]) == [Committed(LINE, 1, last)]
    put(sink, last + 1, last + 1)  # the writer that ran meanwhile
    assert table.listed_numbers() == list(range(1, last + 2))
    assert table.sink().committed([LINE]) == [Committed(LINE, 1, last + 1)]


def test_a_checkpoint_is_synced_before_the_entries_that_it_replaces_go(table, monkeypatch):
    """Promise 3: the table survives a power cut."""
    filled(table)
    for path in table.entries():
        age(path, 31)
    synced = []
    original = delta_log_files.sync

    def sync(path):
        assert len(table.entries()) == 3, "none has gone before this"
        synced.append(Path(path).name)
        original(path)

    monkeypatch.setattr(delta_log_files, "sync", sync)
    assert table.sink().expire().versions_removed == 2
    assert {"_last_checkpoint", f"{2:020d}.checkpoint.parquet", "_delta_log"} <= {*synced}
    monkeypatch.undo()
    assert table.listed_numbers() == [1]
