from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.acceptance import feed, wanted
from tests.acceptance.feed import is_refused
from tests.acceptance.stored import Stored
from tests.acceptance.stores import CountsInDelta, Own, Site, Store, Upserts
from tests.acceptance.trial import places
from tests.acceptance.wanted import ROWS
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


COUNTS = (700, 500)
EVERY = list(places(*COUNTS))
SITE = Site("trial", Path("nowhere"), "")


def records(*ends):
    """The first records of each partition."""
    return list(places(*ends))


def table(rows):
    """Return what a table with keys has when these were written in order."""
    made = {}
    for place, copy in rows:
        key = wanted.slot_of(place), copy
        made.pop(key, None)
        if not wanted.is_gone(int(place.split(":")[1])):
            made[key] = place
    return made


class Appended(Store):
    """Has the rows it is told."""

    def __init__(self, rows):
        super().__init__(SITE, ROWS)
        self._told = list(rows)

    def sink(self):
        raise NotImplementedError

    def rows(self):
        return self._told


class Keyed(Upserts):
    """Has the rows it is told."""

    def __init__(self, rows):
        super().__init__(SITE, ROWS)
        self._told = [(place, copy) for (_, copy), place in rows.items()]

    def rows(self):
        return self._told


class Counted(CountsInDelta):
    """Has counted the rows it is told."""

    def __init__(self, rows):
        super().__init__(SITE, ROWS)
        self._told = Counter((wanted.slot_of(place), copy) for place, copy in rows)

    def counts(self):
        return [(slot, copy, n) for (slot, copy), n in self._told.items()]


def test_rows_below_the_stored_offset_must_exist():
    rows = list(wanted.rows(ROWS, records(300, 100)))
    for stored in ({}, {0: 120}, {0: 300, 1: 100}):
        found = Appended(rows).found(stored, EVERY)
        assert not found.missing
        assert not found.surplus
    found = Appended(rows).found({0: 302, 1: 100}, EVERY)
    assert found.missing == {("0:300", 0): 1, ("0:300", 1): 1, ("0:301", 0): 1, ("0:301", 1): 1}


def test_repeated_and_unknown_rows_are_surplus():
    rows = list(wanted.rows(ROWS, records(300, 100)))
    found = Appended([*rows, rows[7], ("9:9", 0)]).found({0: 10}, EVERY)
    assert found.surplus == {rows[7]: 1, ("9:9", 0): 1}
    assert not found.missing


def test_a_state_has_counted_each_row_once():
    rows = list(wanted.rows(ROWS, records(300, 100)))
    found = Counted(rows).found({0: 300, 1: 100}, EVERY)
    assert (found.missing, found.surplus) == (Counter(), Counter())
    assert Counted(rows[1:]).found({0: 300}, EVERY).missing == {("0-0", 0): 1}
    every = list(wanted.rows(ROWS, EVERY))
    assert Counted([*every, rows[0]]).found({}, EVERY).surplus == {("0-0", 0): 1}


def test_keyed_table_matches_a_prefix_of_each_partition():
    for ends in ((0, 0), (1, 0), (300, 100), (451, 499), COUNTS):
        made = table(wanted.rows(ROWS, records(*ends)))
        for stored in ({}, {0: ends[0] // 2}, dict(enumerate(ends))):
            found = Keyed(made).found(stored, EVERY)
            assert not found.missing, (ends, stored)
            assert not found.surplus
    made = table(wanted.rows(ROWS, records(300, 100)))
    assert Keyed(made).found({0: 302}, EVERY).missing


def test_transaction_rewritten_after_a_later_one_is_found():
    rows = list(wanted.rows(ROWS, records(600, 0)))
    once = [row for row in rows if 200 <= int(row[0].split(":")[1]) < 400]
    found = Keyed(table([*rows, *once])).found({0: 600}, EVERY)
    assert found.missing.total() > 100


def test_a_key_that_is_there_twice_is_too_much():
    keyed = Keyed(table(wanted.rows(ROWS, records(300, 100))))
    keyed._told.append(keyed._told[3])
    assert keyed.found({}, EVERY).surplus.total() == 1


def test_a_file_of_sqlite_that_nobody_made_has_no_rows(tmp_path):
    assert Own(Site("trial", tmp_path, ""), ROWS).rows() == []


@pytest.mark.parametrize("name", [ROWS, wanted.OTHERS])
def test_few_records_of_each_sort_are_in_each_transaction(name):
    """So that every commit has rows that do not fit, and others that failed once."""
    offsets = range(200, 400)
    assert any(map(wanted.is_rejected, offsets))
    assert any(map(wanted.is_unfit, offsets))
    assert any(map(wanted.fails_once, offsets))
    assert len(list(wanted.rows(name, ((0, offset) for offset in offsets)))) > 150
