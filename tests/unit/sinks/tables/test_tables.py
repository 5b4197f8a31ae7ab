"""Delta and Iceberg tables alike, whatever others do to them and whatever is lost."""

from collections import Counter
from unittest.mock import Mock

import pyarrow as pa
import pytest

from tests.support import delta_table, iceberg_table
from tests.support.batches import LINE, SCHEMA, filled, group, put, rows, write
from tests.support.delta_table import age, around_commit, beside, race_together
from topology.errors import SinkFailed, SinkFenced
from topology.sink import Batch, Committed, Compaction

Table = delta_table.Table | iceberg_table.Table
CHANGED = "'orders' was removed or changed while rows were written"


@pytest.fixture(params=[delta_table.Table, iceberg_table.Table], ids=["delta", "iceberg"])
def table(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_processes_that_race_lose_nothing_and_write_nothing_twice(table):
    """Promises 9 and 14: nobody's lock holds them apart."""
    lines = [f"orders[{number}]" for number in range(3)]
    table.fenced(*lines)
    assert race_together(table, lines, 15) == table.numbers()
    assert len(table.files()) == 45
    assert table.sink().committed(lines) == [Committed(line, 1, 15) for line in lines]


def test_fence_after_a_zombies_decision_refuses_its_commit(table, monkeypatch):
    """Promise 9: what was decided on one version is not committed on another."""
    zombie = filled(table)
    staged = zombie.stage(group(2, 2))
    around_commit(monkeypatch, table, lambda: table.fenced(epoch=2))
    with pytest.raises(SinkFenced):
        zombie.commit(staged)
    zombie.discard(staged)
    assert table.numbers() == [1]
    assert len(table.files()) == 1
    assert table.sink().committed([LINE]) == [Committed(LINE, 2, 1)]


@pytest.mark.parametrize("exactly_once", [True, False])
def test_foreign_commit_between_decision_and_commit_is_kept(table, monkeypatch, exactly_once):
    sink = table.fenced()
    around_commit(monkeypatch, table, lambda: table.append(50))
    if exactly_once:
        put(sink, 1, 1)
    else:
        write(sink, rows(1))
    assert table.numbers() == [1, 50]
    assert sink.committed([LINE]) == [Committed(LINE, 1, int(exactly_once))]


@pytest.mark.parametrize("exactly_once", [True, False])
@pytest.mark.parametrize("is_refusal", [False, True], ids=["io", "refused"])
def test_commit_that_landed_without_a_reply_counts_once(
    table, monkeypatch, is_refusal, exactly_once
):
    """Promise 14: the store has the commit, and answers "No such file" or "there already"."""
    error = table.refusal if is_refusal else FileNotFoundError("No such file or directory")
    sink = table.fenced()
    around_commit(monkeypatch, table, after=Mock(side_effect=error))
    if exactly_once:
        put(sink, 1, 1, 2)
    else:
        write(sink, rows(1, 2))
    assert table.numbers() == [1, 2]
    put(sink, 2 if exactly_once else 1, 3)
    assert table.numbers() == [1, 2, 3]


@pytest.mark.parametrize("exactly_once", [True, False])
def test_commit_that_did_not_land_raises_and_may_be_repeated(table, monkeypatch, exactly_once):
    sink = table.fenced()
    staged = sink.stage(group(1, 1) if exactly_once else Batch(1, [rows(1)], 1))
    around_commit(monkeypatch, table, before=Mock(side_effect=ConnectionResetError("gone")))
    with pytest.raises(OSError, match="gone"):
        sink.commit(staged)
    sink.commit(staged)
    assert table.numbers() == [1]
    assert len(table.files()) == 1


def test_table_made_anew_under_the_same_name_stops_the_partition(table):
    """Promise 8: absent is not fresh."""
    sink, plain = table.fenced(), table.sink(exactly_once=False)
    put(sink, 1, 1)
    write(plain, rows(2))
    table.drop()
    for made_anew in (False, True):
        if made_anew:
            write(table.sink(exactly_once=False), rows(9))
        with pytest.raises(SinkFailed, match=CHANGED):
            put(sink, 2, 2)
        with pytest.raises(SinkFailed, match=CHANGED):
            plain.commit(plain.stage(Batch(2, [rows(2)], 1)))
    write(plain, rows(3))  # it fences first, as a run does
    assert table.numbers() == [3, 9]


def test_columns_that_the_table_lacks_are_refused_or_added(table):
    old = filled(table)
    staged = old.stage(group(2, 2))
    more = pa.schema([("value", pa.float64()), *SCHEMA, ("tags", pa.list_(pa.string()))])
    with pytest.raises(SinkFailed, match=r"column 'value' is not in the table; on_new_columns='a"):
        table.sink(more)
    new = {"number": 3, "place": "y", "value": 0.5, "tags": ["a"]}
    write(table.sink(more, on_new_columns="add", exactly_once=False), [new])
    old.commit(staged)
    found = sorted(table.rows(), key=lambda row: row["number"])
    assert [*found[0]] == ["number", "place", "value", "tags"]
    assert found[1:] == [{"number": 2, "place": "x", "value": None, "tags": None}, new]
    for wrong, reason in (
        ({"value": pa.string()}, "column 'value': found string, expected double, as in the tabl"),
        ({"VALUE": pa.int64()}, "column 'VALUE': found 'value' in the table, spelled differently"),
    ):
        with pytest.raises(SinkFailed, match=reason):
            table.sink(pa.schema([*SCHEMA, *wrong.items()]), on_new_columns="add")


def test_dry_run_of_a_compaction_counts_the_files_to_join(table):
    sink = table.sink(partition_by=["place"], exactly_once=False)
    for number in range(3):
        write(sink, rows(number, place="a") + rows(number, place="b"), number + 1)
    before = table.files()
    write(sink, rows(9, place="alone"), 4)
    size = sum(path.stat().st_size for path in before)
    assert sink.compact(1024 * 1024, dry_run=True) == Compaction(6, 2, size)


@pytest.mark.slow
def test_a_writer_loses_nothing_while_its_table_is_maintained(table):
    """Promise 3: 0 lost, 0 twice."""
    filled(table)
    done = Counter[str]()
    if isinstance(table, iceberg_table.Table):
        table.set_properties(iceberg_table.EXPIRE_AT_ONCE)

    def maintain():
        if isinstance(table, delta_table.Table):
            orphan = table.path / f"part-{done['removed']}.parquet"
            orphan.write_bytes(b"left by a process that was killed")
            age(orphan, 8)
            for path in sorted(table.log.glob("[0-9]*"))[:-5]:
                age(path, 31)
            done["replaced"] += table.sink().compact(1024 * 1024).files_replaced
            done["removed"] += table.sink().vacuum(24).files_removed
        done["expired"] += table.sink().expire().versions_removed

    beside(table, 30, maintain)
    lines = [LINE, "orders[1]"]
    assert table.sink().committed(lines) == [Committed(LINE, 1, 1), Committed(lines[1], 1, 30)]
    wanted = [1, *range(1001, 1031)]
    if isinstance(table, delta_table.Table):
        assert table.listed_numbers() == wanted
        assert min(done["replaced"], done["removed"]) > 0
        assert int(table.entries()[0].stem) > 0  # delta-rs removes old entries at commits, too
    else:
        assert table.numbers() == wanted
        assert done["expired"] > 0
        assert table.named() <= table.on_disk()
