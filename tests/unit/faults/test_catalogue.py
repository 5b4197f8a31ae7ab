"""`make faults` plays what it is asked for: every crash point in every way, under both promises."""

import argparse
import re
from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.faults import rows
from tests.faults.__main__ import Results
from tests.faults.catalogue import Play, catalogue, chosen
from tests.faults.crash import ACTIONS, IN_DELTA, POINTS, crash_cases
from tests.faults.judge import Outcome
from tests.faults.rows import Row
from tests.faults.servers import Servers
from tests.support.failpoints import failpoint
from tests.support.marks import marks_of

EVERY = list(crash_cases())


def test_crash_points_are_hit_in_each_way_under_each_guarantee():
    ways = [f"{action}:{replicas}" for action in ACTIONS for replicas in (1, 2)]
    assert [f"{point}:{way}" for point in POINTS for way in ways] == EVERY
    assert set(EVERY) <= set(catalogue("1"))
    guarantees, held = defaultdict(set), Counter()
    for case in crash_cases().values():
        guarantees[case.point].add(case.guarantee)
        held[case.action, case.guarantee] += 1
    assert guarantees == {name: set(point.places) for name, point in POINTS.items()}
    assert min(held.values()) >= 8
    assert {each.id for each in crash_cases().values() if each.output == "delta"} == IN_DELTA


def test_every_place_is_one_that_a_failpoint_understands():
    for point in POINTS.values():
        for place in filter(None, point.places.values()):
            failpoint(f"{place}:{point.most}:term")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("C07", [each for each in EVERY if each.startswith("C07:")]),
        ("C07:kill", ["C07:kill:1", "C07:kill:2"]),
        ("C07:kill:2,C01:term:1", ["C07:kill:2", "C01:term:1"]),
        ("K02,C07:stop:1", ["K02", "C07:stop:1"]),
    ],
)
def test_a_case_is_asked_for_by_its_id_or_the_beginning(asked, found):
    assert chosen(asked, [*EVERY, "K02"]) == found


@pytest.mark.parametrize("asked", ["", "C0", "C19", "C07:hug", "C07:kill:3"])
def test_unknown_case_is_rejected_with_the_known_ones(asked):
    with pytest.raises(argparse.ArgumentTypeError, match="expected one of C01, C02"):
        chosen(asked, EVERY)


def test_results_count_failed_and_skipped_cases(servers):
    results = Results(ends=float("inf"))
    assert not results.is_good, "nothing was played"
    results.play("C01:kill:1", Play("", lambda _: Outcome(duplicates=3)), servers)
    assert results.is_good
    bad = Outcome(lost=2, unexplained_duplicates=1)
    results.play("C01:kill:2", Play("", lambda _: bad), servers)
    results.ends = 0.0
    results.play("C02:kill:1", Play("", lambda _: Outcome()), servers)
    assert not results.is_good
    assert results.figures("7", 12.3) == {
        "cases": 2, "passed": 1, "lost": 2, "duplicates": 3, "unexplained_duplicates": 1,
        "skipped": 1, "failed": ["C01:kill:2"], "seconds": 12, "seed": "7",
    }  # fmt: skip


def raise_an_error():
    raise AssertionError("not within 90 s")


@pytest.mark.parametrize("ends", [lambda: Outcome(lost=1), raise_an_error])
def test_folder_of_a_failed_case_is_kept_and_no_other(servers, tmp_path, ends):
    def write_and(ends):
        def case(trial):
            (trial.folder / "log").write_text("so it was")
            return ends()

        return Play("", lambda given: given.play("topologies", case))

    keeping = replace(servers, keep=tmp_path / "kept")
    results = Results(ends=float("inf"))
    results.play("C01:kill:1", write_and(ends), keeping)
    results.play("C02:kill:1", write_and(Outcome), keeping)
    results.play("C01:kill:2", write_and(ends), servers)
    [log] = tmp_path.rglob("log")
    assert log.parent.parent == tmp_path / "kept" / "C01-kill-1"


@pytest.fixture
def servers(tmp_path):
    """Servers that are not started: nobody asks them."""
    return Servers(EmbeddedKafka(tmp_path / "k"), EmbeddedZooKeeper(tmp_path / "z"), tmp_path)


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
