"""Which files are joined, and that no row is lost by it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.files.data_file import DataFileWriter
from sinks.files.layout import Layout
from sinks.spark.delta.actions import ActiveFile, active_of_file
from sinks.spark.delta.compaction import files_of, join, to_join
from sinks.spark.delta.reading import FileReader
from tests.worlds.delta_facts import facts_of
from topology.errors import SinkFailed

SCHEMA = pa.schema([("id", pa.int64()), ("place", pa.string()), ("x", pa.float64())])


def active(*sizes: int, folder: str = "", place: str | None = None) -> list[ActiveFile]:
    start = f"{folder}/" if folder else ""
    return [ActiveFile(f"{start}{n}", size, {"place": place}) for n, size in enumerate(sizes)]


def sizes(lists: list[list[ActiveFile]]) -> list[list[int]]:
    return [[file.num_bytes for file in files] for files in lists]


def test_small_files_are_joined_up_to_the_target() -> None:
    assert sizes(to_join(active(50, 30, 30, 60, 10), 100)) == [[50, 30], [30, 60, 10]]


def test_large_files_and_a_file_alone_are_left() -> None:
    assert to_join(active(80, 200, 74), 100) == []
    assert to_join([], 100) == []


def test_files_of_other_partitions_or_with_deletions_are_not_joined() -> None:
    files = active(1, 1, folder="place=a", place="a") + active(1, folder="place=b", place="b")
    deleted = ActiveFile("place=b/d", 1, {"place": "b"}, has_deletions=True)
    lists = to_join([*files, deleted], 100)
    assert [[file.path for file in each] for each in lists] == [["place=a/0", "place=a/1"]]


@given(st.lists(st.integers(0, 120)), st.integers(1, 100))
def test_joining_comes_to_an_end(given_sizes: list[int], target: int) -> None:
    files = active(*given_sizes)
    for _ in range(len(files) + 1):
        lists = to_join(files, target)
        if not lists:
            return
        gone = [file for each in lists for file in each]
        assert len({file.path for file in gone}) == len(gone)
        for number, each in enumerate(lists):
            size = sum(file.num_bytes for file in each)
            assert size <= target
            files.append(ActiveFile(f"{each[0].path}+{number}", size, each[0].partition))
        files = [file for file in files if file not in gone]
    raise AssertionError("it never ends")


def test_a_joined_file_has_all_rows_in_their_order(tmp_path: Path) -> None:
    writer = DataFileWriter(tmp_path, Layout(["place"]))
    files = [
        active_of_file(file)
        for start in (0, 10, 20)
        for file in writer.write(
            pa.table({"id": range(start, start + 10), "place": ["a/b", "c"] * 5}), 1
        )
    ]
    joined = join(to_join(files, 10**6), FileReader(tmp_path, facts_of(SCHEMA, ["place"])), writer)
    assert [len(each.sources) for each in joined] == [3, 3]
    for file, odd in zip(files_of(joined), (0, 1), strict=True):
        read = pq.ParquetFile(tmp_path / file.path).read()
        assert read["id"].to_pylist() == list(range(odd, 30, 2))
        assert read["x"].null_count == 15
        assert file.partition == {"place": "c" if odd else "a/b"}
        assert file.path.startswith("place=")
        assert file.num_rows == 15


def test_files_without_rows_go_and_nothing_takes_their_place(tmp_path: Path) -> None:
    writer = DataFileWriter(tmp_path, Layout())
    for name in ("a", "b"):
        pq.write_table(SCHEMA.empty_table(), tmp_path / name)
    files = [ActiveFile(name, 100, {}) for name in ("a", "b")]
    joined = join(to_join(files, 10**6), FileReader(tmp_path, facts_of(SCHEMA, ())), writer)
    assert len(joined) == 1
    assert files_of(joined) == []


def test_a_file_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path) -> None:
    writer = DataFileWriter(tmp_path, Layout())
    good = [active_of_file(file) for _ in "ab" for file in writer.write(pa.table({"id": [1]}), 1)]
    bad = [ActiveFile(f"/elsewhere/{number}", 1, {}) for number in range(2)]
    before = set(tmp_path.iterdir())
    with pytest.raises(SinkFailed):
        join([good, bad], FileReader(tmp_path, facts_of(SCHEMA, ())), writer)
    assert set(tmp_path.iterdir()) == before
