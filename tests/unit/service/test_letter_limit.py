"""When too many records become dead letters."""

import pytest

from service.errors import TooManyDeadLetters
from service.pipeline.failures import DeadLetterLimit
from service.pipeline.trees import Tally


def feed(limit: DeadLetterLimit, tally: Tally, letters: int, good: int) -> None:
    """Let records resolve one by one, the bad ones first."""
    for _ in range(letters):
        tally.dead_lettered += 1
        limit.look(tally)
    for number in range(good):
        if number % 2:
            tally.sunk += 1
        else:
            tally.filtered += 1
        limit.look(tally)


def test_more_than_the_part_that_is_allowed_ends_the_run() -> None:
    tally = Tally()
    limit = DeadLetterLimit(0.2, of_records=100)
    feed(DeadLetterLimit(), Tally(), 5_000, 0)
    feed(DeadLetterLimit(0.1, of_records=100), Tally(), 99, 0)
    feed(limit, tally, 20, 80)
    feed(limit, tally, 20, 80)
    with pytest.raises(TooManyDeadLetters, match=r"of the last \d+ resolved records") as raised:
        feed(limit, tally, 100, 0)
    assert raised.value.letters > 0.2 * raised.value.records
    assert 100 <= raised.value.records < 120
    assert tally.dead_lettered < 40 + 20 + 20, "it is noticed soon"


def test_many_good_records_before_do_not_hide_bad_ones_now() -> None:
    tally = Tally()
    limit = DeadLetterLimit(0.5, of_records=100)
    feed(limit, tally, 0, 10_000)
    with pytest.raises(TooManyDeadLetters):
        feed(limit, tally, 70, 0)


def test_bad_records_long_ago_do_not_count() -> None:
    tally = Tally()
    limit = DeadLetterLimit(0.5, of_records=100)
    feed(limit, tally, 45, 100)
    feed(limit, tally, 45, 100)
    tally.dead_lettered += 40
    tally.sunk += 4_000  # at once, more than is looked back at
    limit.look(tally)


def test_a_limit_of_nothing_ends_at_the_first_bad_record_that_is_looked_at() -> None:
    tally = Tally(sunk=10)
    with pytest.raises(TooManyDeadLetters):
        feed(DeadLetterLimit(0.0, of_records=10), tally, 1, 0)
