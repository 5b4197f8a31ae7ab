"""The report: each suite's part of a page is written anew, and nothing else is touched."""

from pathlib import Path

import pytest

from benchmarks.__main__ import SUITES
from benchmarks.conditions import Conditions
from benchmarks.report import written_into
from benchmarks.result import Goal, Result, Table

ROOT = Path(__file__).resolve().parents[3]
PAGE = """\
# Benchmarks

Written by hand.

<!-- suite: one -->

Old.

<!-- end -->

<!-- suite: two -->

Kept.

<!-- end -->
"""
CONDITIONS = Conditions("2026-01-02", 2, "a processor", "3.11.0", {"numpy": "2.0"}, 0.05)
RESULT = Result(
    "one",
    {"records": 10},
    [Table("Ten records", ("variant", "µs"), [("raw", "1.5")])],
    [Goal("raw: rate", 0.95, 0.9), Goal("raw: CPU", 1.3, 1.25, at_most=True)],
    "What it is.",
)
PROFILE = {
    "samples": 200,
    "functions": [["room.module:Thing.work", 61.7, 90.2], ["room.module:rare", 0.4, 0.4]],
    "threads": [["owner", 80.0], ["librdkafka", 19.6], ["other", 0.4]],
}


def test_only_the_suites_own_part_is_written_anew():
    page = written_into(PAGE, RESULT, CONDITIONS, {})
    assert "Old." not in page
    assert "Written by hand." in page
    assert "Kept." in page
    assert "2026-01-02; 2 cores (a processor)" in page
    assert "What it is." in page
    assert "| raw | 1.5 |" in page
    assert written_into(page, RESULT, CONDITIONS, {}) == page


def test_the_goals_say_what_was_wanted_and_whether_it_was_met():
    page = written_into(PAGE, RESULT, CONDITIONS, {})
    assert "| raw: rate | 0.95 | at least 0.9 | yes |" in page
    assert "| raw: CPU | 1.30 | at most 1.25 | no |" in page
    assert RESULT.json == {
        "suite": "one",
        "records": 10,
        "goals": {
            "raw: rate": {"found": 0.95, "at_least": 0.9, "met": True},
            "raw: CPU": {"found": 1.3, "at_most": 1.25, "met": False},
        },
    }


def test_a_profile_is_summed_up_without_what_hardly_counts():
    page = written_into(PAGE, RESULT, CONDITIONS, {"noop": PROFILE, "columns": PROFILE})
    assert "| `room.module:Thing.work` | 62 | 90 |" in page
    assert "rare" not in page
    assert "| `librdkafka` | 20 | 20 |" in page
    assert "`other`" not in page


def test_a_page_without_a_place_for_the_suite_is_refused():
    with pytest.raises(KeyError, match="suite: one"):
        written_into("# Benchmarks\n", RESULT, CONDITIONS, {})


def test_the_page_of_the_documentation_has_a_place_for_every_suite():
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    for suite in SUITES:
        assert f"Suite {suite}." not in page
        result = Result(suite, {}, [], [], f"Suite {suite}.")
        assert f"Suite {suite}." in written_into(page, result, CONDITIONS, {})
        assert f"\n## {suite}\n" in page


def test_the_conditions_of_this_machine_can_be_told():
    assert "numpy" in str(Conditions.now())
