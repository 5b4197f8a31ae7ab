"""Errors that a user's type checker finds in `chains.py`, with the installed wheel."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import seconds
from tests.support.wheel import environment_with_wheel, without_clone

pytestmark = pytest.mark.acceptance
NEEDS_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="pyright needs Node.js")

CHAINS = Path(__file__).with_name("chains.py")
# Without stubs of pyarrow, which a user rarely has, a `pa.Schema` is Any.
BARE = """
from typing import TypedDict

from headrace import Bolt, Record, Topology, bolt
from headrace.sinks import DeltaSink


class Row(TypedDict):
    n: int


class Other(TypedDict):
    text: str


@bolt
def parse(record: Record) -> Row:
    return {"n": record.offset}


class WrongOutput(Bolt[Row, Row]):
    def process(self, value: Row, /) -> Other:  # wrong
        return {"text": str(value["n"])}


rows = Topology("t").source("t").then(parse)
rows.into(DeltaSink("rows", schema=Row))
others = DeltaSink("rows", schema=Other)
rows.into(others)  # wrong
rows.then(parse)  # wrong
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the chains, and an environment beside it that has the wheel."""
    folder = tmp_path_factory.mktemp("outside")
    environment_with_wheel(folder)
    shutil.copy(CHAINS, folder)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    environment_with_wheel(folder, "pyarrow-stubs", "pyarrow_stubs")
    (folder / "bare.py").write_text(BARE)
    return folder


def check(place: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=place, env=without_clone(), capture_output=True, text=True, check=False,
        timeout=seconds(280),
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.stdout


def mypy(place: Path, file: str) -> list[int]:
    """Return the lines that mypy refuses."""
    said = check(place, "mypy", "--strict", "--python-executable", "env/bin/python", file)
    return [int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line]


def pyright(place: Path, file: str) -> list[int]:
    said = check(place, "pyright", "--outputjson", "--pythonpath", "env/bin/python", file)
    errors = json.loads(said)["generalDiagnostics"]
    return sorted({each["range"]["start"]["line"] + 1 for each in errors})


def lines_that_end(text: str, mark: str) -> list[int]:
    return [n for n, line in enumerate(text.splitlines(), 1) if line.endswith(mark)]


def test_mypy_takes_the_right_chains_and_refuses_every_wrong_one(place):
    """One run: an `ignore` in `chains.py` that refuses nothing is itself an error."""
    assert mypy(place, "chains.py") == []
    wrong = [line for line in CHAINS.read_text().splitlines() if "type: ignore" in line]
    assert len(wrong) >= 30
    assert all("type: ignore[" in line for line in wrong), "each names the code of its error"


@NEEDS_NODE
def test_pyright_refuses_the_same(place):
    """But for a sink made inside `into()`: pyright takes it for one of both rows."""
    settings = {"reportUnnecessaryTypeIgnoreComment": "error"}
    (place / "pyrightconfig.json").write_text(json.dumps(settings))
    chains = CHAINS.read_text()
    assert pyright(place, "chains.py") == lines_that_end(chains, "# mypy only")


@pytest.mark.nightly
@pytest.mark.parametrize("checker", [mypy, pytest.param(pyright, marks=NEEDS_NODE)])
def test_wrong_code_is_refused_without_stubs_of_pyarrow(bare, checker):
    assert checker(bare, "bare.py") == lines_that_end(BARE, "# wrong")
