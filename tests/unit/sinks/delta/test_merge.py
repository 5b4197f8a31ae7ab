"""Replacing the rows of keys in files, compared with a dictionary; no Spark runs."""

import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.files.data_file import DataFileWriter
from sinks.files.layout import Layout
from sinks.spark.delta.actions import ActiveFile, active_of_file
from sinks.spark.delta.keyed import KeyedRows
from sinks.spark.delta.merge import Merge
from sinks.spark.delta.reading import FileReader
from tests.worlds.delta_facts import facts_of
from topology.errors import SinkFailed

SCHEMA = pa.schema(
    [("id", pa.int64()), ("place", pa.string()), ("value", pa.int64()), ("gone", pa.bool_())]
)


class Table:
    """A table in a folder, whose log is a dictionary."""

    def __init__(
        self,
        root: Path,
        schema: pa.Schema = SCHEMA,
        key: Sequence[str] = ("id",),
        partition_by: Sequence[str] = (),
        waiting_bytes: int = 1_000_000,
    ) -> None:
        self.root = root
        self.rows = KeyedRows("t", schema, key, "gone" if "gone" in schema.names else None)
        self.reader = FileReader(root, facts_of(self.rows.stored, partition_by))
        self.writer = DataFileWriter(root, Layout(partition_by))
        self.merge = Merge(self.reader, self.writer, self.rows, waiting_bytes)
        self.active: dict[str, ActiveFile] = {}

    def put(self, rows: list[dict[str, Any]]) -> None:
        changes = self.rows.changes(self.rows.fit([rows]).table)
        files = self.writer.write(changes.rows, 1) if changes.rows.num_rows else []
        rewritten = self.merge.without(self.active.values(), changes.keys, 2)
        for gone in rewritten.removed:
            del self.active[gone.path]
        for file in map(active_of_file, [*files, *rewritten.files]):
            self.active[file.path] = file

    def read(self) -> list[dict[str, Any]]:
        return [
            row | dict(file.partition)
            for file in self.active.values()
            for row in self.reader.read(file).to_pylist()
        ]


def row(
    key: int, value: int | None = 0, place: str | None = "x", *, gone: bool = False
) -> dict[str, Any]:
    return {"id": key, "place": place, "value": value, "gone": gone}


@settings(max_examples=60)
@given(
    batches=st.lists(
        st.lists(
            st.builds(
                row,
                key=st.integers(0, 9),
                value=st.integers(0, 99),
                place=st.sampled_from(["a", "b/c", "é ", "", None]),
                gone=st.booleans(),
            ),
            max_size=8,
        ),
        max_size=6,
    ),
    partition_by=st.sampled_from([[], ["place"]]),
    waiting_bytes=st.sampled_from([1, 1_000_000]),
)
def test_a_table_has_what_a_dictionary_has(
    batches: list[list[dict[str, Any]]], partition_by: list[str], waiting_bytes: int
) -> None:
    with TemporaryDirectory() as folder:
        table = Table(Path(folder), partition_by=partition_by, waiting_bytes=waiting_bytes)
        wanted: dict[int, dict[str, Any]] = {}
        for batch in batches:
            table.put(batch)
            for each in batch:
                wanted.pop(each["id"], None)
                if not each["gone"]:
                    stored = {name: each[name] for name in ("id", "place", "value")}
                    if partition_by:
                        stored["place"] = stored["place"] or None  # as everywhere in Delta
                    wanted[each["id"]] = stored
        found = table.read()
        assert len(found) == len(wanted)
        assert {each["id"]: each for each in found} == wanted


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from(["a", ""]), st.booleans()), max_size=6
        ),
        max_size=5,
    )
)
def test_a_partition_may_be_part_of_the_key(batches: list[list[Any]]) -> None:
    with TemporaryDirectory() as folder:
        table = Table(Path(folder), key=["place", "id"], partition_by=["place"])
        wanted: dict[Any, int] = {}
        for number, batch in enumerate(batches):
            table.put([row(key, number, place, gone=gone) for key, place, gone in batch])
            for key, place, gone in batch:
                wanted.pop((place or None, key), None)
                if not gone:
                    wanted[place or None, key] = number
        found = {(each["place"], each["id"]): each["value"] for each in table.read()}
        assert found == wanted


def test_the_partitions_may_be_the_whole_key(tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.date32()), ("value", pa.int64())])
    table = Table(tmp_path, schema, key=["day"], partition_by=["day"])
    for value in (1, 2):
        table.put([{"day": date(2026, 1, day), "value": value} for day in (value, 3)])
    assert sorted((each["day"], each["value"]) for each in table.read()) == [
        ("2026-01-01", 1),
        ("2026-01-02", 2),
        ("2026-01-03", 2),
    ]


def test_all_rows_of_a_key_that_is_there_twice_are_replaced(tmp_path: Path) -> None:
    table = Table(tmp_path)
    for value in (1, 2):
        (file,) = table.writer.write(pa.table({"id": [1, 1, 2 + value], "value": [value] * 3}), 1)
        table.active[file.path] = active_of_file(file)
    table.put([row(1, 9)])
    assert sorted((each["id"], each["value"]) for each in table.read()) == [(1, 9), (3, 1), (4, 2)]


def test_rows_that_go_are_told_and_nothing_is_left_if_there_is_no_commit(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.put([row(1, 10), row(2, 20)])
    table.put([row(3, 30), row(4, 40)])
    keys = pa.table({"0": pa.array([1, 3, 9])})
    taken: list[pa.Table] = []
    rewritten = table.merge.without(table.active.values(), keys, 1, taken)
    rows = [each for part in taken for each in part.to_pylist()]
    assert sorted((each["id"], each["value"]) for each in rows) == [(1, 10), (3, 30)]
    table.writer.remove(rewritten.files)
    assert sorted(each["id"] for each in table.read()) == [1, 2, 3, 4]


def test_files_without_the_keys_are_left_alone_and_the_others_are_put_together(
    tmp_path: Path,
) -> None:
    table = Table(tmp_path)
    table.put([row(key) for key in range(10)])
    table.put([row(key) for key in range(10, 20)])
    table.put([row(key) for key in range(20, 30)])
    untouched = [path for path in table.active if "part-00001" in path][2]
    table.put([row(5, 1), row(15, 1)])
    assert untouched in table.active
    assert len(table.active) == 3
    assert len(table.read()) == 30


def test_a_file_is_not_even_read_if_its_bounds_exclude_the_keys(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.put([row(key) for key in range(10)])
    (active,) = table.active.values()
    (tmp_path / active.path).unlink()
    table.put([row(-1), row(10)])
    with pytest.raises(FileNotFoundError):
        table.put([row(9)])


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 20])
def test_a_file_that_is_no_parquet_is_named_and_no_row_is_blamed(
    content: bytes, tmp_path: Path
) -> None:
    """ArrowInvalid is a ValueError, as a bad row's would be."""
    table = Table(tmp_path)
    table.put([row(1)])
    (active,) = table.active.values()
    (tmp_path / active.path).write_bytes(content)
    with pytest.raises(SinkFailed, match=f"file {active.place}, .* cannot be read: "):
        table.put([row(1)])
    with pytest.raises(SinkFailed, match="cannot be read"):
        table.reader.read(active)


def test_long_texts_are_found_though_their_bounds_are_cut(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("value", pa.int64())])
    table = Table(tmp_path, schema)
    keys = ["z" * 40 + end for end in ("a", "\U0010ffff", "b")] + ["\U0010ffff" * 33]
    for value in (1, 2):
        table.put([{"id": key, "value": value} for key in keys])
    assert sorted(each["value"] for each in table.read()) == [2, 2, 2, 2]


def test_files_that_say_nothing_of_what_they_hold_are_read(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.put([row(1, 1), row(2, 1)])
    (file,) = table.active.values()
    table.active = {file.path: ActiveFile(file.path, file.num_bytes, file.partition)}
    table.put([row(1, 2)])
    assert sorted((each["id"], each["value"]) for each in table.read()) == [(1, 2), (2, 1)]


def test_columns_that_are_younger_than_a_file_are_null_in_it(tmp_path: Path) -> None:
    table = Table(tmp_path)
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "old.parquet")
    table.active["old.parquet"] = ActiveFile("old.parquet", 100, {})
    table.put([row(1, 5)])
    found = sorted(table.read(), key=lambda each: int(each["id"]))
    assert found == [
        {"id": 1, "place": "x", "value": 5},
        {"id": 2, "place": None, "value": None},
    ]


def test_columns_that_only_the_table_has_are_kept(tmp_path: Path) -> None:
    stored = pa.schema([*SCHEMA, ("theirs", pa.string()), ("x", pa.float64())])
    table = Table(tmp_path)
    table.reader = FileReader(tmp_path, facts_of(stored, ()))
    table.merge = Merge(table.reader, table.writer, table.rows)
    given_rows = pa.table({"id": [1, 2], "theirs": ["a", "b"], "x": [1.0, math.nan]})
    (file,) = table.writer.write(given_rows, 1)
    table.active[file.path] = active_of_file(file)
    table.put([row(1, 5)])
    found = {each["id"]: each for each in table.read()}
    assert found[1]["theirs"] is None
    assert found[2]["theirs"] == "b"
    assert math.isnan(found[2]["x"])


def test_times_as_spark_writes_them_stay_what_they_are(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    table = Table(tmp_path, schema)
    (file,) = table.writer.write(pa.table({"id": [1, 2], "at": [-(10**15), 10**15]}), 1)
    whole = pa.table({"id": [1, 2], "at": [-(10**15), 10**15]}).cast(schema)
    pq.write_table(whole, tmp_path / file.path, use_deprecated_int96_timestamps=True)
    table.active[file.path] = active_of_file(file)
    table.put([{"id": 3, "at": None}, {"id": 1, "at": None}])
    rewritten = [path for path in table.active if "part-00002" in path]
    kept = pq.ParquetFile(tmp_path / rewritten[0]).read()
    assert kept.schema.field("at").type == pa.timestamp("us", "UTC")
    assert kept.cast(schema).equals(whole.slice(1, 1))


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (ActiveFile("a.parquet", 1, {}, has_deletions=True), "has a deletion vector"),
        (ActiveFile("s3://b/a.parquet", 1, {}), "lies outside of the table"),
        (ActiveFile("/elsewhere/a.parquet", 1, {}), "lies outside of the table"),
        (ActiveFile("old.parquet", 1, {}), "Spark 2's calendar"),
    ],
)
def test_files_that_only_spark_can_read_are_refused_and_nothing_is_left(
    tmp_path: Path, file: ActiveFile, reason: str
) -> None:
    schema = pa.schema([("id", pa.int64())], metadata={"org.apache.spark.legacyDateTime": ""})
    pq.write_table(pa.table({"id": [1]}, schema=schema), tmp_path / "old.parquet")
    table = Table(tmp_path, waiting_bytes=1)
    table.put([row(1), row(2)])
    table.active[file.path] = file
    before = set(tmp_path.rglob("*.parquet"))
    with pytest.raises(SinkFailed, match=reason):
        table.merge.without(table.active.values(), pa.table({"0": [1]}), 2)
    assert set(tmp_path.rglob("*.parquet")) == before
