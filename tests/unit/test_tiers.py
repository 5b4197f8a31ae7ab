"""Tests on real servers are in the folders that `make integration` looks into."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"\bmark\.(integration|acceptance)\b")


def test_every_test_on_servers_is_where_make_looks_for_it():
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
    (told,) = re.findall(r"pytest (.*) -m \"\(integration or acceptance\)", makefile)
    folders = [TESTS.parent / each for each in told.split()]
    marked = [
        file for file in TESTS.rglob("test_*.py") if MARKED.search(file.read_text(encoding="utf-8"))
    ]
    assert marked
    assert [file for file in marked if not any(map(file.is_relative_to, folders))] == []
