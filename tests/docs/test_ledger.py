"""Every block of code in the documentation is run by a test, or the ledger says why not."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT, all_pages, blocks, commands
from tests.docs.ledger import (
    CI,
    NOT_RUN,
    PYTHON_RUN_BY,
    RUN_AT_NIGHT,
    RUN_BY,
    is_played,
    needs_a_cluster,
    played_pages,
)
from tests.support.marks import marks_of

# Of these `console` and the Pythons are run; TOML is loaded as a configuration, and the rest
# is for other programs to read.
LANGUAGES = {"", "console", "python", "py", "toml", "yaml", "json", "sql", "text", "dockerfile"}
DOCUMENTED = {command for page in all_pages() for command in commands(page)}


def test_commands_are_tested_or_explained_in_the_ledger():
    unknown = {
        command
        for command in DOCUMENTED
        if not is_played(command)
        and command not in {*RUN_BY, *RUN_AT_NIGHT, *NOT_RUN}
        and not needs_a_cluster(command)
    }
    assert unknown == set(), "give them in a test, and name it in tests/docs/ledger.py"


def test_all_python_runs_with_its_page_or_in_a_test_that_is_named():
    heads = [block.head for page in all_pages() for block in blocks(page, "python", "py")]
    fragments = {block.head for page in all_pages() for block in blocks(page, "py")}
    assert fragments <= PYTHON_RUN_BY.keys(), "`py` does not run with its page; `python` does"
    assert PYTHON_RUN_BY.keys() <= set(heads)


def test_the_ledger_knows_no_command_that_is_on_no_page():
    assert {*RUN_BY, *RUN_AT_NIGHT, *NOT_RUN} <= DOCUMENTED
    assert not (RUN_BY.keys() | RUN_AT_NIGHT.keys()) & NOT_RUN.keys()
    assert not RUN_BY.keys() & RUN_AT_NIGHT.keys()


def test_no_command_hides_in_a_block_of_another_language():
    for page in all_pages():
        for block in blocks(page):
            assert block.language in LANGUAGES, block.place
            typed = [line[:2] == "$ " for line in block.text.splitlines()]
            assert (block.language == "console") == any(typed), block.place
            assert block.language != "console" or all(typed), f"{block.place}: only commands"


@pytest.mark.parametrize("test", sorted({*RUN_BY.values(), *PYTHON_RUN_BY.values()} - {CI}))
def test_the_tests_that_the_ledger_names_are_there_and_in_ci(test):
    assert not _left_out(test)


@pytest.mark.parametrize("test", RUN_AT_NIGHT.values())
def test_the_tests_that_run_at_night_are_there(test):
    assert _left_out(test) == {"nightly"}


def test_ci_gives_the_commands_that_the_ledger_says_it_does():
    lines = (ROOT / CI).read_text(encoding="utf-8")
    for command in [command for command, test in RUN_BY.items() if test == CI]:
        assert re.search(rf"(^|[\s(]){command}\b", lines, re.MULTILINE), command


def test_the_operators_commands_are_found():
    names = {page.name for page in played_pages()}
    assert {"partition-stuck.md", "operate-replicas.md", "README.md"} <= names
    assert not is_played("headrace graph readings:topology")


def test_a_tape_is_played_again_as_the_page_says(tmp_path):
    [command] = [each for each in DOCUMENTED if "tape.json" in each]
    tape = tmp_path / "tape.json"
    tape.write_text("[]", encoding="utf-8")
    words = shlex.split(command.replace("tape.json", str(tape)))
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def _left_out(test: str) -> set[str]:
    """The marks for which CI leaves a test out."""
    file, _, name = test.partition("::")
    return marks_of(ROOT / "tests" / file)[name] & {"nightly", "faults", "deep"}
