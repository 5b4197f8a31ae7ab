"""The rows of the fault matrix: one table for each area, and pytest to play them."""

import importlib
import os
import pkgutil
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import tests.faults
from tests.faults.outcome import Outcome
from tests.faults.row import Row
from tests.faults.servers import Servers
from tests.support.patience import seconds

ROOT = Path(__file__).parents[2]
TABLES = "rows_"  # so begin the modules that have one, as ROWS
_SECONDS = seconds(900.0)
_SHOWN_LINES = 15

_played: "dict[tuple[str, ...], Outcome]" = {}
_playing: "dict[tuple[str, ...], threading.Lock]" = {}
_lock = threading.Lock()


def every_row() -> dict[str, Row]:
    """The rows of all tables that there are, in order. A row that is in two is refused."""
    found: dict[str, Row] = {}
    for module in pkgutil.iter_modules(tests.faults.__path__):
        if not module.name.startswith(TABLES):
            continue
        table: dict[str, Row] = importlib.import_module(f"tests.faults.{module.name}").ROWS
        twice = found.keys() & table.keys()
        if twice:
            raise ValueError(f"{module.name}: {', '.join(sorted(twice))} are in another table too")
        found |= table
    return dict(sorted(found.items()))


def play(name: str, row: Row, servers: Servers) -> Outcome:
    """Run a row's tests, once however many rows they are of; good if all ran and passed."""
    del servers  # tests start their own
    if not row.tests:
        return Outcome(said=(f"{name}: no test plays it",))
    with _lock:
        once = _playing.setdefault(row.tests, threading.Lock())
    with once:
        if row.tests not in _played:
            _played[row.tests] = _run(row.tests)
        return _played[row.tests]


@dataclass(frozen=True, slots=True)
class Counts:
    """What pytest has counted."""

    run: int
    skipped: int


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
        told = "\n".join(ended.stdout.splitlines()[-_SHOWN_LINES:])
        if ended.returncode or not report.exists():
            return Outcome(said=(f"pytest ends with {ended.returncode}:\n{told}",))
        counts = counted(report.read_text(encoding="utf-8"))
    if counts.skipped or not counts.run:
        return Outcome(said=(f"{counts.run} tests ran, {counts.skipped} were skipped:\n{told}",))
    return Outcome()


def counted(report: str) -> Counts:
    """How many tests a JUnit report has, but for those that were skipped, and how many of these."""
    suites = list(ET.fromstring(report).iter("testsuite"))  # noqa: S314 - pytest wrote it
    skipped = sum(int(each.get("skipped", 0)) for each in suites)
    return Counts(sum(int(each.get("tests", 0)) for each in suites) - skipped, skipped)
