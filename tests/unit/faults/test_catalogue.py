"""`make faults` plays what it is asked for: every crash point in every way, under both promises."""

import argparse
from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from service.failpoints import OWN, PLACES, VARIABLE, failpoints
from tests.faults.__main__ import Results
from tests.faults.catalogue import Play, catalogue, chosen
from tests.faults.crash import ACTIONS, IN_DELTA, POINTS, crash_cases
from tests.faults.judge import Outcome
from tests.faults.servers import Servers

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
            assert place in PLACES or place.startswith(OWN)
            failpoints({VARIABLE: f"{place}:{point.most}:term"})


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
