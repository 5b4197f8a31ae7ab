"""When too many records become dead letters."""

import pytest

from service.errors import TooManyDeadLetters
from service.pipeline.failures import DeadLetterLimit
from service.pipeline.trees import OutcomeCounters


def feed(limit: DeadLetterLimit, counters: OutcomeCounters, letters: int, good: int) -> None:
    """Let records resolve one by one, the bad ones first."""
    for _ in range(letters):
        counters.dead_lettered += 1
        limit.look(counters)
    for number in range(good):
        if number % 2:
            counters.written += 1
        else:
            counters.filtered += 1
        limit.look(counters)


def test_ratio_above_the_limit_ends_the_run() -> None:
    counters = OutcomeCounters()
    limit = DeadLetterLimit(0.2, of_records=100)
    feed(DeadLetterLimit(), OutcomeCounters(), 5_000, 0)
    feed(DeadLetterLimit(0.1, of_records=100), OutcomeCounters(), 99, 0)
    feed(limit, counters, 20, 80)
    feed(limit, counters, 20, 80)
    with pytest.raises(TooManyDeadLetters, match=r"of the last \d+ resolved records") as raised:
        feed(limit, counters, 100, 0)
    assert raised.value.letters > 0.2 * raised.value.records
    assert 100 <= raised.value.records < 120
    assert counters.dead_lettered < 40 + 20 + 20, "it is noticed soon"


def test_earlier_good_records_hide_no_bad_ones() -> None:
    counters = OutcomeCounters()
    limit = DeadLetterLimit(0.5, of_records=100)
    feed(limit, counters, 0, 10_000)
    with pytest.raises(TooManyDeadLetters):
        feed(limit, counters, 70, 0)


def test_old_bad_records_do_not_count() -> None:
    counters = OutcomeCounters()
    limit = DeadLetterLimit(0.5, of_records=100)
    feed(limit, counters, 45, 100)
    feed(limit, counters, 45, 100)
    counters.dead_lettered += 40
    counters.written += 4_000  # at once, more than is looked back at
    limit.look(counters)


def test_zero_ratio_ends_at_the_first_bad_record() -> None:
    counters = OutcomeCounters(written=10)
    with pytest.raises(TooManyDeadLetters):
        feed(DeadLetterLimit(0.0, of_records=10), counters, 1, 0)
