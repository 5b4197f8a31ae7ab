"""Files that last long come first."""

from pathlib import Path

from tests.longest_first import LONGEST, place

TESTS = Path(__file__).resolve().parents[1]


def test_every_file_that_is_named_is_there():
    assert [file for file in LONGEST if not (TESTS / file).is_file()] == []


def test_the_longest_come_first_and_the_others_keep_their_order():
    first, second = (f"tests/{file}::test[a::b]" for file in LONGEST[:2])
    others = ["tests/unit/test_b.py::test", "tests/unit/test_a.py::TestA::test"]
    assert sorted([others[0], second, others[1], first], key=place) == [first, second, *others]
