import itertools
import json
import math
import pickle
import subprocess
import sys
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from ssl import SSLCertVerificationError
from tempfile import TemporaryDirectory
from unittest.mock import Mock, patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from sinks import DeltaSink
from sinks.columns import fit
from sinks.storage import Storage
from sinks.tables import files
from sinks.tables.files import FileStager, write_good_rows
from sinks.tables.partitioning import Layout
from tests.support.batches import group_of, share
from tests.support.patience import seconds
from topology.errors import SinkFailed

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("c", pa.string())])


def table(rows=10):
    return pa.table({"n": range(rows), "c": [f"c{number % 2}" for number in range(rows)]})


def stager(root, *partition_by):
    return FileStager(Storage("/"), str(root), Layout(partition_by), SCHEMA)


def group(*rows):
    return group_of(7, [*rows])


def row(number, place="here"):
    return {"n": number, "c": place}


def read(root, file):
    return pq.ParquetFile(root / file.path).read().to_pylist()


def on_disk(root):
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_all_rows_are_in_the_files_that_are_told(tmp_path, monkeypatch):
    written = stager(tmp_path, "c").write(table(), 7)
    assert {file.path for file in written} == on_disk(tmp_path)
    for file in written:
        rows = read(tmp_path, file)
        assert [f"c{row['n'] % 2}" for row in rows] == [file.partition["c"]] * 5
        assert (file.num_rows, file.statistics.num_rows) == (5, 5)
        assert file.num_bytes == (tmp_path / file.path).stat().st_size
        assert Path(file.path).name.startswith("part-00007-")
        assert file.path.endswith(".snappy.parquet")
    monkeypatch.setattr(files, "_TARGET_BYTES", table().nbytes // 3)
    several = stager(tmp_path).write(table(), 1)
    assert len(several) == 4
    assert [row["n"] for file in several for row in read(tmp_path, file)] == list(range(10))


@pytest.mark.parametrize("folders", [["c"], ["c", "d"]])
def test_no_row_is_written_where_a_link_leads_out_of_the_table(folders, tmp_path):
    root, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    for folder in (root, elsewhere):
        folder.mkdir()
    (root / "c=c1").symlink_to(elsewhere)
    rows = table().append_column("d", pa.array(["x"] * 10))
    with pytest.raises(SinkFailed, match=f"{root}/c=c1.* leads to {elsewhere}.*not below {root}"):
        stager(root, *folders).write(rows, 1)
    assert not on_disk(root)
    assert not list(elsewhere.iterdir())
    (root / "c=c1").unlink()
    (root / "inner").mkdir()
    (root / "c=c1").symlink_to("inner")
    (tmp_path / "link").symlink_to("table")
    assert sum(file.num_rows for file in stager(tmp_path / "link", *folders).write(rows, 1)) == 10


@pytest.mark.parametrize("is_local", [True, False])
def test_error_leaves_no_file_of_those_written_beside_it(tmp_path, monkeypatch, is_local):
    for folder in ("c=c0", "c=c1"):
        (tmp_path / folder).mkdir()
    has_failed = threading.Event()

    def write(rows, file, **options):
        if rows["n"][0].as_py() == 1:
            file.write(b"half")
            has_failed.set()
            raise OSError(28, "No space left on device")
        assert is_local or has_failed.wait(seconds(20))
        original(rows, file, **options)

    original = pq.write_table
    monkeypatch.setattr(files.pq, "write_table", write)
    monkeypatch.setattr(files, "is_local", lambda _: is_local)
    with pytest.raises(OSError, match="No space left"):
        stager(tmp_path, "c").write(table(), 1)
    assert on_disk(tmp_path) == set()


def test_times_are_cut_to_microseconds_and_short_decimals_are_integers(tmp_path):
    at = pa.array([1_001], pa.timestamp("ns"))
    price = pa.array([Decimal("1.50")], pa.decimal128(9, 2))
    (file,) = stager(tmp_path).write(pa.table({"at": at, "price": price}), 1)
    schema = pq.ParquetFile(tmp_path / file.path).schema
    assert "microseconds" in str(schema.column(0).logical_type)
    assert schema.column(1).physical_type == "INT32"


def test_a_value_that_cannot_be_written_is_told_as_what_it_is(tmp_path):
    """Closing the file raises something else, which says nothing of values."""
    times = pa.array([1_767_322_800_000_000_000], pa.timestamp("ms"))
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        stager(tmp_path).write(pa.table({"t": times, "n": [1]}), 1)
    assert on_disk(tmp_path) == set()


def test_files_and_their_folders_are_on_the_disk_when_they_are_told(tmp_path, monkeypatch):
    """Promise 3: a power cut after the answer takes no row."""
    synced = []
    monkeypatch.setattr(files, "sync", synced.append)
    written = stager(tmp_path, "c").write(table(), 1)
    wanted = {f"/{file.path}" for file in written} | {"", "/c=c0", "/c=c1"}
    assert set(synced) == {f"{tmp_path}{each}" for each in wanted}
    monkeypatch.setattr(files, "sync", Mock(side_effect=OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        stager(tmp_path).stage(group(row(1)))
    assert on_disk(tmp_path) == {file.path for file in written}


PROGRAM = """
import pickle, sys
stager, group = pickle.load(sys.stdin.buffer)
staged = stager.stage(group)
assert not {"pyspark", "deltalake"} & set(sys.modules), "an executor's process needs neither"
pickle.dump(staged, sys.stdout.buffer)
"""


def test_a_stager_works_in_another_process_and_here_its_files_are_known(tmp_path):
    ours = stager(tmp_path, "c")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=pickle.dumps((ours, group(row(1), {}, row(2), row(3, "there")))),
        capture_output=True,
        check=True,
        timeout=seconds(60),
    )
    staged = pickle.loads(done.stdout)  # noqa: S301 - our own
    assert staged.shares == (share(7, num_rows=4),)
    assert (staged.num_rows, set(staged.rejected)) == (3, {1})
    assert [file.partition for file in staged.parts] == [{"c": "here"}, {"c": "there"}]
    assert [file.path.split("/")[0] for file in staged.parts] == ["c=here", "c=there"]
    found = [[row["n"] for row in read(tmp_path, file)] for file in staged.parts]
    assert found == [[1, 2], [3]]
    ours.discard(staged)
    assert on_disk(tmp_path) == set()


def test_a_file_of_another_process_that_is_another_here_is_named(tmp_path):
    """Promise 14: a log that named it would lack its rows."""
    writer = stager(tmp_path, "c")
    parts = writer.stage(group(row(1), row(2, "there"))).parts
    writer.check(parts)
    path = tmp_path / parts[1].path
    path.write_bytes(b"short")
    with pytest.raises(SinkFailed, match="must share the folder of the table") as raised:
        writer.check(parts)
    assert f"file {path}, which an executor wrote, has 5 bytes here, not " in str(raised.value)


def test_few_parts_for_a_store_are_in_memory_at_once(tmp_path, monkeypatch):
    """Promise 10: a part is a copy of its rows."""
    unwritten = []
    made, written = itertools.count(1), itertools.count(1)
    last = 0
    all_made = threading.Event()

    class Counted(Layout):
        def parts(self, table):
            for part in super().parts(table):
                (tmp_path / part.folder).mkdir()
                unwritten.append(next(made) - last)
                yield part
            all_made.set()

    def write(*positional, **options):
        nonlocal last
        all_made.wait(0.2)  # the first ones do so in vain
        all_made.set()
        original(*positional, **options)
        last = next(written)

    original = pq.write_table
    monkeypatch.setattr(files.pq, "write_table", write)
    store = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    storage = Mock(filesystem=lambda _uri: (store, ""))
    remote = FileStager(storage, str(tmp_path), Counted(["c"]), SCHEMA)
    staged = remote.stage(group(*(row(number, f"place-{number}") for number in range(100))))
    assert len(staged.parts) == 100
    assert max(unwritten) <= files._AT_ONCE


def test_a_table_has_a_stager_once_it_was_fenced_and_with_a_key_none():
    """Of a key's rows the last one counts, and no process knows the others' rows."""
    with pytest.raises(SinkFailed, match="'orders' takes no batch before a fence"):
        DeltaSink("orders", schema=SCHEMA).stager()
    assert DeltaSink("orders", schema=SCHEMA, key=["n"]).stager() is None


def told(column, row_group_rows=1000):
    with TemporaryDirectory() as folder, patch.object(files, "_ROW_GROUP_ROWS", row_group_rows):
        writer = FileStager(Storage("/"), folder)
        (file,) = writer.write(pa.table({"c": column}), 1)
        return json.loads(file.statistics.as_delta_json(), parse_float=Decimal)


PRICE, LONG = Decimal("1.10"), Decimal("12345678901234567890.000000001")
MOMENT, MOMENT_TEXT = datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC), "2026-01-02T03:04:05.006Z"


@pytest.mark.parametrize(
    ("values", "kind", "low", "high"),
    [
        ([3, None, -1], pa.int32(), -1, 3),
        (["b", "a"], pa.string(), "a", "b"),
        (["b", "a"], pa.dictionary(pa.int8(), pa.string()), "a", "b"),
        ([2.5, None], pa.float64(), Decimal("2.5"), Decimal("2.5")),
        ([PRICE, -PRICE], pa.decimal128(9, 2), -PRICE, PRICE),
        ([LONG], pa.decimal128(38, 18), LONG, LONG),
        ([date(1500, 1, 2)], pa.date32(), "1500-01-02", "1500-01-02"),
        ([-1], pa.timestamp("us"), "1969-12-31T23:59:59.999", "1970-01-01T00:00:00.000"),
        ([MOMENT], pa.timestamp("us", tz="Europe/Berlin"), MOMENT_TEXT, MOMENT_TEXT),
    ],
)
def test_bounds_are_spelled_as_deltas_protocol_says(values, kind, low, high):
    assert told(pa.array(values, kind)) == {
        "numRecords": len(values),
        "minValues": {"c": low},
        "maxValues": {"c": high},
        "nullCount": {"c": values.count(None)},
    }


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, math.nan]),
        pa.array([1.0, math.inf]),
        pa.array([None, None], pa.int64()),
        pa.array([True, False]),
        pa.array([b"a", b"b"]),
        pa.array([2**62, 1], pa.timestamp("us")),  # beyond the year 9999
    ],
    ids=["nan", "infinity", "nulls", "booleans", "bytes", "far future"],
)
def test_what_has_no_bounds_is_given_none(column):
    found = told(column)
    assert (found["minValues"], found["maxValues"]) == ({}, {})
    assert found["nullCount"].get("c", 0) == column.null_count


def test_columns_within_columns_are_passed_over_and_those_behind_them_are_right():
    table = pa.table(
        {
            "s": [{"a": 1, "b": [{"c": 2, "d": "x"}]}],
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "l": [[1, 2, 3]],
            "last.one": [7],
        }
    )
    with TemporaryDirectory() as folder:
        (file,) = FileStager(Storage("/"), folder).write(table, 1)
    assert file.statistics.minima == file.statistics.maxima == {"last.one": 7}
    assert file.statistics.nulls == {"last.one": 0}


texts = st.text(st.sampled_from("aé\U0010fffe\U0010ffff"), max_size=40)


@given(st.lists(st.none() | texts, min_size=1), st.integers(1, 3))
def test_texts_lie_between_their_bounds_however_they_are_cut(values, group):
    found = told(pa.array(values, pa.string()), row_group_rows=group)
    there = [value for value in values if value is not None]
    assert found["nullCount"]["c"] == values.count(None)
    assert all(found["minValues"]["c"] <= value for value in there)
    if "c" in found["maxValues"]:
        assert all(value <= found["maxValues"]["c"] for value in there)
        assert len(found["maxValues"]["c"]) <= 33


NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


class Files:
    """Writes lists, but none with a bad number; knows which of them are there."""

    def __init__(self, bad, error=pa.ArrowInvalid, fails=lambda _count, _calls: None):
        self.bad, self.error, self.fails = bad, error, fails
        self.calls = 0
        self.there = []

    def write(self, rows):
        self.calls += 1
        numbers = rows["n"].to_pylist()
        if (error := self.fails(len(numbers), self.calls)) is not None:
            raise error
        if not set(self.bad).isdisjoint(numbers):
            raise self.error("overflow\nof something")
        self.there.append(numbers)
        return numbers

    def discard(self, numbers):
        self.there.remove(numbers)


def put(files, *rows):
    given = fit([[{"n": row} for row in rows]], NUMBERS)
    written, fitted = write_good_rows(given, files.write, files.discard)
    assert files.there == [written] == [fitted.table["n"].to_pylist()]
    return fitted.rejected


@pytest.mark.parametrize("error", [pa.ArrowInvalid, ValueError, OverflowError])
def test_bad_rows_are_rejected_alone_and_all_others_written_as_one(error):
    """Promise 13. Rows that do not fit have their places too."""
    files = Files({3, 6}, error)
    rejected = put(files, 0, "x", 1, 3, 2, None, 6, 7)
    assert set(rejected) == {1, 3, 5, 6}
    assert rejected[3] == rejected[6] == f"no file can hold it: {error.__name__}: overflow"
    assert files.there == [[0, 1, 2, 7]]


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_whichever_rows_are_bad_only_they_are_rejected(is_bad):
    bad = {number for number, bad in enumerate(is_bad) if bad}
    files = Files(bad)
    assert set(put(files, *range(len(is_bad)))) == bad
    steps = math.ceil(math.log2(len(is_bad))) + 1
    assert files.calls <= 2 + min(2 * steps * len(bad), 2 * len(is_bad))


@pytest.mark.parametrize("error", [OSError, SSLCertVerificationError, RuntimeError, MemoryError])
def test_an_outage_is_told_at_once_and_no_rows_are_divided(error):
    files = Files({1}, error)
    with pytest.raises(error):
        put(files, 0, 1, 2)
    assert files.calls == 1


@pytest.mark.parametrize(
    ("count", "error", "is_raised"),
    [
        (1, ValueError("shut"), lambda _count, _calls: True),
        (5, ValueError("shut"), lambda _count, _calls: True),
        (3, ValueError("too many"), lambda count, _calls: count > 2),
        (10, SSLCertVerificationError("expired"), lambda _count, calls: calls == 6),
    ],
)
def test_error_that_no_row_causes_is_raised_and_leaves_nothing(count, error, is_raised):
    files = Files({9}, fails=lambda *now: error if is_raised(*now) else None)
    with pytest.raises(type(error), match=str(error)):
        put(files, *range(count))
    assert not files.there
