from collections import Counter
from dataclasses import replace

import pytest

from tests.acceptance import feed
from tests.acceptance.feed import is_refused
from tests.acceptance.stored import Stored
from tests.faults.judge import Break, Found, Outcome, judge

PART = ("t.in-a", 0)
ENDS = {PART: 20}
REFUSED = [offset for offset in range(20) if is_refused(offset)]
KEPT = [offset for offset in range(20) if not is_refused(offset)]
WINDOW = Break({PART: Stored(5, 1, "a")}, {PART: 10})  # 5 to 9 were not committed


def found(**changes):
    rows = Counter(feed.row(PART, offset) for offset in KEPT)
    letters = Counter((PART, offset) for offset in REFUSED)
    effects = Counter(row.split(" ")[0] for row in rows)
    return replace(Found(rows, letters, effects), **changes)


def judged(there, guarantee="at least once", *breaks):
    return judge(there, ENDS, breaks, guarantee, [])


def twice(offset):
    return found(rows=found().rows + Counter([feed.row(PART, offset)]))


@pytest.mark.parametrize(
    ("changes", "lost", "said"),
    [
        ({}, 0, ""),
        ({"rows": found().rows - Counter([feed.row(PART, KEPT[3])])}, 1, f"t.in-a:0:{KEPT[3]}"),
        ({"letters": Counter()}, len(REFUSED), ""),
        ({"effects": Counter()}, 0, "side effects"),
        ({"rows": found().rows + Counter([feed.row(PART, 99)])}, 0, "rows are of no record"),
        ({"rows": found().rows + Counter(["t.in-a:0:1 17"])}, 0, "rows are of no record"),
        ({"letters": found().letters + Counter([(PART, 3)])}, 0, "not refused"),
    ],
)
def test_what_is_lost_is_counted_and_what_is_wrong_is_told(changes, lost, said):
    outcome = judged(found(**changes))
    assert outcome.lost == lost
    assert said in " ".join(outcome.said[:1])
    assert outcome.is_good == (not changes)
    assert changes or outcome == Outcome()


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


def test_a_step_back_of_what_is_stored_is_told():
    assert judge(found(), ENDS, [], "exactly once", ["7 -> 5"]).said == ("7 -> 5",)
