"""Delta tables whose rows are replaced by key, that get columns, or that are compacted."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sinks import DeltaSink, SparkSink
from sinks.spark.delta import compaction
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.worlds.delta_table import LINE, SCHEMA, Table, group, rows, write
from tests.worlds.every_type import EVERY_TYPE, SOMETHING
from topology.compaction import Compactable, Compaction
from topology.errors import RowsRejected, SinkBusy, SinkFailed
from topology.sink import Batch, SinkContext
from topology.transactional import Committed, Fence, Group, Share

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KEYED = pa.schema([*SCHEMA, ("value", pa.int64()), ("gone", pa.bool_())])
TARGET_BYTES = 1024 * 1024


@pytest.fixture
def table(tmp_path: Path, spark: SparkDriver) -> Iterator[Table]:
    made = Table(tmp_path, spark)
    yield made
    for sink in made.sinks:
        sink.close()


@pytest.fixture(scope="module")
def empty(spark: SparkDriver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table without rows, which Spark takes long to make."""
    made = Table(tmp_path_factory.mktemp("warehouse"), spark)
    write(keyed(made), [])
    made.sinks[0].close()
    return made.path


@pytest.fixture
def keyed_table(table: Table, empty: Path) -> Table:
    shutil.copytree(empty, table.path)
    return table


def keyed(table: Table, *, exactly_once: bool = False, **options: Any) -> DeltaSink[Any]:
    options = {"key": "number", "deleted": "gone"} | options
    return table.sink(KEYED, exactly_once=exactly_once, **options)


def row(number: int, value: int = 0, place: str = "x") -> dict[str, Any]:
    return {"number": number, "place": place, "value": value}


def gone(number: int) -> dict[str, Any]:
    return {"number": number, "gone": True}


def values(table: Table, where: str = "true") -> dict[int, int]:
    """By number, as Spark reads them; no number is there twice."""
    found = table.read(where).to_pylist()
    assert len({each["number"] for each in found}) == len(found)
    return {each["number"]: each["value"] for each in found}


def added(table: Table) -> set[str]:
    """The names of all files that were ever added."""
    entries = (table.path / "_delta_log").glob("*.json")
    lines = [json.loads(line) for path in entries for line in path.read_text().splitlines()]
    return {line["add"]["path"] for line in lines if "add" in line}


def keyed_group(txid: int, *given: dict[str, Any], line: str = LINE) -> Group:
    share = Share(line, 1, txid, 1, txid, txid + 1, "0" * 32, len(given))
    return Group(txid, (share,), [[*given]], len(given))


def test_a_row_takes_the_place_of_its_key_and_a_tombstone_takes_it_away(
    table: Table,
) -> None:
    sink = keyed(table, partition_by="place")
    write(sink, [row(number) for number in range(5)])
    write(sink, [row(1, 1, "y"), row(2, 1), row(2, 2), gone(3), gone(99)], 2)
    assert table.read().column_names == ["number", "place", "value"]
    assert values(table) == {0: 0, 1: 1, 2: 2, 4: 0}
    assert values(table, "place = 'y'") == {1: 1}
    with pytest.raises(RowsRejected) as caught:
        write(sink, [row(0, 5), {"number": None}, gone(4)], 3)
    assert "'number': found None" in caught.value.reasons[1]
    assert values(table) == {0: 5, 1: 1, 2: 2}
    before = table.engines()
    write(sink, [], 4)
    assert table.engines() == before


def test_what_is_replaced_and_the_txids_are_in_one_commit_and_a_replay_changes_nothing(
    keyed_table: Table,
) -> None:
    """Promise 9, Storm 45: a stale replay does not take the place of newer rows."""
    table = keyed_table
    sink = keyed(table, exactly_once=True)
    lines = [LINE, "orders[1]"]
    sink.fence([Fence(line, 1) for line in lines])
    first = sink.stage(keyed_group(1, row(1, 1), row(2, 1)))
    sink.commit(first)
    shares = [Share(line, 1, 2 - n, 1, 0, 1, "0" * 32, 1) for n, line in enumerate(lines)]
    sink.commit(sink.stage(Group(2, tuple(shares), [[row(1, 2)], [row(3, 2)]], 2)))
    sink.commit(sink.stage(keyed_group(3, gone(2))))
    entries = len(table.engines())
    sink.commit(first)
    replay = keyed(table, exactly_once=True)
    assert replay.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 3)]
    assert replay.committed(lines) == [Committed(LINE, 2, 3), Committed("orders[1]", 1, 1)]
    assert values(table) == {1: 2, 3: 2}
    assert len(table.engines()) == entries + 1  # the fence


def test_rows_that_others_commit_meanwhile_are_replaced_as_well(keyed_table: Table) -> None:
    table = keyed_table
    sink = keyed(table, exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    sink.commit(sink.stage(keyed_group(1, row(1), row(2))))
    staged = sink.stage(keyed_group(2, row(1, 2), gone(3)))
    table.sql(
        "INSERT INTO TABLE_PATH VALUES (1, 'theirs', 50), (3, 'theirs', 50), (4, 'theirs', 50)"
    )
    sink.commit(staged)
    assert values(table) == {1: 2, 2: 0, 4: 50}
    # What was rewritten for the try that lost is gone.
    assert {path.name for path in table.files()} <= added(table)


def test_what_else_is_in_a_file_stays_as_spark_wrote_it(table: Table) -> None:
    other = {"number": 2, "double": 1.5, "struct": None}
    sink = table.sink(EVERY_TYPE)
    write(sink, [{"number": 0}])
    assert sink._way is not None
    sink._way = sink._way._replace(obstacle="forced")
    given = [SOMETHING, SOMETHING | other, {"number": 1}]
    sink.write(Batch(2, [pa.RecordBatch.from_pylist(given, schema=EVERY_TYPE)], len(given)))
    assert table.engines()[-1] == "Apache"
    before = sorted(map(repr, table.read("number > 1").to_pylist()))
    upserting = table.sink(EVERY_TYPE, key=["number", "few"])
    write(upserting, [{"number": 1, "few": "none"}, {"number": 2, "few": "AA"}], 3)
    after = sorted(map(repr, table.read("number > 1 and int is not null").to_pylist()))
    assert len(before) == 2
    assert after == [text for text in before if "'number': 2," not in text]
    assert table.numbers() == sorted([0, 1, 1, 2, SOMETHING["number"]])


def test_a_table_in_which_rows_cannot_be_replaced_is_refused_when_it_is_opened(
    keyed_table: Table,
) -> None:
    table = keyed_table
    reason = "the table has delta.enableChangeDataFeed = true"
    sink = keyed(table)
    write(sink, [row(1)])
    table.sql("ALTER TABLE TABLE_PATH SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    with pytest.raises(SinkFailed, match=f"'orders' cannot have rows replaced by key: {reason}"):
        keyed(table)
    with pytest.raises(SinkBusy):
        write(sink, [row(1, 2)], 2)
    with pytest.raises(SinkFailed, match=reason):
        write(sink, [row(1, 2)], 2)
    assert values(table) == {1: 0}


def test_a_file_in_which_spark_has_deleted_rows_is_not_rewritten(keyed_table: Table) -> None:
    table = keyed_table
    sink = keyed(table)
    write(sink, [row(number) for number in range(9)])
    table.sql(
        "ALTER TABLE TABLE_PATH SET TBLPROPERTIES (delta.enableDeletionVectors = true)",
        "DELETE FROM TABLE_PATH WHERE number = 1",
    )
    write(sink, [row(20)], 2)
    with pytest.raises(SinkFailed, match=r"'orders': file .* has a deletion vector"):
        write(sink, [row(2, 2)], 3)
    assert sink.compact(TARGET_BYTES).files_replaced <= 1  # what Spark left when it made the table
    assert values(table) == dict.fromkeys((0, 2, 3, 4, 5, 6, 7, 8, 20), 0)


def test_columns_that_the_table_lacks_are_refused_or_added(table: Table, tmp_path: Path) -> None:
    plain = table.sink(partition_by="place", exactly_once=True)
    plain.fence([Fence(LINE, 1)])
    plain.commit(plain.stage(group(1, 1)))
    shutil.copytree(table.path, tmp_path / "older")
    staged = plain.stage(group(2, 2))
    more = pa.schema([*SCHEMA, ("value", pa.int64()), ("tags", pa.list_(pa.string()))])
    with pytest.raises(SinkFailed, match="column 'value' is not in the table"):
        table.sink(more)
    adding = table.sink(more, on_new_columns="add")
    assert table.read().column_names == ["number", "place", "value", "tags"]
    write(adding, [row(3, 3) | {"tags": ["a"]}])
    plain.commit(staged)
    assert values(table) == {1: None, 2: None, 3: 3}
    for wrong, reason in (
        ({"value": pa.string()}, "column 'value': found string; allowed is bigint"),
        ({"VALUE": pa.int64()}, "column 'VALUE': found 'value' in the table, spelled differently"),
    ):
        with pytest.raises(SinkFailed, match=reason):
            table.sink(pa.schema([*SCHEMA, *wrong.items()]), on_new_columns="add")
    shutil.rmtree(table.path)
    shutil.copytree(tmp_path / "older", table.path)
    write(adding, [row(4, 4)], 2)  # it finds another table than it knows
    assert values(table) == {1: None, 4: 4}


def test_small_files_are_joined_beside_a_running_writer(table: Table) -> None:
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    for txid in range(1, 5):
        sink.commit(sink.stage(group(txid, txid, 10 * txid)))
    staged = sink.stage(group(5, 5))
    other = table.sink()
    assert isinstance(other, Compactable)
    before = other.data_files()
    done = other.compact(TARGET_BYTES)
    assert (done.files_replaced, done.files_written) == (len(before), 1)
    (file,) = other.data_files()
    assert Path(file).stat().st_size == done.bytes_written
    assert pq.ParquetFile(file).metadata.num_rows == 8
    assert other.compact(TARGET_BYTES) == Compaction(0, 0, 0)
    sink.commit(staged)
    sink.commit(staged)
    assert sink.committed([LINE]) == [Committed(LINE, 1, 5)]
    assert table.numbers() == [1, 2, 3, 4, 5, 10, 20, 30, 40]


def test_a_compaction_gives_way_to_rows_that_are_replaced_meanwhile(
    keyed_table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed_table
    sink = keyed(table)
    for number in range(4):
        write(sink, [row(number)], number + 1)
    original = compaction.join
    meanwhile = iter([[row(0, 1)], [row(3, 1)], [row(1, 1)]])

    def join(*given: Any) -> Any:
        joined = original(*given)
        if changed := next(meanwhile, None):
            write(sink, changed, 9)
        return joined

    monkeypatch.setattr(compaction, "join", join)
    other = keyed(table)
    with pytest.raises(SinkBusy, match="others keep changing"):
        other.compact(TARGET_BYTES)
    left = {Path(file).name for file in other.data_files()}
    done = other.compact(TARGET_BYTES)
    assert done.files_written == 1
    assert values(table) == {0: 1, 1: 1, 2: 0, 3: 1}
    assert left < {path.name for path in table.path.glob("*.parquet")}


@pytest.mark.parametrize("kind", [DeltaSink, partial(SparkSink, format="parquet")])
def test_a_table_lies_where_its_name_says_whatever_the_name(
    tmp_path: Path, spark: SparkDriver, kind: Any
) -> None:
    warehouse = tmp_path / "my ware%20house"
    name = "größe/a b#1 %41"
    sink = kind(name, schema=SCHEMA)
    sink.open(SinkContext("pipeline", "sink", {}, Storage(str(warehouse)), spark))
    sink.write(Batch(1, [rows(1, 2)], 2))
    sink.write(Batch(2, [rows(3)], 1))
    files = sorted((warehouse / name).glob("part-*.parquet"))
    read_back = [pq.ParquetFile(path).read()["number"].to_pylist() for path in files]
    found = [number for numbers in read_back for number in numbers]
    assert sorted(found) == [1, 2, 3]

    def read(session: Any) -> list[int]:
        frame = session.read.format(sink.format).load(f"{warehouse}/{name}")
        return sorted(each["number"] for each in frame.collect())

    assert spark.run(read, group="read") == [1, 2, 3]
    sink.close()
    assert [path.name for path in tmp_path.iterdir()] == [warehouse.name]
