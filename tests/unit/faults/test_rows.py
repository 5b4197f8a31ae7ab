"""The rows of the fault matrix: each names tests that exist, and pytest plays them."""

import re

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.faults import rows
from tests.faults.judge import Outcome
from tests.faults.rows import Row
from tests.faults.servers import Servers
from tests.support.marks import marks_of

REPORT = '<testsuites><testsuite tests="{}" skipped="{}" errors="0" failures="0"/></testsuites>'


def test_every_row_names_tests_that_exist_once():
    for name, row in rows.every_row().items():
        assert re.fullmatch(r"[KDZPRSBO]\d\d", name)
        assert row.expected
        assert row.signal
        assert row.tests


def test_each_test_that_is_left_to_the_matrix_is_in_a_row():
    played = {test for row in rows.every_row().values() for test in row.tests}
    left = {
        f"{path.relative_to(rows.ROOT)}::{test}"
        for path in (rows.ROOT / "tests").rglob("test_*.py")
        for test, marks in marks_of(path).items()
        if "faults" in marks
    }
    assert left
    assert left - played == set(), "nobody else runs it"


def test_row_of_an_unknown_test_is_refused(tmp_path, monkeypatch):
    matrix = tmp_path / "matrix.toml"
    matrix.write_text('[K01]\nexpected = ""\nsignal = ""\ntests = ["test_nothing"]\n')
    monkeypatch.setattr(rows, "MATRIX", matrix)
    with pytest.raises(ValueError, match=r"row K01: .*test_nothing"):
        rows.every_row.__wrapped__()


def test_a_row_without_tests_is_not_good(servers):
    assert not rows.play("K01", Row("it goes on", "", ()), servers).is_good


def test_a_test_that_passes_is_good_and_runs_once_for_all_rows(servers, tmp_path):
    runs = tmp_path / "runs"
    row = written(tmp_path, f"def test_it():\n    open({str(runs)!r}, 'a').write('x')\n")
    assert [rows.play(name, row, servers) for name in ("K01", "K02")] == [Outcome(), Outcome()]
    assert runs.read_text() == "x"


@pytest.mark.parametrize(
    "test",
    [
        "def test_it():\n    assert False\n",
        "import pytest\ndef test_it():\n    pytest.skip('not here')\n",
        "def not_a_test():\n    pass\n",
    ],
    ids=["fails", "is skipped", "is none"],
)
def test_matrix_row_fails_if_its_test_fails_or_is_skipped(servers, tmp_path, test):
    outcome = rows.play("K01", written(tmp_path, test), servers)
    assert not outcome.is_good
    assert outcome.said


def test_what_is_skipped_did_not_run():
    assert rows.counted(REPORT.format(5, 2)) == (3, 2)


def written(folder, test):
    path = folder / "test_row.py"
    path.write_text(test)
    return Row("it goes on", "", (f"{path}::test_it",))


@pytest.fixture
def servers(tmp_path):
    """Servers that are not started: nobody asks them."""
    return Servers(EmbeddedKafka(tmp_path / "k"), EmbeddedZooKeeper(tmp_path / "z"), tmp_path)
