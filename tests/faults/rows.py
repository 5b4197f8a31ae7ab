"""The rows of the fault matrix (matrix.toml), and pytest to play them."""

import functools
import os
import re
import subprocess
import sys
import tempfile
import threading
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from tests.faults.judge import Outcome
from tests.faults.servers import Servers
from tests.support.patience import seconds

ROOT = Path(__file__).parents[2]
MATRIX = Path(__file__).with_name("matrix.toml")
_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
_SECONDS = seconds(900.0)

_played: "dict[tuple[str, ...], Outcome]" = {}
_playing: "dict[tuple[str, ...], threading.Lock]" = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Row:
    """One fault: the expected outcome, the signal an operator sees, and pytest's node ids."""

    expected: str
    signal: str
    tests: tuple[str, ...]


@functools.cache
def every_row() -> dict[str, Row]:
    """Load the matrix. Raises ValueError for a test that does not exist, or exists twice."""
    nodes = _nodes()
    table = tomllib.loads(MATRIX.read_text(encoding="utf-8"))
    rows = {}
    for name, facts in table.items():
        found = [nodes.get(test, []) for test in facts["tests"]]
        wrong = [test for test, each in zip(facts["tests"], found, strict=True) if len(each) != 1]
        if wrong:
            raise ValueError(f"row {name}: expected one test of each name, not of {wrong}")
        tests = tuple(each for [each] in found)
        rows[name] = Row(facts["expected"], facts["signal"], tests)
    return rows


def _nodes() -> dict[str, list[str]]:
    """Map names of tests, with and without their file's, to node ids."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test in _TEST.findall(path.read_text(encoding="utf-8")):
            for name in (test, f"{path.name}::{test}"):
                found.setdefault(name, []).append(f"{path.relative_to(ROOT)}::{test}")
    return found


def play(name: str, row: Row, servers: Servers) -> Outcome:
    """Run a row's tests, once if several rows share them; good if all ran and passed."""
    del servers  # tests start their own
    if not row.tests:
        return Outcome(said=(f"row {name} has no test",))
    with _lock:
        once = _playing.setdefault(row.tests, threading.Lock())
    with once:
        if row.tests not in _played:
            _played[row.tests] = _run(row.tests)
        return _played[row.tests]


def _run(nodes: tuple[str, ...]) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
                   f"--junit-xml={report}", *nodes]  # fmt: skip
        try:
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(said=(f"not within {_SECONDS:g} s: {' '.join(nodes)}",))
        if ended.returncode or not report.exists():
            return Outcome(said=(f"pytest ends with {ended.returncode}:\n{ended.stdout}",))
        run, skipped = counted(report.read_text(encoding="utf-8"))
    if skipped or not run:
        return Outcome(said=(f"{run} tests ran, {skipped} were skipped:\n{ended.stdout}",))
    return Outcome()


def counted(report: str) -> tuple[int, int]:
    """Return the numbers of tests that ran and that were skipped, by a JUnit report."""
    suites = list(ET.fromstring(report).iter("testsuite"))  # noqa: S314 - pytest wrote it
    skipped = sum(int(each.get("skipped", 0)) for each in suites)
    return sum(int(each.get("tests", 0)) for each in suites) - skipped, skipped
