"""Tests on real servers are in the folders that `make integration` looks into, and only there."""

import re
from pathlib import Path

from tests.support.marks import marks_of

TESTS = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"\bmark\.(integration|acceptance)\b")
MAKEFILE = (TESTS.parent / "Makefile").read_text(encoding="utf-8")


def test_every_test_on_servers_is_where_make_looks_for_it():
    (told,) = re.findall(r"pytest (.*) -m \"\(integration or acceptance\)", MAKEFILE)
    folders = [TESTS.parent / each for each in told.split()]
    marked = [
        file for file in TESTS.rglob("test_*.py") if MARKED.search(file.read_text(encoding="utf-8"))
    ]
    assert marked
    assert [file for file in marked if not any(map(file.is_relative_to, folders))] == []


def test_folders_that_the_fast_tier_ignores_have_no_test_of_it():
    ignored = re.findall(r"--ignore=(\S+)", MAKEFILE)
    assert ignored
    kinds = {"integration", "acceptance", "faults", "deep"}
    fast = [
        f"{file}::{test}"
        for folder in ignored
        for file in (TESTS.parent / folder).rglob("test_*.py")
        for test, marks in marks_of(file).items()
        if not marks & kinds
    ]
    assert fast == []
