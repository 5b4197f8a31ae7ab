"""What becomes of a partition whose Storm offset is to be imported."""

import pytest

from partition.errors import StoreCorrupt, StormUnreadable
from partition.interfaces import Log, StoredOffset
from partition.records import Partition, Position
from partition.storm_offsets import StormOffset
from service.cli.import_storm import ImportRow, judge_import

P = Partition("t", 3)
LOG = Log(start=10, end=20, topic_id="id")


def judged(
    offset: int | None = 15,
    log: Log | None = LOG,
    stored: object = None,
    *,
    allow_loss: bool = False,
) -> ImportRow:
    storm = None if offset is None else StormOffset(offset, "/s/partition_3", 7, "by wc")
    return judge_import(P, storm, log, stored, "ours", allow_loss=allow_loss)


def stored(offset: int, topology: str = "ours") -> StoredOffset:
    return StoredOffset(Position(offset), topology)


@pytest.mark.parametrize("offset", [10, 15, 20])
def test_an_offset_inside_the_log_is_imported_with_the_topic_s_id(offset):
    row = judged(offset)
    assert (row.outcome, row.note, row.lag) == ("to_import", "by wc", 20 - offset)
    assert row.position == Position(offset, None, "id")


def test_an_offset_above_the_log_s_end_is_refused_and_nothing_lets_it_through():
    """Storm 6: an offset above the end belongs to another log; it is not moved to this one's."""
    for allow_loss in (False, True):
        row = judged(21, allow_loss=allow_loss)
        assert row.outcome == "refused"
        assert "is 1 above the log's end 20" in row.note
        assert row.lag == -1


def test_an_offset_below_the_log_s_start_is_refused_unless_that_is_asked_for():
    row = judged(7)
    assert row.outcome == "refused"
    assert "3 offsets are deleted" in row.note
    assert "--allow-loss" in row.note
    row = judged(7, allow_loss=True)
    assert (row.outcome, row.position.offset) == ("to_import", 7)
    assert "on_data_loss decides" in row.note


@pytest.mark.parametrize("there", [14, 16, 0])
def test_another_stored_offset_is_never_overwritten(there):
    row = judged(15, stored=stored(there))
    assert row.outcome == "refused"
    assert f"has stored offset {there} already" in row.note
    assert row.stored_offset == there


def test_what_another_topology_stored_or_nobody_can_read_is_never_overwritten():
    assert "topology 'wc' has stored offset 15" in judged(stored=stored(15, "wc")).note
    error = StoreCorrupt("/headrace/p/t/partition_3", "?")
    row = judged(stored=error)
    assert (row.outcome, row.note, row.stored_offset) == ("refused", str(error), None)


def test_a_partition_without_a_storm_node_is_told_and_not_refused():
    row = judged(None)
    assert row.outcome == "no_storm_node"
    assert "begins it at the log's start" in row.note
    assert "stored offset 4" in judged(None, stored=stored(4)).note
    error = StoreCorrupt("/headrace/p/t/partition_3", "?")
    assert str(error) in judged(None, stored=error).note


def test_a_node_of_a_partition_that_the_topic_does_not_have_is_refused():
    row = judged(log=None)
    assert row.outcome == "refused"
    assert "does not have" in row.note


def test_a_node_that_cannot_be_read_is_refused_and_says_why():
    """Storm 8: what cannot be read never becomes a default offset."""
    error = StormUnreadable("/s/partition_3", "''", "an offset")
    row = judge_import(P, error, LOG, None, "ours", allow_loss=True)
    assert (row.outcome, row.note, row.storm) == ("refused", str(error), None)
    with pytest.raises(AssertionError):
        _ = row.position


def test_a_row_s_facts_are_plain():
    assert judged(15, stored=stored(15)).as_json() == {
        "outcome": "stored_already",
        "note": "by wc",
        "storm_offset": 15,
        "storm_node": "/s/partition_3",
        "storm_version": 7,
        "log_start": 10,
        "log_end": 20,
        "lag": 5,
        "stored_offset": 15,
    }
    facts = judged(None, log=None).as_json()
    assert {key for key, value in facts.items() if value is not None} == {"outcome", "note"}
