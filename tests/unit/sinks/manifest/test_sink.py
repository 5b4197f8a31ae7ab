"""Manifest tables: what a folder must be, what becomes of columns, files and commits."""

import errno
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks import ManifestSink
from sinks.files import data_file
from sinks.manifest.log import ManifestLog
from sinks.manifest.reading import manifest_files
from sinks.storage import Storage
from tests.worlds.manifest_table import LINE, OTHER, SCHEMA, Table, group, rows, write
from topology.compaction import Compactable
from topology.errors import InvalidSchema, RowsRejected, SinkBusy, SinkFailed, SinkFenced
from topology.sink import Batch, SinkContext
from topology.transactional import Committed, Fence


def test_it_needs_no_spark_and_can_be_compacted() -> None:
    sink = ManifestSink("orders", schema=SCHEMA)
    assert (sink.needs_spark, sink.needs_jars) == (False, ())
    assert sink.kinds == {"transactional", "opaque"}
    assert isinstance(sink, Compactable)
    assert sink.path is None


def test_nothing_is_in_the_folder_until_there_is_something_to_write(table: Table) -> None:
    sink = table.sink()
    assert sink.path == str(table.path)
    assert list(table.path.iterdir()) == []
    assert sink.data_files() == []
    assert sink.committed([LINE]) == [Committed(LINE, 0, 0)]
    assert sink.compact(1000) == (0, 0, 0)
    sink.fence([Fence(LINE, 1)])
    assert table.versions() == [0, 1]
    assert table.rows() == []


def test_the_files_of_one_version_are_told_as_absolute_paths(table: Table) -> None:
    sink = table.sink(partition_by=["place"])
    write(sink, rows(1) + rows(2, place="y"))
    sink.fence([Fence(LINE, 1)])
    sink.stage(group(1, 3))
    files = manifest_files(table.path)
    assert files == sink.data_files() == manifest_files(f"file://{table.path}")
    assert [str(Path(file).relative_to(table.path)).split("/")[0] for file in files] == [
        "place=x",
        "place=y",
    ]
    assert len(table.on_disk()) == 3
    assert sorted(n for f in files for n in pq.ParquetFile(f).read()["number"].to_pylist()) == [
        1,
        2,
    ]


def test_other_places_have_no_files_to_tell(tmp_path: Path) -> None:
    for place in (str(tmp_path), tmp_path / "nothing", "s3://bucket/table"):
        with pytest.raises(SinkFailed, match="is no table of a ManifestSink"):
            manifest_files(place)


def test_the_log_says_who_wrote_which_offsets(table: Table) -> None:
    sink = table.sink()
    sink.fence([Fence(LINE, 3)])
    sink.commit(sink.stage(group(1, 10, 11, epoch=3)))
    _, fence, commit = table.entries()
    assert fence["lines"]["pipeline/sink/orders[0]"]["epoch"] == 3
    assert commit["made_by"] == "pipeline/sink"
    assert commit["lines"] == {
        "pipeline/sink/orders[0]": {
            "epoch": 3, "txid": 1, "first": 1, "end": 2, "digest": "0" * 32,
        }
    }  # fmt: skip
    (file,) = commit["add"]
    assert (file["rows"], file["bytes"]) == (2, (table.path / file["path"]).stat().st_size)
    sink.fence([Fence(LINE, 4)])
    raised = table.entries()[-1]["lines"]["pipeline/sink/orders[0]"]
    assert raised == commit["lines"]["pipeline/sink/orders[0]"] | {"epoch": 4}


def test_two_pipelines_may_write_one_table(table: Table) -> None:
    """Promise 9: an epoch of one pipeline does not fence the other."""
    one, other = table.sink(), table.sink(pipeline="other")
    one.fence([Fence(LINE, 5)])
    other.fence([Fence(LINE, 1)])
    one.commit(one.stage(group(1, 1, epoch=5)))
    other.commit(other.stage(group(1, 2)))
    assert table.numbers() == [1, 2]
    assert one.committed([LINE]) == [Committed(LINE, 5, 1)]
    assert other.committed([LINE]) == [Committed(LINE, 1, 1)]


def test_without_a_fence_there_is_no_table_to_stage_in(table: Table) -> None:
    with pytest.raises(SinkFailed, match="takes no group before a fence"):
        table.sink().stage(group(1, 1))


def test_who_is_not_open_says_so() -> None:
    sink = ManifestSink("orders", schema=SCHEMA)
    for call in (
        lambda: write(sink, rows(1)),
        lambda: sink.fence([Fence(LINE, 1)]),
        lambda: sink.committed([LINE]),
        lambda: sink.compact(1),
        sink.data_files,
    ):
        with pytest.raises(SinkFailed, match="'orders' is not open"):
            call()


# What a folder must be


@pytest.mark.parametrize("warehouse", ["s3://bucket/warehouse", "hdfs://host/warehouse"])
def test_a_place_that_is_not_local_is_refused_and_told_what_is_allowed(warehouse: str) -> None:
    context = SinkContext("pipeline", "sink", {}, Storage(warehouse), None)
    sink = ManifestSink("orders", schema=SCHEMA)
    with pytest.raises(SinkFailed, match=r"not on a local file system.*allowed there is DeltaSink"):
        sink.open(context)


def test_a_table_of_another_kind_is_refused(table: Table) -> None:
    (table.path / "_delta_log").mkdir(parents=True)
    with pytest.raises(SinkFailed, match="is a Delta table; use DeltaSink"):
        table.sink()
    (table.path / "_delta_log").rmdir()
    (table.path / "metadata").mkdir()
    table.sink()
    (table.path / "metadata" / "v1.metadata.json").touch()
    with pytest.raises(SinkFailed, match="is an Iceberg table; use IcebergSink"):
        table.sink()


def test_a_plain_folder_of_parquet_is_refused(table: Table) -> None:
    (table.path / "place=x").mkdir(parents=True)
    pq.write_table(pa.table({"number": [1]}), table.path / "place=x" / "some.parquet")
    with pytest.raises(SinkFailed, match=r"place=x/some\.parquet, which no manifest names"):
        table.sink()


def test_what_was_staged_and_never_committed_does_not_make_it_a_plain_folder(table: Table) -> None:
    sink = table.sink()
    sink.fence([Fence(LINE, 1)])
    sink.stage(group(1, 1))
    sink.close()
    again = table.sink()
    again.commit(again.stage(group(1, 1)))
    assert table.numbers() == [1]


def test_a_place_that_cannot_be_written_or_linked_is_refused(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(source))

    with monkeypatch.context() as patched:
        patched.setattr("sinks.manifest.place.os.link", refuse)
        with pytest.raises(SinkFailed, match="can be written, and has hard links, is needed"):
            table.sink()
    assert list(table.path.iterdir()) == []
    table.path.rmdir()
    table.path.write_text("in the way")
    with pytest.raises(SinkFailed, match=r"'orders' in warehouse .*: .*exists.*is needed"):
        table.sink()


def test_a_table_that_is_removed_meanwhile_ends_the_sink(table: Table) -> None:
    sink = table.sink()
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 1))
    table.log.rename(table.warehouse / "gone")
    with pytest.raises(SinkFailed, match="no log any more"):
        sink.commit(staged)
    ManifestLog(table.path).create((), ())
    for call in (
        lambda: sink.commit(staged),
        lambda: sink.fence([Fence(LINE, 2)]),
        lambda: write(sink, rows(1)),
    ):
        with pytest.raises(SinkFailed, match="was removed while rows were written"):
            call()


# Columns


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"table": "../orders"}, r"'\.\.'"),
        ({"partition_by": ["nothing"]}, "allowed are some of the columns number, place"),
        ({"partition_by": ["place", "place"]}, "each once"),
        ({"partition_by": ["place", "number"]}, "a column that is no partition is needed"),
        ({"on_new_columns": "drop"}, "allowed are 'reject' and 'add'"),
        ({"keep_seconds": -1}, "keep_seconds is -1"),
        ({"schema": pa.schema([("u", pa.uint64())])}, "column 'u': found uint64"),
        (
            {"schema": pa.schema([("n", pa.int8()), ("b", pa.binary())]), "partition_by": "b"},
            "column 'b' is binary, whose values are no partitions",
        ),
    ],
)
def test_what_can_never_be_written_is_refused_when_it_is_built(
    options: dict[str, Any], reason: str
) -> None:
    options = {"table": "orders", "schema": SCHEMA} | options
    with pytest.raises(InvalidSchema, match=reason):
        ManifestSink(options.pop("table"), **options)


WIDER = SCHEMA.append(pa.field("euros", pa.float64()))


def test_a_new_column_is_refused_when_it_is_opened(table: Table) -> None:
    write(table.sink(), rows(1))
    with pytest.raises(SinkFailed, match=r"'orders' at .*: column 'euros' is not in the table"):
        table.sink(WIDER)


def test_a_new_column_is_added_with_the_first_rows_that_may_have_it(table: Table) -> None:
    narrow = table.sink(pipeline="narrow")
    write(narrow, rows(1))
    sink = table.sink(WIDER, on_new_columns="add")
    sink.fence([Fence(LINE, 1)])
    with pytest.raises(RowsRejected):
        write(sink, [{"number": "one"}])
    assert not any("columns" in entry for entry in table.entries()[1:])
    staged = sink.stage(group(1, 2))
    sink.commit(staged)
    sink.commit(staged)
    assert table.entries()[-1]["columns"] == [
        {"name": "number", "type": "bigint"},
        {"name": "place", "type": "string"},
        {"name": "euros", "type": "double"},
    ]
    write(narrow, rows(3))  # it goes on without
    write(table.sink(WIDER), [{"number": 4, "place": "x", "euros": 1.5}])
    assert sum("columns" in entry for entry in table.entries()[1:]) == 1
    assert {row["number"]: row.get("euros") for row in table.rows()} == {
        1: None, 2: None, 3: None, 4: 1.5,
    }  # fmt: skip


def test_a_column_that_somebody_adds_meanwhile_with_another_type_ends_the_sink(
    table: Table,
) -> None:
    write(table.sink(), rows(1))
    slow = table.sink(WIDER, on_new_columns="add")
    quick = table.sink(SCHEMA.append(pa.field("euros", pa.string())), on_new_columns="add")
    write(quick, [{"number": 2, "place": "x", "euros": "3,50"}])
    with pytest.raises(SinkFailed, match="column 'euros': found double; allowed is string"):
        write(slow, [{"number": 3, "place": "x", "euros": 3.5}])
    assert table.numbers() == [1, 2]


def test_types_and_partitions_never_change(table: Table) -> None:
    write(table.sink(partition_by="place"), rows(1))
    other = pa.schema({"number": pa.string(), "place": pa.string()})
    with pytest.raises(SinkFailed, match="column 'number': found string; allowed is bigint"):
        table.sink(other, on_new_columns="add")
    with pytest.raises(SinkFailed, match=r"partition_by is \['number'\]; .* partitioned by place"):
        table.sink(partition_by="number")
    with pytest.raises(SinkFailed, match="a column that is no partition is needed"):
        table.sink(pa.schema({"place": pa.string()}))
    write(table.sink(), rows(2, place="y"))  # the table's own partitions
    assert {row["number"]: row["place"] for row in table.rows()} == {1: "x", 2: "y"}
    write(table.sink(pa.schema({"number": pa.int64()})), [{"number": 3}])
    assert {row["number"]: row["place"] for row in table.rows()}[3] is None


def test_another_type_of_arrow_that_files_hold_the_same_is_no_other_type(table: Table) -> None:
    write(table.sink(), rows(1))
    same = {"number": pa.int64(), "place": pa.dictionary(pa.int32(), pa.large_string())}
    write(table.sink(pa.schema(same)), rows(2))
    assert table.numbers() == [1, 2]


class Visit(TypedDict):
    number: int
    text: str | None
    day: date | None
    at: datetime | None
    price: Decimal | None


hostile = st.text(max_size=20) | st.sampled_from(
    ["..", "../..", "a/b", "a=b", "%2F", "\0", "_headrace", "é" * 200, ".", "*", "__HIVE", "\\"]
)


@settings(max_examples=25)
@given(texts=st.lists(hostile, min_size=1, max_size=5))
def test_no_value_of_a_partition_leads_out_of_the_table_or_into_its_log(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    table = Table(tmp_path_factory.mktemp("warehouse"))
    sink = table.sink(partition_by=["place"])
    write(sink, [{"number": number, "place": text} for number, text in enumerate(texts)])
    assert [path.name for path in table.warehouse.iterdir()] == ["orders"]
    assert all(path.suffix == ".json" for path in table.log.iterdir())
    read = {row["number"]: row["place"] for row in table.rows()}
    assert read == {number: text or None for number, text in enumerate(texts)}
    assert sorted(manifest_files(table.path)) == sorted(
        str(table.path / path) for path in table.on_disk()
    )
    sink.close()


def test_partitions_of_every_type_come_back(table: Table) -> None:
    sink: ManifestSink[Visit] = ManifestSink(
        "orders", schema=Visit, partition_by=["text", "day", "at", "price"]
    )
    table.sinks.append(sink)
    sink.open(table.context())
    nothing: dict[str, Any] = dict.fromkeys(Visit.__annotations__)
    some = {
        "text": "a b",
        "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        "price": Decimal("1.50"),
    }
    write(sink, [nothing | {"number": 1}, nothing | {"number": 2} | some])
    assert sorted(table.rows(), key=lambda row: row["number"]) == [
        nothing | {"number": 1},
        {
            "number": 2,
            "text": "a b",
            "day": "2026-01-02",
            "at": "2026-01-02T03:04:00.000000Z",
            "price": "1.500000000000000000",
        },
    ]


# Files and commits


def test_files_are_on_the_disk_before_an_entry_names_them(
    table: Table, monkeypatch: pytest.MonkeyPatch, synced: list[Path]
) -> None:
    """Promise 3: a machine that stops loses no row of an entry that it kept."""
    sink = table.sink(partition_by="place")
    sink.fence([Fence(LINE, 1)])
    synced.clear()
    staged = sink.stage(group(1, 1))
    (file,) = staged.parts
    path = table.path / file.path
    assert synced[0] == path
    assert set(synced[1:]) == {path.parent, table.path}
    synced.clear()
    write(sink, rows(2))
    assert synced[0].suffix == ".parquet"
    assert synced[-1] == table.log


def test_a_disk_that_is_full_while_staging_leaves_no_file(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink()
    sink.fence([Fence(LINE, 1)])

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("sinks.manifest.durable.sync_file", full)
        for call in (lambda: sink.stage(group(1, 1)), lambda: write(sink, rows(1))):
            with pytest.raises(OSError, match="No space left"):
                call()
    assert table.on_disk() == set()


def test_what_is_discarded_is_gone_unless_an_entry_may_name_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink()
    sink.fence([Fence(LINE, 1)])
    sink.discard(sink.stage(group(1, 1)))
    assert table.on_disk() == set()
    staged = sink.stage(group(1, 1))

    def broken(log: ManifestLog) -> None:
        raise OSError(errno.EIO, "the disk is away")

    with monkeypatch.context() as patched:
        patched.setattr(ManifestLog, "sync", broken)
        with pytest.raises(OSError, match="the disk is away"):
            sink.commit(staged)
    sink.discard(staged)
    assert table.numbers() == [1]
    sink.commit(staged)
    assert table.numbers() == [1]


def test_a_fenced_commit_leaves_its_files_to_be_discarded(table: Table) -> None:
    """Promise 9."""
    zombie, successor = table.sink(), table.sink()
    zombie.fence([Fence(LINE, 1), Fence(OTHER, 1)])
    staged = zombie.stage(group(1, 1))
    successor.fence([Fence(LINE, 2)])
    with pytest.raises(SinkFenced):
        zombie.commit(staged)
    zombie.discard(staged)
    assert table.on_disk() == set()
    zombie.commit(zombie.stage(group(1, 2, line=OTHER)))
    assert table.numbers() == [2]


def test_a_commit_that_landed_unheard_keeps_its_files_when_a_later_owner_fences_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 9, and 14: what is refused now had landed with an earlier try."""
    zombie, successor = table.sink(), table.sink()
    zombie.fence([Fence(LINE, 1)])
    staged = zombie.stage(group(1, 1))

    def broken(log: ManifestLog) -> None:
        raise OSError(errno.EIO, "the disk is away")

    with monkeypatch.context() as patched:
        patched.setattr(ManifestLog, "sync", broken)
        with pytest.raises(OSError, match="the disk is away"):
            zombie.commit(staged)
    successor.fence([Fence(LINE, 2)])
    with pytest.raises(SinkFenced):
        zombie.commit(staged)
    zombie.discard(staged)
    assert table.numbers() == [1]


def test_at_least_once_a_batch_that_others_kept_out_is_written_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink()
    write(sink, rows(1))
    with monkeypatch.context() as patched:
        patched.setattr(ManifestLog, "_append", lambda log, state, change: False)
        with pytest.raises(SinkBusy, match="others keep changing"):
            write(sink, rows(2))
    assert len(table.on_disk()) == 1
    write(sink, rows(2))
    assert table.numbers() == [1, 2]


def test_a_reply_that_was_lost_within_one_write_is_noticed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink()
    original = ManifestLog._append
    told = iter([False, True])

    def forgetful(log: ManifestLog, state: Any, change: Any) -> bool:
        original(log, state, change)
        return next(told)

    monkeypatch.setattr(ManifestLog, "_append", forgetful)
    write(sink, rows(1))
    assert table.numbers() == [1]


@pytest.mark.parametrize("how", ["deleted", "removed"])
def test_files_that_were_cleaned_away_before_their_commit_are_never_named(
    table: Table, how: str
) -> None:
    """It stood still for so long that its staged files were taken for nobody's."""
    sink = table.sink()
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 1))
    (file,) = staged.parts
    if how == "deleted":
        (table.path / file.path).unlink()
    else:
        table.sink(keep_seconds=0).compact(1000)
        assert table.entries()[-1]["remove"] == [file.path]
    with pytest.raises(SinkFailed, match="was cleaned away before an entry could name it"):
        sink.commit(staged)
    again = table.sink()
    again.commit(again.stage(group(1, 1)))
    assert table.numbers() == [1]


def test_a_log_that_is_damaged_ends_the_sink_and_names_the_entry(table: Table) -> None:
    sink = table.sink()
    write(sink, rows(1))
    damaged = table.log / f"{1:020d}.json"
    damaged.write_text(json.dumps({"format": 1}))
    with pytest.raises(SinkFailed, match=f"manifest {damaged}: "):
        table.sink()
    with pytest.raises(SinkFailed, match=f"manifest {damaged}: "):
        manifest_files(table.path)


def test_columns_and_rows_of_one_batch_are_in_one_entry(table: Table) -> None:
    sink = table.sink(partition_by="place")
    columns = pa.RecordBatch.from_pylist(rows(2) + rows(3, place="y"), schema=SCHEMA)
    with pytest.raises(RowsRejected) as caught:
        sink.write(Batch(1, [rows(1), columns, [{"number": "four"}]], 4))
    assert set(caught.value.reasons) == {3}
    assert table.versions() == [0, 1]
    assert table.numbers() == [1, 2, 3]


def test_the_table_is_below_the_warehouse_or_where_its_path_says(tmp_path: Path) -> None:
    for name, place in {"a/b": "warehouse/a/b", f"{tmp_path}/c": "c"}.items():
        sink: ManifestSink[Any] = ManifestSink(name, schema=SCHEMA)
        sink.open(SinkContext("p", "s", {}, Storage(str(tmp_path / "warehouse")), None))
        write(sink, rows(1))
        assert manifest_files(tmp_path / place) == sink.data_files()
        assert len(sink.data_files()) == 1
        sink.close()
        sink.close()


def test_a_row_that_no_file_can_hold_is_rejected_and_the_others_are_one_entry(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 13."""

    def refuse(found: pa.Table, path: Path, **options: Any) -> None:
        if 3 in found["number"].to_pylist():
            raise pa.ArrowInvalid("3 cannot be written")
        original(found, path, **options)

    original = pq.write_table
    monkeypatch.setattr(data_file.pq, "write_table", refuse)
    sink = table.sink()
    with pytest.raises(RowsRejected) as caught:
        write(sink, rows(*range(6)))
    assert set(caught.value.reasons) == {3}
    assert [row["number"] for row in table.rows()] == [0, 1, 2, 4, 5]
    assert table.versions() == [0, 1]
    assert len(table.on_disk()) == 1
