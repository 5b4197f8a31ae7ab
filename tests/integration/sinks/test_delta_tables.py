"""Delta tables as Spark reads them, and as they are when something goes wrong."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks import DeltaSink
from sinks.spark.driver import SparkDriver
from tests.worlds.delta_table import LINE, Table, group, rows, write
from tests.worlds.every_type import EVERY_TYPE, NOTHING, SOMETHING
from tests.worlds.two_step_delta import TwoStepDeltaSink
from topology.errors import RowsRejected, SinkBusy, SinkFailed
from topology.sink import Batch
from topology.transactional import Committed, Fence, Staged

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def table(tmp_path: Path, spark: SparkDriver) -> Iterator[Table]:
    made = Table(tmp_path, spark)
    yield made
    for sink in made.sinks:
        sink.close()


@pytest.mark.parametrize("partition_by", [[], ["text", "at", "local", "day", "price", "double"]])
def test_spark_reads_the_same_whether_it_wrote_the_rows_itself_or_kernel_did(
    tmp_path: Path, spark: SparkDriver, partition_by: list[str]
) -> None:
    plain = {"double": 1e300, "text": " a/b=c:%41 ..", "struct": None, "number": 5}
    batch = pa.RecordBatch.from_pylist(
        [NOTHING, SOMETHING, SOMETHING | plain, SOMETHING | {"text": ""}], schema=EVERY_TYPE
    )
    found = []
    for obstacle in (None, "forced"):
        table = Table(tmp_path / str(obstacle), spark)
        sink = table.sink(EVERY_TYPE, partition_by=partition_by)
        write(sink, [NOTHING | {"number": 1}])
        assert sink._way is not None
        sink._way = sink._way._replace(obstacle=obstacle)
        sink.write(Batch(2, [batch], 4))
        assert table.engines()[2:] == ["Kernel" if obstacle is None else "Apache"]
        read = table.read()
        found.append((read.schema, sorted(map(repr, read.to_pylist()))))
        assert {row["text"] for row in read.to_pylist()} >= {" a/b=c:%41 .."}
        sink.close()
    assert found[0] == found[1]


def test_filters_find_their_rows_though_files_say_what_they_hold(table: Table) -> None:
    schema = pa.schema(
        [
            ("number", pa.int64()),
            ("x", pa.float64()),
            ("text", pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(20, 4)),
            ("day", pa.date32()),
        ]
    )
    sink = table.sink(schema)
    for number in range(4):
        row = {
            "number": number,
            "x": float("nan") if number == 3 else float(number),
            "text": "z" * 40 + str(number),
            "at": datetime(2026, 1, 1, 0, 0, number, 999_999, tzinfo=UTC),
            "price": Decimal(number) + Decimal("0.0001"),
            "day": date(2026, 1, 1 + number),
        }
        write(sink, [row, row | {"x": 0.0}], number + 1)
    for where, numbers in {
        "number = 2": [2, 2],
        "x > 1000": [3],  # Spark holds NaN for the greatest
        f"text >= '{'z' * 40}2'": [2, 2, 3, 3],
        "at > timestamp'2026-01-01T00:00:01.999998Z'": [1, 1, 2, 2, 3, 3],
        "at > timestamp'2026-01-01T00:00:02.999999Z'": [3, 3],
        "price > 2": [2, 2, 3, 3],
        "day < date'2026-01-02'": [0, 0],
        "text is null": [],
    }.items():
        assert table.numbers(where) == numbers, where


def test_a_table_is_made_as_spark_makes_it_and_rows_that_do_not_fit_leave_nothing(
    table: Table,
) -> None:
    sink = table.sink(partition_by="place")
    assert not (table.path / "_delta_log").exists()
    with pytest.raises(RowsRejected):
        write(sink, [{"number": "one"}])
    assert table.engines() == ["Apache"]
    assert table.numbers() == []
    write(sink, rows(1, 2))
    assert table.engines() == ["Apache", "Kernel"]
    assert [path.parent.name for path in table.files()] == ["place=x"]


def test_a_table_partitioned_by_others_keeps_its_partitions(table: Table) -> None:
    table.sql(
        "CREATE TABLE TABLE_PATH (number long, place string) USING delta PARTITIONED BY (place)"
    )
    write(table.sink(), rows(1, place="a b") + rows(2, place=None))
    assert table.numbers("place = 'a b'") == [1]
    assert table.numbers("place is null") == [2]
    with pytest.raises(SinkFailed, match="the table is partitioned by place"):
        table.sink(partition_by=["number"])


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (
            ["ALTER TABLE TABLE_PATH ADD CONSTRAINT low CHECK (number < 100)"],
            "the table has the constraint low",
        ),
        (
            [
                "ALTER TABLE TABLE_PATH SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
            ],
            "delta.columnMapping.mode = name",
        ),
    ],
)
def test_what_kernel_cannot_write_spark_appends_to_and_transactions_are_refused(
    table: Table, statements: list[str], reason: str
) -> None:
    write(table.sink(), rows(1))
    table.sql(*statements)
    sink = table.sink()
    write(sink, rows(2))
    assert table.engines()[-1] == "Apache"
    assert table.numbers() == [1, 2]
    with pytest.raises(SinkFailed, match=f"'orders' cannot be written exactly once: .*{reason}"):
        table.sink(exactly_once=True)
    with pytest.raises(SinkFailed, match=reason):
        sink.fence([Fence(LINE, 1)])


def test_a_table_that_forgets_transactions_is_refused_exactly_once(table: Table) -> None:
    write(table.sink(), rows(1))
    name = "delta.setTransactionRetentionDuration"
    table.sql(f"ALTER TABLE TABLE_PATH SET TBLPROPERTIES ('{name}' = 'interval 1 day')")
    with pytest.raises(SinkFailed, match=name):
        table.sink(exactly_once=True)
    write(table.sink(), rows(2))
    assert table.engines()[-1] == "Kernel"


def test_a_constraint_that_comes_while_the_sink_is_open_is_kept(table: Table) -> None:
    sink, other = table.sink(), table.sink(exactly_once=True)
    write(sink, rows(1))
    other.fence([Fence(LINE, 1)])
    staged = other.stage(group(1, 7))
    table.sql("ALTER TABLE TABLE_PATH ADD CONSTRAINT low CHECK (number < 100)")
    with pytest.raises(SinkFailed, match="was changed"):
        other.commit(staged)
    other.discard(staged)
    before = table.files()
    with pytest.raises(SinkBusy):
        write(sink, rows(200))
    assert table.files() == before
    with pytest.raises(Exception, match="CHECK constraint low"):
        write(sink, rows(200))
    write(sink, rows(2))
    assert table.numbers() == [1, 2]


def test_others_commits_in_between_are_no_harm(table: Table) -> None:
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    sink.commit(sink.stage(group(1, 1)))
    table.sql("INSERT INTO TABLE_PATH VALUES (50, 'theirs')")
    sink.commit(sink.stage(group(2, 2)))
    table.sql("OPTIMIZE TABLE_PATH", "INSERT INTO TABLE_PATH VALUES (51, 'theirs')")
    staged = sink.stage(group(3, 3))
    sink.commit(staged)
    sink.commit(staged)
    assert table.numbers() == [1, 2, 3, 50, 51]
    assert sink.committed([LINE]) == [Committed(LINE, 1, 3)]


def test_txids_outlive_checkpoints_and_the_cleaning_of_the_log(table: Table) -> None:
    """Promise 9."""
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 3), Fence("orders[1]", 5)])
    for txid in range(1, 13):
        sink.commit(sink.stage(group(txid, txid, epoch=3)))
    log = table.path / "_delta_log"
    checkpoint = log / f"{10:020d}.checkpoint.parquet"
    assert checkpoint.exists()
    for entry in log.glob("*.json"):
        if int(entry.stem) < 10:
            entry.unlink()
    again = table.sink(exactly_once=True)
    lines = [LINE, "orders[1]", "orders[2]"]
    assert again.committed(lines) == [
        Committed(LINE, 3, 12),
        Committed("orders[1]", 5, 0),
        Committed("orders[2]", 0, 0),
    ]
    assert table.numbers() == list(range(1, 13))


def test_what_was_discarded_or_never_committed_is_no_part_of_the_table(table: Table) -> None:
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 1, 2))
    assert len(table.files()) == len(staged.parts) == 1
    sink.discard(staged)
    sink.discard(staged)
    assert table.files() == set()
    sink.stage(group(1, 1, 2))
    assert table.numbers() == []


def test_a_table_that_is_removed_loses_no_row_at_least_once_and_is_noticed_exactly_once(
    table: Table,
) -> None:
    sink, other = table.sink(), table.sink(exactly_once=True)
    write(sink, rows(1))
    other.fence([Fence(LINE, 1)])
    other.commit(other.stage(group(1, 7)))
    for path in sorted(table.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(SinkBusy):
        write(sink, rows(2))
    write(sink, rows(2))
    assert table.numbers() == [2]
    with pytest.raises(SinkFailed, match="'orders' was removed while"):
        other.commit(other.stage(group(2, 8)))


def test_the_control_that_commits_rows_and_txids_apart_does_show_duplicates(table: Table) -> None:
    class Killed(BaseException):
        """As if the process ended here."""

    def kill(point: str) -> None:
        assert point == "between_rows_and_txids"
        raise Killed

    def commit(kind: type[DeltaSink[Any]]) -> Staged:
        sink = table.sink(kind=kind, exactly_once=True)
        sink.fence([Fence(LINE, 1)])
        staged = sink.stage(group(1, 1, 2))
        sink.commit(staged)
        return staged

    class Control(TwoStepDeltaSink[Any]):
        at = staticmethod(kill)

    with pytest.raises(Killed):
        commit(Control)
    commit(TwoStepDeltaSink)
    assert table.numbers() == [1, 1, 2, 2]
    commit(DeltaSink)
    assert table.numbers() == [1, 1, 2, 2]
