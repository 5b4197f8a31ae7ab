"""The rows of the fault matrix: each names tests that exist, and pytest plays them."""

import ast
from pathlib import Path

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.faults import rows
from tests.faults.outcome import Outcome
from tests.faults.row import Row
from tests.faults.servers import Servers

ROOT = Path(__file__).resolve().parents[3]
REPORT = '<testsuites><testsuite tests="{}" skipped="{}" errors="0" failures="0"/></testsuites>'


def functions(file: str) -> set[str]:
    """The test functions of a file, those of classes as Class::function."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if hasattr(each, "name")}
    return found


def test_every_test_that_a_row_names_exists() -> None:
    wrong = []
    for name, row in rows.every_row().items():
        for node in row.tests:
            file, _, function = node.partition("::")
            if not (ROOT / file).is_file() or function not in functions(file):
                wrong.append(f"{name}: {node}")
    assert wrong == []


def test_every_row_says_what_is_expected_and_by_what_it_shows() -> None:
    assert [name for name, row in rows.every_row().items() if not row.expected] == []


def test_a_row_without_tests_is_not_good(servers: Servers) -> None:
    assert not rows.play("K01", Row("it goes on", "", ()), servers).is_good


def test_a_test_that_passes_is_good_and_runs_once_for_all_rows(
    servers: Servers, tmp_path: Path
) -> None:
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
def test_a_row_whose_test_fails_or_is_skipped_or_is_none_is_not_good(
    servers: Servers, tmp_path: Path, test: str
) -> None:
    outcome = rows.play("K01", written(tmp_path, test), servers)
    assert not outcome.is_good
    assert outcome.said


def test_what_is_skipped_did_not_run() -> None:
    assert rows.counted(REPORT.format(5, 2)) == rows.Counts(3, 2)


def written(folder: Path, test: str) -> Row:
    path = folder / "test_row.py"
    path.write_text(test)
    return Row("it goes on", "", (f"{path}::test_it",))


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    """Servers that are not started: nobody asks them."""
    return Servers(EmbeddedKafka(tmp_path / "k"), EmbeddedZooKeeper(tmp_path / "z"), tmp_path)
