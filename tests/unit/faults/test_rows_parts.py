"""The rows about rebalances, sinks, bolts and operations name tests that exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.faults.rows_parts import ROWS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("row", ROWS)
def test_every_test_that_plays_a_row_exists(row):
    assert re.fullmatch(r"[RSBO]\d\d", row)
    assert ROWS[row].expected
    assert ROWS[row].signal
    assert ROWS[row].tests
    for node in ROWS[row].tests:
        path, _, name = node.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, node
