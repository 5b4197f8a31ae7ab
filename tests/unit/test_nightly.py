"""`make nightly` goes on after what failed, and names what it could not start."""

import json

import pytest

from tests import nightly
from tests.faults.catalogue import catalogue
from tests.nightly import Part

FINE, BAD = ("true",), ("false",)


@pytest.fixture
def night(monkeypatch, capfd):
    """`night(parts)` plays them: the exit code, the figures, and what was printed."""

    def play(parts, *words):
        monkeypatch.setattr(nightly, "parts", lambda: parts)
        code = nightly.main(words)
        said = capfd.readouterr().out.splitlines()
        return code, json.loads(said[-1]), said

    return play


def test_night_in_which_all_passes_exits_with_zero(night):
    code, figures, _ = night({"one": Part(FINE, 1), "two": Part(FINE, 1)})
    assert (code, figures["run"], figures["passed"]) == (0, 2, 2)
    assert (figures["failed"], figures["not_started"]) == ([], {})


def test_night_goes_on_after_a_part_that_fails(night):
    code, figures, said = night({"one": Part(BAD, 1), "two": Part(FINE, 1)})
    assert (code, figures["run"], figures["passed"]) == (1, 2, 1)
    assert figures["failed"] == ["one"]
    assert "failed: one: it ends with 1" in said


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Part(FINE, 1, needs=(lambda: "it needs root",)), "it needs root"),
        (Part(FINE, 1, before=(BAD,)), "false: it ends with 1"),
        (Part(FINE, 1, before=(("no-such-tool",),)), "No such file or directory"),
    ],
)
def test_night_names_what_could_not_be_started_and_why(night, part, why):
    code, figures, said = night({"one": part, "two": Part(FINE, 1)})
    assert (code, figures["run"], figures["passed"]) == (1, 1, 1)
    assert why in figures["not_started"]["one"]
    assert f"not started: one: {figures['not_started']['one']}" in said


def test_part_that_does_not_end_is_ended(night):
    code, figures, said = night({"one": Part(("sleep", "1000"), 0.001)})
    assert (code, figures["failed"]) == (1, ["one"])
    assert "failed: one: it did not end within 0.001 minutes" in said


def test_parts_are_chosen_by_name(night):
    _, figures, _ = night({"one": Part(BAD, 1), "two": Part(FINE, 1)}, "--parts", "two")
    assert (figures["run"], figures["passed"]) == (1, 1)
    with pytest.raises(SystemExit):
        night({"one": Part(FINE, 1)}, "--parts", "three")


def test_nightly_plays_every_case_of_the_fault_matrix_once():
    parts = nightly.parts()
    played = [
        case
        for name in ("faults", "faults-root", "faults-clock")
        for case in parts[name].command[parts[name].command.index("--cases") + 1].split(",")
    ]
    assert sorted(played) == sorted(catalogue(""))
