from pathlib import Path

import pytest

from tests.faults import rows
from tests.faults.crash import crash_cases
from tests.faults.judge import Outcome
from tests.faults.report import written_into

EVERY = rows.every_row()
ROOT = Path(__file__).resolve().parents[3]
PAGE = "# Reliability\n\n<!-- faults -->\n\nOld.\n\n<!-- end -->\n\nKept.\n"
OUTCOMES = {
    "C07:kill:2": Outcome(duplicates=12, recovery_seconds=4.5),
    "C07:term:2": Outcome(lost=1, recovery_seconds=0.75),
    "K02": Outcome(),
}


def test_each_case_has_its_outcome_repetitions_and_seconds():
    page = written_into(PAGE, crash_cases(), OUTCOMES, "7", 120.0, 2)
    assert page.startswith("# Reliability\n\n<!-- faults -->\n\nMeasured ")
    assert page.endswith("<!-- end -->\n\nKept.\n")
    assert "Old." not in page
    (row,) = [line for line in page.splitlines() if line.startswith("| C07 |")]
    assert "ok ≥1: 12, 4.5 s" in row
    assert "not played" in row
    assert "FAILED ≥1: 0, 0.8 s" in row
    (row,) = [line for line in page.splitlines() if line.startswith("| K02 |")]
    assert row.endswith("| ok |")
    assert EVERY["K02"].expected in row
    assert "2 of 3 cases as promised, 1 records lost" in page


def test_a_page_without_a_place_for_it_is_refused():
    with pytest.raises(KeyError, match="faults"):
        written_into("# Reliability\n", crash_cases(), OUTCOMES, "7", 1.0, 2)


def test_the_page_in_the_documentation_has_a_place_for_it():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert "Measured " in written_into(page, crash_cases(), OUTCOMES, "7", 1.0, 2)
