"""Few large files in place of many small ones, and files that nobody needs any more."""

import math
import os
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks import ManifestSink
from sinks.files.statistics import statistics_of
from sinks.manifest import compactor as compactor_module
from sinks.manifest.compactor import Compactor
from sinks.manifest.entry import Listed
from sinks.manifest.joining import cut, join, small_files
from sinks.manifest.log import ManifestLog
from tests.worlds.manifest_table import LINE, SCHEMA, Table, group, rows, write
from topology.compaction import Compaction
from topology.errors import SinkBusy, SinkFailed
from topology.transactional import Committed, Fence

LARGE = 2**30
DAY = 24 * 3600.0

sizes = st.lists(st.integers(1, 100), max_size=30)


def files_of(numbers: list[int], folder: str = "") -> list[Listed]:
    return [Listed(f"{folder}{place}", 1, size) for place, size in enumerate(numbers)]


@given(sizes)
def test_only_files_much_smaller_than_the_target_are_joined_each_once(numbers: list[int]) -> None:
    files = files_of(numbers)
    runs = [run for same in small_files(files, 100) for run in cut(same, 100)]
    joined = [file.path for run in runs for file in run]
    assert len(set(joined)) == len(joined)
    assert all(file.bytes < 50 for run in runs for file in run)
    assert all(len(run) > 1 for run in runs)
    assert all(sum(file.bytes for file in run) < 150 for run in runs)
    left = [file for file in files if file.bytes < 50 and file.path not in joined]
    assert len(left) <= 1


def test_files_of_other_partitions_are_never_joined() -> None:
    nothing = Listed("p=__HIVE_DEFAULT_PARTITION__/1", 1, 1, {"p": None})
    named = Listed("p=__HIVE_DEFAULT_PARTITION__/2", 1, 1, {"p": "__HIVE_DEFAULT_PARTITION__"})
    assert small_files([nothing, named, *files_of([1], "p=a/")], 100) == []


def test_small_files_become_one_of_each_partition_and_no_row_changes(table: Table) -> None:
    sink = table.sink(partition_by="place")
    sink.fence([Fence(LINE, 1)])
    for number in range(1, 5):
        sink.commit(sink.stage(group(number, number)))
    write(sink, rows(5, place="y"))
    before = sorted(map(repr, table.rows()))
    replaced = set(table.named()) - {path for path in table.named() if path.startswith("place=y")}
    done = sink.compact(LARGE)
    assert sorted(map(repr, table.rows())) == before
    (joined,) = table.entries()[-1]["add"]
    assert done == Compaction(4, 1, joined["bytes"])
    assert joined["rows"] == 4
    assert set(table.entries()[-1]["remove"]) == replaced
    assert sink.committed([LINE]) == [Committed(LINE, 1, 4)]
    assert replaced <= table.on_disk(), "a reader may have the list"
    assert sink.compact(LARGE) == Compaction(0, 0, 0)


def test_a_running_writer_goes_on_beside_it(table: Table) -> None:
    sink, other = table.sink(), table.sink()
    sink.fence([Fence(LINE, 1)])
    for txid in range(1, 4):
        sink.commit(sink.stage(group(txid, txid)))
        other.compact(LARGE)
    assert table.numbers() == [1, 2, 3]
    sink.compact(LARGE)
    sink.commit(sink.stage(group(4, 4)))
    assert table.numbers() == [1, 2, 3, 4]
    assert len(table.named()) == 2


def test_of_two_who_join_the_same_files_one_does(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = table.sink(), table.sink()
    for number in (1, 2):
        write(sink, rows(number))
    original = join

    def slow(root: Path, files: Any) -> Listed:
        made = original(root, files)
        monkeypatch.setattr(compactor_module, "join", original)
        assert other.compact(LARGE).files_replaced == 2
        return made

    monkeypatch.setattr(compactor_module, "join", slow)
    assert sink.compact(LARGE) == Compaction(0, 0, 0)
    assert table.numbers() == [1, 2]
    assert len(table.on_disk()) == 3


def test_who_always_loses_comes_later_and_leaves_no_file(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink()
    for number in (1, 2):
        write(sink, rows(number))
    before = table.on_disk()
    monkeypatch.setattr(ManifestLog, "_append", lambda log, state, change: False)
    with pytest.raises(SinkBusy):
        sink.compact(LARGE)
    assert table.on_disk() == before


def test_files_from_before_a_column_came_are_joined_among_themselves(table: Table) -> None:
    for number in (1, 2):
        write(table.sink(), rows(number))
    wider = table.sink(SCHEMA.append(pa.field("euros", pa.float64())), on_new_columns="add")
    turned = pa.schema([wider.schema.field(name) for name in ("euros", "place", "number")])
    write(wider, [{"number": 3, "place": "x", "euros": 1.0}])
    write(table.sink(turned), [{"number": 4, "place": "x", "euros": 1.0}])
    assert wider.compact(LARGE)[:2] == (4, 2)
    assert {row["number"]: row.get("euros") for row in table.rows()} == {
        1: None, 2: None, 3: 1.0, 4: 1.0,
    }  # fmt: skip


EVERY_TYPE = pa.schema(
    [
        ("number", pa.int64()),
        ("tiny", pa.int8()),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("text", pa.large_string()),
        ("few", pa.dictionary(pa.int32(), pa.string())),
        ("at", pa.timestamp("ns", tz="Europe/Berlin")),
        ("local", pa.timestamp("ms")),
        ("price", pa.decimal128(9, 2)),
        ("large_price", pa.decimal128(38, 18)),
        ("list", pa.list_(pa.string())),
        ("map", pa.map_(pa.string(), pa.decimal128(10, 2))),
        ("struct", pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.bool_())])),
    ]
)
SOMETHING: dict[str, Any] = {
    "number": 2**63 - 1,
    "tiny": -128,
    "double": 1.5,
    "float": math.nan,
    "text": "é\U0001f600" * 30,
    "few": "AA",
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "local": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - it has no zone
    "price": Decimal("-1234567.89"),
    "large_price": Decimal("12345678901234567890.123456789012345678"),
    "list": ["a", None],
    "map": [("k", Decimal("1.50")), ("n", None)],
    "struct": {"a": 7, "b": None},
}


def test_values_of_every_type_are_the_same_in_the_joined_file(table: Table) -> None:
    sink = table.sink(EVERY_TYPE)
    nothing = dict.fromkeys(EVERY_TYPE.names)
    for row in (SOMETHING, nothing, SOMETHING | {"number": 5}):
        write(sink, [row])
    before = table.rows()
    schemas = [pq.ParquetFile(table.path / path).schema_arrow for path in table.named()]
    assert sink.compact(LARGE)[:2] == (3, 1)
    assert repr(table.rows()) == repr(before)
    (path,) = table.named()
    opened = pq.ParquetFile(table.path / path)
    assert opened.schema_arrow.equals(schemas[0])
    assert opened.schema.column(0).physical_type == "INT64"
    told = statistics_of(opened.metadata, opened.schema_arrow)
    assert (told.minima["number"], told.maxima["number"]) == (5, 2**63 - 1)
    assert told.nulls["double"] == 1
    assert told.minima["double"] == 1.5
    assert "float" not in told.minima, "a NaN is above all, and no bound tells of it"


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: path.unlink(), "cannot be read: .*No such file"),
        (lambda path: path.write_bytes(b"PAR1"), "cannot be read: "),
        (lambda path: pq.write_table(pa.table({"number": [1, 2]}), path), "has 2 rows; .* says 1"),
    ],
    ids=["deleted", "damaged", "another"],
)
def test_a_file_that_is_not_as_the_log_says_is_named_and_stays_in_the_table(
    table: Table, harm: Any, reason: str
) -> None:
    sink = table.sink()
    for number in (1, 2):
        write(sink, rows(number))
    path, *_ = table.named()
    harm(table.path / path)
    before = table.on_disk(), table.versions()
    with pytest.raises(SinkFailed, match=f"{path}.* {reason}"):
        sink.compact(LARGE)
    assert (table.on_disk(), table.versions()) == before


# What is deleted, and when


def compact(table: Table, *, days: float, keep_days: float = 7) -> None:
    """Compact the table as if it were so many days later."""
    now = time.time() + days * DAY

    def clock() -> float:
        return now

    manifest = ManifestLog(table.path, clock=clock)
    Compactor(manifest, keep_days * DAY, clock).run(LARGE)


def test_replaced_files_are_deleted_when_no_reader_can_want_them(table: Table) -> None:
    sink = table.sink()
    for number in (1, 2):
        write(sink, rows(number))
    sink.compact(LARGE)
    compact(table, days=6)
    assert len(table.on_disk()) == 3
    compact(table, days=8)
    assert table.on_disk() == set(table.named())
    assert len(table.entries()[-1]["forget"]) == 2
    assert ManifestLog(table.path).newest().removed == {}
    assert table.numbers() == [1, 2]


def test_a_run_that_died_before_it_said_what_it_deleted_is_no_harm(table: Table) -> None:
    sink = table.sink()
    for number in (1, 2):
        write(sink, rows(number))
    sink.compact(LARGE)
    for path in table.on_disk() - set(table.named()):
        (table.path / path).unlink()
    compact(table, days=8)
    assert ManifestLog(table.path).newest().removed == {}


def test_orphans_are_removed_first_and_deleted_a_week_later(table: Table) -> None:
    sink = table.sink(partition_by="place")
    sink.fence([Fence(LINE, 1)])
    (orphan,) = sink.stage(group(1, 1)).parts
    sink.commit(sink.stage(group(1, 1)))
    compact(table, days=6)
    assert table.versions() == [0, 1, 2], "too young to be called an orphan"
    compact(table, days=8)
    assert table.entries()[-1]["remove"] == [orphan.path]
    assert orphan.path in table.on_disk()
    compact(table, days=14)
    assert orphan.path in table.on_disk()
    compact(table, days=16)
    assert table.on_disk() == set(table.named())
    assert table.numbers() == [1]
    compact(table, days=30)
    assert table.versions()[-1] == 4, "nothing is left to do"


@pytest.mark.parametrize("where", [Compactor._old_files, ManifestLog.change])
def test_a_file_that_is_committed_while_orphans_are_looked_for_is_none(
    table: Table, monkeypatch: pytest.MonkeyPatch, where: Any
) -> None:
    """Promise 3: whoever is first, nothing that an entry names is ever deleted."""
    sink = table.sink()
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 1))
    owner = Compactor if where is Compactor._old_files else ManifestLog

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, where.__name__, where)
        found = list(where(*arguments)) if owner is Compactor else None
        sink.commit(staged)
        return where(*arguments) if found is None else found

    monkeypatch.setattr(owner, where.__name__, slow)
    compact(table, days=100)
    compact(table, days=200)
    assert table.numbers() == [1]
    assert table.versions()[-1] == 2


def test_nothing_that_is_not_ours_is_touched(table: Table) -> None:
    sink = table.sink(partition_by="place")
    write(sink, rows(1))
    name = "part-00001-0a1b2c3d-0000-4000-8000-000000000000"
    others = [
        table.path / f"{name}-c000.snappy.parquet",  # Spark's
        table.path / "place=x" / "notes.txt",
        table.path / "place=x" / f"{name}.snappy.parquet.tmp",
        table.path / "inner" / f"{name}.snappy.parquet",  # another table, perhaps
        table.path / "place=y" / "deep" / f"{name}.snappy.parquet",
        table.path / "place=z" / f"{name}.snappy.parquet",
    ]
    (table.path / "place=z" / "_headrace").mkdir(parents=True)
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))
    (table.path / "place=link").symlink_to(table.path / "inner")
    for days in (10, 20, 30):
        compact(table, days=days)
    assert all(path.exists() for path in others)


def test_an_open_sink_deletes_after_its_own_time(table: Table) -> None:
    sink: ManifestSink[Any] = table.sink(keep_seconds=0)
    for number in (1, 2):
        write(sink, rows(number))
    sink.compact(LARGE)
    assert table.on_disk() == set(table.named())
    assert table.numbers() == [1, 2]
