"""The oracle of the crash matrix sees what is lost, what is repeated, and what nobody issued."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.acceptance import feed
from tests.acceptance.feed import is_refused
from tests.acceptance.stored import Stored
from tests.faults.judge import Break, Found, Guarantee, Outcome, judge

PART = ("t.in-a", 0)
ENDS = {PART: 20}
REFUSED = [offset for offset in range(20) if is_refused(offset)]
KEPT = [offset for offset in range(20) if not is_refused(offset)]
WINDOW = Break({PART: Stored(5, 1, "a")}, {PART: 10})  # 5 to 9 were not committed


def found(**changes: Any) -> Found:
    rows = Counter(feed.row(PART, offset) for offset in KEPT)
    letters = Counter((PART, offset) for offset in REFUSED)
    effects = Counter(row.split(" ")[0] for row in rows)
    return replace(Found(rows, letters, effects), **changes)


def judged(there: Found, guarantee: Guarantee = "at least once", *breaks: Break) -> Outcome:
    return judge(there, ENDS, breaks, guarantee, [])


def twice(offset: int) -> Found:
    return found(rows=found().rows + Counter([feed.row(PART, offset)]))


def test_what_is_as_it_must_be_is_good():
    assert judged(found()) == Outcome()


def test_a_row_that_is_lost_is_counted_and_named():
    outcome = judged(found(rows=found().rows - Counter([feed.row(PART, KEPT[3])])))
    assert outcome.lost == 1
    assert f"t.in-a:0:{KEPT[3]}" in outcome.said[0]


def test_a_letter_that_is_lost_is_counted():
    assert judged(found(letters=Counter())).lost == len(REFUSED)


def test_a_side_effect_that_never_was_is_told():
    assert not judged(found(effects=Counter())).is_good


@pytest.mark.parametrize(
    ("offset", "guarantee", "breaks", "is_explained"),
    [
        (5, "at least once", [WINDOW], True),
        (9, "at least once", [WINDOW], True),
        (4, "at least once", [WINDOW], False),
        (10, "at least once", [WINDOW], False),
        (5, "at least once", [], False),
        (5, "exactly once", [WINDOW], False),
    ],
)
def test_row_may_repeat_only_within_the_window(offset, guarantee, breaks, is_explained):
    outcome = judged(twice(offset), guarantee, *breaks)
    assert outcome.duplicates == 1
    assert outcome.unexplained_duplicates == (0 if is_explained else 1)
    assert outcome.is_good is is_explained


def test_repetitions_beyond_the_windows_are_unexplained():
    rows = found().rows + Counter({feed.row(PART, 5): 2})
    assert judged(found(rows=rows), "at least once", WINDOW).unexplained_duplicates == 1
    assert judged(found(rows=rows), "at least once", WINDOW, WINDOW).is_good


def test_letter_may_repeat_within_the_window():
    letters = found().letters + Counter([(PART, 7)])
    assert judged(found(letters=letters), "exactly once", WINDOW).is_good
    assert not judged(found(letters=letters), "exactly once").is_good


def test_rows_and_letters_of_no_record_are_told():
    strange = found(rows=found().rows + Counter([feed.row(PART, 99)]))
    assert "rows are of no record" in judged(strange).said[0]
    wrong = found(rows=found().rows + Counter(["t.in-a:0:1 17"]))
    assert "rows are of no record" in judged(wrong).said[0]
    strange = found(letters=found().letters + Counter([(PART, 3)]))
    assert "not refused" in judged(strange).said[0]


def test_a_step_back_of_what_is_stored_is_told():
    assert judge(found(), ENDS, [], "exactly once", ["7 -> 5"]).said == ("7 -> 5",)
