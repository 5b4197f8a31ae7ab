"""How long stored offsets have stood still."""

from dataclasses import replace

import pytest

from partition.commits import CommitAges
from partition.ledger import Ledger
from partition.manager import PartitionStatistics
from partition.records import Partition


def standing(committed: int, log_end: int, number: int = 0) -> PartitionStatistics:
    return PartitionStatistics(
        Partition("orders", number),
        Ledger(committed).statistics(),
        committed=committed,
        read=0,
        retried=0,
        pending_bytes=0,
        oldest_pending_seconds=0.0,
        log_end=log_end,
    )


@pytest.fixture
def ages() -> CommitAges:
    return CommitAges()


def age(ages: CommitAges, now: float, committed: int, log_end: int) -> float:
    (part,) = ages.of([standing(committed, log_end)], now)
    assert replace(part, commit_age_seconds=0.0) == standing(committed, log_end)
    return part.commit_age_seconds


def test_it_grows_while_the_offset_stands_short_of_the_log_s_end(ages):
    assert [age(ages, now, 5, 9) for now in (10.0, 11.0, 14.0)] == [0, 1, 4]


def test_it_begins_anew_when_the_offset_moves(ages):
    assert [age(ages, 10.0, 5, 9), age(ages, 12.0, 6, 9), age(ages, 15.0, 6, 9)] == [0, 0, 3]


def test_a_log_that_nobody_writes_to_has_no_age_and_none_counts_when_somebody_does(ages):
    assert [age(ages, now, 9, 9) for now in (10.0, 5_000.0)] == [0, 0]
    assert [age(ages, 5_001.0, 9, 10), age(ages, 5_003.0, 9, 10)] == [1, 3]


def test_a_partition_that_was_away_begins_anew(ages):
    assert age(ages, 10.0, 5, 9) == 0
    assert list(ages.of([], 20.0)) == []
    assert age(ages, 30.0, 5, 9) == 0


def test_each_partition_has_its_own(ages):
    list(ages.of([standing(1, 9, 0), standing(1, 9, 1)], 10.0))
    found = ages.of([standing(2, 9, 0), standing(1, 9, 1)], 12.0)
    assert [part.commit_age_seconds for part in found] == [0, 2]
