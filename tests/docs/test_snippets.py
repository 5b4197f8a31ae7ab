import re
import shlex
import subprocess
import sys
import types
from importlib.util import find_spec

import pytest
import typer.main

from service.cli.main import app
from service.config.settings import load
from tests.docs.blocks import (
    ROOT,
    all_pages,
    blocks,
    commands,
    inline_commands,
    is_played,
    name_of,
    played_pages,
)

PAGES = all_pages()
# Python that does not run with its page, but in a test of the quickstart or the example.
RUN_ELSEWHERE = {
    ("docs/quickstart.md", "from confluent_kafka import Producer"),
    ("examples/flights/README.md", "def test_a_cancelled_flight_is_skipped():"),
}
# Of these `console` and the Pythons are run; TOML is loaded as a configuration, and the rest
# is for other programs to read.
LANGUAGES = {"", "console", "python", "py", "toml", "yaml", "json", "sql", "text", "dockerfile"}


def pages_with(language, pages=PAGES):
    return [pytest.param(page, id=name_of(page)) for page in pages if any(blocks(page, language))]


@pytest.fixture
def module():
    """A module for a page's code: type hints are looked up in the module of their class."""
    made = types.ModuleType("page_of_the_documentation")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


@pytest.mark.parametrize("page", pages_with("python"))
def test_the_python_of_a_page_runs_from_top_to_bottom(page, module):
    for block in [each for each in blocks(page, "python") if each.head not in RUN_ELSEWHERE]:
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        exec(code, vars(module))  # noqa: S102
        for name in [name for name in vars(module) if name.startswith("test_")]:
            vars(module).pop(name)()


def test_all_python_runs_with_its_page_or_elsewhere():
    fragments = {block.head for page in PAGES for block in blocks(page, "py")}
    assert fragments <= RUN_ELSEWHERE, "`py` does not run with its page; `python` does"
    heads = {block.head for page in PAGES for block in blocks(page, "python", "py")}
    assert heads >= RUN_ELSEWHERE


def test_commands_are_in_console_blocks_alone():
    for page in PAGES:
        for block in blocks(page):
            assert block.language in LANGUAGES, block.place
            typed = [line[:2] == "$ " for line in block.text.splitlines()]
            assert (block.language == "console") == any(typed), block.place
            assert block.language != "console" or all(typed), f"{block.place}: only commands"


def test_operators_commands_are_played_on_servers():
    names = {page.name for page in played_pages()}
    assert {"partition-stuck.md", "operate-replicas.md", "README.md"} <= names
    assert not is_played("headrace graph readings:topology")


def test_a_tape_is_played_again_as_the_page_says(tmp_path):
    [command] = [each for page in PAGES for each in commands(page) if "tape.json" in each]
    tape = tmp_path / "tape.json"
    tape.write_text("[]", encoding="utf-8")
    words = shlex.split(command.replace("tape.json", str(tape)))
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("page", pages_with("console"))
def test_the_commands_of_a_page_exist(page):
    for block in blocks(page, "console"):
        for command in block.commands:
            assert fault_of(command) is None, f"{block.place}: {command}"


def test_the_commands_that_are_named_in_a_sentence_exist():
    faults = {
        (name_of(page), command): fault_of(command)
        for page in PAGES
        for command in inline_commands(page)
    }
    assert {place: fault for place, fault in faults.items() if fault} == {}
    assert len(faults) > 50  # they were found


@pytest.mark.parametrize("page", pages_with("toml"))
def test_the_toml_of_a_page_is_a_configuration(page, tmp_path):
    reachable = {"kafka": {"bootstrap.servers": "-"}, "zookeeper": {"hosts": "-"}}
    for block in blocks(page, "toml"):
        path = tmp_path / "service.toml"
        path.write_text(block.text, encoding="utf-8")
        load(path, reachable)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("make run", None),
        ("make nothing", "no target 'nothing'"),
        ("HEADRACE_LOGS__LEVEL=debug headrace run a:b --embedded", None),
        ("headrace status a:b --config x.toml --json", None),
        ("headrace offsets put", "no command 'put'"),
        ("headrace graph a:b --config x.toml", "no option '--config'"),
        ("curl -s localhost:9095/health/ready", None),
        ("curl localhost", "no command 'curl'"),
        ("kubectl exec a -- headrace offsets put", "no command 'put'"),
        ("deploy/nothing.sh", "no command 'deploy/nothing.sh'"),
    ],
)
def test_a_wrong_command_would_be_noticed(command, fault):
    assert fault_of(command) == fault


def fault_of(command):
    """What is wrong with a command line, as far as can be told without running it."""
    words = shlex.split(command)
    while "=" in words[0]:
        words.pop(0)
    program, *rest = words
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        missing = [word for word in rest if "=" not in word and word not in targets]
        return f"no target '{missing[0]}'" if missing else None
    if program == "python" and rest[0] == "pipeline.py":  # topology.run()
        program, rest = "headrace", ["run", "pipeline:topology", *rest[1:]]
    if program in ("python", "python3") and rest[0] == "-m":
        path = ROOT / rest[1].replace(".", "/")
        found = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        return None if found or find_spec(rest[1]) else f"no module '{rest[1]}'"
    if program == "headrace":
        return _fault_of_headrace(rest)
    if program in ("docker", "helm", "kubectl"):  # what they do is told by tests of their own
        return fault_of(shlex.join(rest[rest.index("--") + 1 :])) if "--" in rest else None
    asks = program == "curl" and rest[-1].endswith(("/health/ready", "/metrics"))
    installs = program in ("pip", "cd", "source")  # as the test of the quickstart does
    if asks or installs or ("/" in program and (ROOT / program).is_file()):
        return None
    return f"no command '{program}'"


def _fault_of_headrace(words):
    command = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        name = words.pop(0)
        if name not in command.commands:
            return f"no command '{name}'"
        command = command.commands[name]
    options = {option for parameter in command.params for option in parameter.opts}
    wrong = [word for word in words if word.startswith("--") and word not in options]
    return f"no option '{wrong[0]}'" if wrong else None
