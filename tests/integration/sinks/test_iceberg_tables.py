"""Iceberg tables as Spark reads them, and as they are when others write them too."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks.errors import SparkDied
from sinks.spark.driver import SparkDriver
from sinks.spark.iceberg.log import IcebergLog
from tests.acceptance import table_files
from tests.worlds import every_type
from tests.worlds.iceberg_table import (
    LINE,
    Table,
    appended,
    group,
    loaded,
    planned,
    rows,
    write,
)
from topology.errors import RowsRejected, SinkBusy, SinkFailed, SinkFenced
from topology.sink import Batch
from topology.transactional import Committed, Fence

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


STRANGE = 'a `strange`."name" é'
EVERY_TYPE = every_type.EVERY_TYPE.append(pa.field("pair", pa.list_(pa.int32(), 2))).append(
    pa.field(STRANGE, pa.string())
)
NOTHING: dict[str, Any] = dict.fromkeys(EVERY_TYPE.names)
SOMETHING = every_type.SOMETHING | {
    "float": 0.5,
    "local": datetime(2026, 1, 2, 3, 4, 5, 678000),  # noqa: DTZ001 - it has no zone
    "pair": [1, 2],
    STRANGE: "x",
}
PARTITIONS = ["text", "at", "local", "day", "price", "bool", "tiny", "number", "few"]


def plain(value: Any) -> Any:
    """A value without what Arrow's types alone bring along."""
    if isinstance(value, dict):
        return {name: plain(within) for name, within in value.items()}
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


@pytest.mark.parametrize("partition_by", [[], PARTITIONS], ids=["whole", "partitioned"])
def test_spark_reads_every_type_as_it_was_written(table: Table, partition_by: list[str]) -> None:
    more = {"double": 1e300, "text": " a/b=c:%41 ..", "struct": None, "number": 5, "bool": False}
    given = [NOTHING, SOMETHING, SOMETHING | more, SOMETHING | {"text": ""}, {"text": ".." * 200}]
    wanted = [NOTHING | row for row in given]
    write(table.sink(EVERY_TYPE, partition_by=partition_by), given)
    found = [plain(row) for row in table.read().to_pylist()]
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    for where in ("text = ''", "text is null", "text = ' a/b=c:%41 ..'"):
        assert table.read(where).num_rows == 1, where
    assert table.read("number = 5 or at_ns > timestamp'2026-01-02T03:04:05Z'").num_rows == 3


def test_filters_find_their_rows_and_pass_over_files_that_have_none(table: Table) -> None:
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
        "price > 2": [2, 2, 3, 3],
        "day < date'2026-01-02'": [0, 0],
        "text is null": [],
    }.items():
        assert table.numbers(where) == numbers, where

    def looked_into(session: Any) -> list[int]:
        expressions = session._jvm.org.apache.iceberg.expressions.Expressions
        filters = [
            expressions.equal("number", 2),
            expressions.greaterThan("price", Decimal("2.5")),
            expressions.lessThan("day", "2026-01-02"),
            expressions.isNull("text"),
            expressions.greaterThan("x", 1000.0),
        ]
        return [len(planned(loaded(session, table.path), each)) for each in filters]

    assert table.spark.run(looked_into, group="plan") == [1, 1, 1, 0, 1]


def test_a_table_is_made_with_the_first_rows_and_rows_that_do_not_fit_leave_nothing(
    table: Table,
) -> None:
    sink = table.sink(partition_by="place")
    assert not (table.path / "metadata").exists()
    with pytest.raises(RowsRejected):
        write(sink, [{"number": "one"}])
    assert table.files() == set()
    write(sink, rows(1, 2))
    assert table.numbers() == [1, 2]
    assert [path.parent.name for path in table.files()] == ["place=x"]
    assert table.properties()["write.metadata.delete-after-commit.enabled"] == "true"


def test_a_name_with_strange_characters_is_a_folder_of_that_name(
    tmp_path: Path, spark: SparkDriver
) -> None:
    table = Table(tmp_path, spark, "o'r d\"e`r%41é/t&b;l=e")
    write(table.sink(), rows(1))
    assert (table.path / "metadata" / "v1.metadata.json").exists()
    assert table.numbers() == [1]
    assert table.sink().data_files() == [str(path) for path in table.files()]


def test_an_append_of_sparks_between_decision_and_commit_is_no_harm(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 9: what was decided on one state of the table is not committed on another."""
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    between(monkeypatch, lambda log: appended(log.session, table.path, [50]))
    sink.commit(sink.stage(group(1, 1)))
    assert table.numbers() == [1, 50]
    assert sink.committed([LINE]) == [Committed(LINE, 1, 1)]
    between(monkeypatch, lambda log: appended(log.session, table.path, [51]))
    sink.fence([Fence(LINE, 2)])
    assert sink.committed([LINE]) == [Committed(LINE, 2, 1)]
    assert table.numbers() == [1, 50, 51]


def test_a_fence_between_decision_and_commit_keeps_the_former_owner_out(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 9, even against a successor that does not hold our lock."""
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])

    def fence(log: IcebergLog) -> None:
        update = loaded(log.session, table.path).updateProperties()
        update.set(f"headrace/pipeline/sink/{LINE}", "2:0").commit()

    between(monkeypatch, fence)
    staged = sink.stage(group(1, 1))
    with pytest.raises(SinkFenced):
        sink.commit(staged)
    sink.discard(staged)
    assert table.files() == set()
    assert sink.committed([LINE]) == [Committed(LINE, 2, 0)]


def between(monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    """Have something done after the next commit was decided on, and before it is made."""
    original = IcebergLog.commit

    def commit(self: IcebergLog, *arguments: Any) -> None:
        monkeypatch.setattr(IcebergLog, "commit", original)
        work(self)
        original(self, *arguments)

    monkeypatch.setattr(IcebergLog, "commit", commit)


def test_txids_outlive_the_snapshots_that_brought_them(table: Table) -> None:
    """Promise 9."""
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 3), Fence("orders[1]", 5)])
    for txid in range(1, 5):
        sink.commit(sink.stage(group(txid, txid, epoch=3)))

    def expired(found: Any) -> int:
        found.expireSnapshots().expireOlderThan(2**53).retainLast(1).commit()
        assert found.currentSnapshot().summary().get("headrace.transactions") == f"{LINE}=4"
        return len(list(found.snapshots()))

    assert table.java(expired) == 1
    lines = [LINE, "orders[1]", "orders[2]"]
    assert table.sink(exactly_once=True).committed(lines) == [
        Committed(LINE, 3, 4),
        Committed("orders[1]", 5, 0),
        Committed("orders[2]", 0, 0),
    ]
    assert table.numbers() == [1, 2, 3, 4]


def test_a_table_of_others_is_taken_as_it_is_or_refused_with_the_reason(table: Table) -> None:
    write(table.sink(partition_by="place"), rows(1))
    table.append(2, place=None)
    write(table.sink(), rows(3, place="") + rows(4, place=None))
    assert table.numbers("place is null") == [2, 4]
    assert table.numbers("place = ''") == [3]
    with pytest.raises(SinkFailed, match=r"'orders' .*the table is partitioned by place"):
        table.sink(partition_by=["number"])
    for schema, reason in {
        pa.schema({"number": pa.string()}): "column 'number': found string; allowed is long",
        pa.schema({"number": pa.int64(), "new": pa.bool_()}): "column 'new' is not in the table",
        pa.schema({"NUMBER": pa.int64()}): "'number' and 'NUMBER' differ in case only",
    }.items():
        with pytest.raises(SinkFailed, match=reason):
            table.sink(schema)
    table.java(
        lambda found: (
            found.updateSchema().allowIncompatibleChanges().requireColumn("number").commit()
        )
    )
    with pytest.raises(SinkFailed, match="'number' may be null in the rows, and is required"):
        table.sink()
    strict = pa.schema([pa.field("number", pa.int64(), nullable=False)])
    write(table.sink(strict), [{"number": 5}])
    with pytest.raises(SinkFailed, match="'number' is required in the table, and the rows have"):
        table.sink(pa.schema({"place": pa.string()}))
    table.java(lambda found: found.updateSpec().addField("number").commit())
    table.java(lambda found: found.updateSpec().removeField("place").commit())
    write(table.sink(strict), [{"number": 6}])
    assert table.numbers("number > 4") == [5, 6]

    def by_truncation(session: Any) -> None:
        term = session._jvm.org.apache.iceberg.expressions.Expressions.truncate("place", 1)
        loaded(session, table.path).updateSpec().addField(term).commit()

    table.spark.run(by_truncation, group="spec")
    with pytest.raises(
        SinkFailed, match=r"partitioned by place_trunc_1 \(truncate\[1\]\); allowed"
    ):
        table.sink(strict)


def test_new_columns_are_added_when_the_sink_is_opened(table: Table) -> None:
    write(table.sink(), rows(1))
    more = pa.schema([*SCHEMA_FIELDS, ("tags", pa.list_(pa.string())), ("x.y", pa.float64())])
    with pytest.raises(SinkFailed, match="on_new_columns='add' would add it"):
        table.sink(more)
    old = table.sink(exactly_once=True)
    old.fence([Fence(LINE, 1)])
    staged = old.stage(group(1, 2))
    sink = table.sink(more, on_new_columns="add")
    old.commit(staged)  # its columns are what they were
    write(sink, [{"number": 3, "place": "y", "tags": ["a"], "x.y": 0.5}])
    again = table.sink(more, on_new_columns="add")
    write(again, [{"number": 4}])
    found = {row["number"]: row for row in table.read().to_pylist()}
    assert found[1] == {"number": 1, "place": "x", "tags": None, "x.y": None}
    assert found[2]["tags"] is None
    assert found[3] == {"number": 3, "place": "y", "tags": ["a"], "x.y": 0.5}
    assert old.committed([LINE]) == [Committed(LINE, 1, 1)]


SCHEMA_FIELDS = [("number", pa.int64()), ("place", pa.string())]


def test_a_table_that_is_changed_while_rows_wait_takes_none_that_it_would_not_show(
    table: Table,
) -> None:
    sink, other = table.sink(), table.sink(exactly_once=True)
    write(sink, rows(1))
    other.fence([Fence(LINE, 1)])
    staged = other.stage(group(1, 7))
    table.java(lambda found: found.updateSchema().deleteColumn("place").commit())
    with pytest.raises(SinkFailed, match="column 'place' is not in the table"):
        other.commit(staged)

    # The same name again is another column, with another id.
    def add(session: Any) -> None:
        kind = getattr(session._jvm.org.apache.iceberg.types, "Types$StringType").get()
        loaded(session, table.path).updateSchema().addColumn("place", kind).commit()

    table.spark.run(add, group="add")
    with pytest.raises(SinkFailed, match="was changed while"):
        other.commit(staged)
    other.discard(staged)
    before = table.files()
    with pytest.raises(SinkBusy):
        write(sink, rows(2))
    assert table.files() == before
    write(sink, rows(2))
    assert table.numbers("place = 'x'") == [2]


def test_what_was_discarded_or_never_committed_is_no_part_of_the_table(table: Table) -> None:
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 1, 2))
    assert len(table.files()) == 1
    sink.discard(staged)
    sink.discard(staged)
    assert table.files() == set()
    sink.stage(group(1, 1, 2))
    assert table.numbers() == []
    assert sink.data_files() == []


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


def test_a_property_that_is_none_of_ours_is_told(table: Table) -> None:
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    name = f"headrace/pipeline/sink/{LINE}"
    table.java(lambda found: found.updateProperties().set(name, "many").commit())
    with pytest.raises(SinkFailed, match=r"found 'many'; allowed is <epoch>:<txid>"):
        sink.committed([LINE])


def test_small_files_are_joined_and_rows_and_txids_stay(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink(exactly_once=True, partition_by="place")
    sink.fence([Fence(LINE, 2)])
    for txid in range(1, 5):
        sink.commit(sink.stage(group(txid, txid, epoch=2)))
    write(sink, rows(5, place="") + rows(6, place=None))
    write(sink, rows(7, place="") + rows(8, place=None))
    table.append(9, place="x")
    other = table.sink()
    original = IcebergLog.replace

    def replace(self: IcebergLog, *arguments: Any) -> None:
        """While the files are joined the pipeline commits, and so does Spark."""
        monkeypatch.setattr(IcebergLog, "replace", original)
        appended(self.session, table.path, [10])
        original(self, *arguments)

    monkeypatch.setattr(IcebergLog, "replace", replace)
    done = other.compact(2**20)
    assert (done.files_replaced, done.files_written) == (8, 3)
    assert done.bytes_written > 0
    assert table.numbers() == list(range(1, 11))
    assert table.numbers("place = ''") == [5, 7]
    assert table.numbers("place is null") == [6, 8]
    assert sink.committed([LINE]) == [Committed(LINE, 2, 4)]
    sink.commit(sink.stage(group(5, 11, epoch=2)))
    assert table.numbers("number > 9") == [10, 11]
    assert len(other.data_files()) == 3 + 2 + 1
    assert other.compact(2**20).files_replaced == 2  # what was joined, and what came after it
    assert other.compact(2**20) == (0, 0, 0)


def test_old_snapshots_go_and_take_their_files_along_when_a_table_is_compacted(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.spark.iceberg.compaction._EXPIRED_AT_ONCE", 2)
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    for txid in range(1, 7):
        sink.commit(sink.stage(group(txid, txid)))
    assert sink.compact(2**20)[:2] == (6, 1)
    assert len(table.files()) == 7
    age = "history.expire.max-snapshot-age-ms"
    assert table.properties()[age] == str(24 * 3600 * 1000)
    table.java(lambda found: found.updateProperties().set(age, "-60000").commit())
    assert sink.compact(2**20) == (0, 0, 0)
    assert table.java(lambda found: len(list(found.snapshots()))) == 1
    assert len([*(table.path / "metadata").glob("snap-*.avro")]) == 1
    sink.commit(sink.stage(group(7, 7)))
    assert sink.compact(2**20)[:2] == (2, 1)
    assert len(table.files()) == 3  # the two until the snapshot goes that took them away
    assert table.numbers() == [1, 2, 3, 4, 5, 6, 7]
    assert sink.committed([LINE]) == [Committed(LINE, 1, 7)]


def test_of_two_that_join_the_same_files_one_wins_and_no_row_comes_twice(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = table.sink(), table.sink()
    for number in range(3):
        write(sink, rows(number), number)
    original = IcebergLog.replace

    def replace(self: IcebergLog, removed: Any, added: Any, since: int) -> None:
        monkeypatch.setattr(IcebergLog, "replace", original)
        first = self.session._jvm.org.apache.iceberg.expressions.Expressions.equal("number", 0)
        loaded(self.session, table.path).newDelete().deleteFromRowFilter(first).commit()
        original(self, removed, added, since)

    monkeypatch.setattr(IcebergLog, "replace", replace)
    assert other.compact(2**20)[:2] == (2, 1)
    assert table.numbers() == [1, 2]
    assert len(other.data_files()) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_jvm_killed_inside_a_commit_leaves_it_done_or_not_and_that_can_be_read(
    table: Table, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Promise 15: with Spark away it restarts Spark and retries; nothing comes twice."""
    sink = table.sink(exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 1, 2))
    original = IcebergLog.commit

    def commit(self: IcebergLog, *arguments: Any) -> None:
        """The JVM is killed before or right after the commit, whose reply is lost."""
        monkeypatch.setattr(IcebergLog, "commit", original)
        if after:
            original(self, *arguments)
        assert table.spark._jvm is not None
        process = table.spark._jvm.process
        process.kill()
        process.wait()
        original(self, *arguments)

    monkeypatch.setattr(IcebergLog, "commit", commit)
    with pytest.raises(SparkDied):
        sink.commit(staged)
    assert sink.committed([LINE]) == [Committed(LINE, 1, int(after))]
    if after:
        # Its rows are in, so whoever thinks it failed must not remove them.
        table.sink(exactly_once=True).fence([Fence(LINE, 2)])
        with pytest.raises(SinkFenced):
            sink.commit(staged)
        sink.discard(staged)
    else:
        sink.commit(staged)
    sink.write(Batch(1, [rows(3)], 1))
    found = table_files.of_iceberg(table.path)["number"].to_pylist()  # faster than a new Spark
    assert sorted(found) == [1, 2, 3]
