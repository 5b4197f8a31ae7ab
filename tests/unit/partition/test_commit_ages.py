"""How long stored offsets have stood still."""

from dataclasses import replace

import pytest

from partition.consumer import CommitAges
from partition.ledger import Ledger
from partition.manager import PartitionStatistics
from partition.records import Partition


def standing(committed, log_end, number=0):
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
def ages():
    return CommitAges()


def age(ages, now, committed, log_end):
    (part,) = ages.of([standing(committed, log_end)], now)
    assert replace(part, commit_age_seconds=0.0) == standing(committed, log_end)
    return part.commit_age_seconds


def test_it_grows_while_the_offset_stands_short_of_the_log_s_end(ages):
    assert [age(ages, now, 5, 9) for now in (10.0, 11.0, 14.0)] == [0, 1, 4]


def test_a_partition_that_was_away_begins_anew(ages):
    assert age(ages, 10.0, 5, 9) == 0
    assert list(ages.of([], 20.0)) == []
    assert age(ages, 30.0, 5, 9) == 0
