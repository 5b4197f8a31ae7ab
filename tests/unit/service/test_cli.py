import io
import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
from concurrent.futures import Future
from importlib.metadata import version
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.main import get_command

from partition.errors import KafkaUnavailable, StoreUnavailable
from service.cli import common
from service.cli.common import describe
from service.cli.main import COMMANDS as PLACES
from service.cli.main import app
from service.cli.run import RunProgress
from service.config.settings import load
from service.errors import BadConfig
from tests.support.patience import seconds, slack
from tests.support.python import run_python
from tests.unit.service.conftest import words_of
from topology.masking import mask

CANARY = "canary-4f1e9b"
FLOW = """
    from collections.abc import Iterator
    from headrace import Record, Topology, bolt
    from headrace.sinks import DiscardSink, KafkaDeadLetters

    @bolt
    def parse(record: Record) -> dict:
        return {}

    @bolt
    def split(row: dict) -> Iterator[dict]:
        yield row

    @bolt
    async def ask(row: dict) -> dict:
        return row

    topology = Topology("flow")
    parsed = topology.source("flow").then(parse)
    parsed.then(split).into(DiscardSink("rows"), batch_rows=10, batch_seconds=2)
    parsed.then(ask, workers=8).into(DiscardSink("asked"))
    topology.dead_letters.into(KafkaDeadLetters("flow.dead"))
    number = 3
    empty = Topology("empty")
    make = lambda: topology
    unmade = lambda: 3
    needy = lambda name: topology
"""
MODULES = {
    "flow": textwrap.dedent(FLOW),
    "broken": "import no_module\n",
    "failing": "raise ValueError('two\\nlines')\n",
    "leaving": "raise SystemExit('set DATABASE_URL')\n",
    "helped": "import bad_helper\nbad_helper.table()\n",
    "bad_helper": "def table():\n    return {}['key']\n",
    "factory": "def make():\n    return {}['key']\n",
    "odd": "def f(:\n",
    "unfit": "from headrace.sinks import SparkSink\nSparkSink('t', format='orc', schema=dict)\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Give a folder of modules of its own; what is imported of them is forgotten."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    path, modules = sys.path[:], set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


COMMANDS = (
    "init", "run", "check", "graph", "status", "pause", "resume", "drain", "rebalance",
    "offsets set", "offsets reset", "offsets import-storm", "tables compact", "tables vacuum",
    "tables expire", "tables files", "dead-letters list", "dead-letters show",
    "dead-letters replay", "dead-letters drop", "dev up",
)  # fmt: skip


def test_help_says_what_there_is_and_what_the_exit_codes_mean(headrace):
    code, out, _ = headrace("--help")
    assert code == 0
    for word in (*(each.split()[0] for each in COMMANDS), "Exit codes", "78", "--version"):
        assert word in out


def test_every_command_has_json_help_and_sentences(headrace):
    for command in COMMANDS:
        code, out, _ = headrace(*command.split(), "--help")
        negated = "--no-" in out.replace("--no-spark", "")
        assert (code, "--json" in out, negated) == (0, True, False), command
    groups = get_command(app).commands
    commands = [getattr(each, "commands", {name: each}) for name, each in groups.items()]
    assert sum(map(len, commands)) == len(COMMANDS)
    helps = [each.callback.__doc__ for group in commands for each in group.values()]
    assert all(text.rstrip().endswith(".") for text in helps)


def test_the_list_of_commands_says_what_each_says_of_itself():
    said = {name: each.help.split("\n\n")[0] for name, each in get_command(app).commands.items()}
    assert said == {name: summary for name, (_, summary) in PLACES.items()}


def test_the_version_is_the_package_s(headrace):
    code, out, _ = headrace("--version")
    assert code == 0
    assert re.fullmatch(r"headrace \d+\.\d+\.\d+\n", out)


TARGETLESS = ("flow", ":topology", ".flow:topology")
STORM = "offsets import-storm flow:topology --from core --path"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *((each, "") for each in ("", "runn", "run", "offsets", "tables")),
        ("run flow:topology --fast", "--fast"),
        ("run flow:topology --engine storm", "--engine"),
        *((f"run {target}", "MODULE:TOPOLOGY is needed") for target in TARGETLESS),
        ("init ../elsewhere", "found '../elsewhere', expected a lower-case letter, then"),
        ("graph nowhere.flow:topology", "there is no module 'nowhere'"),
        ("graph flow.inner:topology", "there is no module 'flow.inner'"),
        ("graph flow:nothing", "'nothing' in flow is missing; topologies there: topology, empty"),
        ("graph flow:number", "'number' in flow is no topology but of type int"),
        ("graph flow:unmade", "'unmade' in flow is no topology but of type int"),
        ("graph flow:needy", "'needy' in flow is no topology but of type function"),
        ("graph unfit:topology", "schema: found"),
        *((f"{each} flow:empty", "empty") for each in (
            "run", "check", "graph", "status", "resume", "rebalance", "pause --why x",
            "dead-letters list", "tables compact",
        )),
        ("status flow:topology --interval 0", "--interval"),
        ("pause flow:topology", "--why"),
        ("offsets import-storm flow:topology --from core", "--path"),
        ("offsets import-storm flow:topology --path /s", "--from"),
        ("offsets import-storm flow:topology --from kafka --path /s", "--from"),
        *((f"{STORM} {path}", "a ZooKeeper path such as") for path in ("s", "/", "/s//t", "/a/..")),
    ],
)  # fmt: skip
def test_wrong_usage_ends_with_2(words, said, headrace):
    code, out, err = headrace(*words.split())
    assert code == 2
    assert said in words_of(out + err)
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["run", "check", "status", "dead-letters list"])
def test_a_bad_configuration_ends_with_78_and_a_line_for_each_error(command, headrace, folder):
    (folder / "service.toml").write_text("[pipeline]\nspeed = 'high'\n[logs]\nlevel = 1\n")
    code, _, err = headrace(*command.split(), "flow:topology", "--config", "service.toml")
    assert code == 78
    places = "service.toml:2: pipeline.speed", "service.toml:4: logs.level", "service.toml: kafka"
    for line, place in zip(err.splitlines(), (*places, "service.toml: zookeeper"), strict=True):
        assert line.startswith(f"headrace: {place}: found ")
        assert ", expected " in line


def test_check_tells_of_a_bad_configuration_in_json_too(headrace, folder):
    (folder / "service.toml").write_text(f"[kafka]\nsasl.password = '{CANARY}'\n")
    code, out, err = headrace("check", "flow:topology", "--config", "service.toml", "--json")
    assert code == 78
    facts = json.loads(out.splitlines()[-1])
    assert facts["ok"] is False
    assert facts["checks"][0]["name"] == "config"
    assert CANARY not in out + err


def test_embedded_servers_are_not_started_for_a_bad_configuration(headrace, folder):
    (folder / "service.toml").write_text("[retries]\nlimit = -1\n")
    code, _, err = headrace("run", "flow:topology", "--config", "service.toml", "--embedded")
    assert code == 78
    assert "retries.limit: found -1" in err
    assert not (folder / ".headrace").exists()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("broken:topology", "ModuleNotFoundError: No module named 'no_module' (at broken.py:1)"),
        ("failing:topology", "ValueError: two | lines (at failing.py:1)"),
        ("helped:topology", "KeyError: 'key' (at bad_helper.py:2)"),
        ("factory:make", "KeyError: 'key' (at factory.py:2)"),
        ("leaving:topology", "SystemExit: set DATABASE_URL (at leaving.py:1)"),
        ("odd:topology", "SyntaxError: invalid syntax (odd.py, line 1) (at odd.py:1)"),
    ],
)
def test_an_unloadable_module_ends_with_2_and_its_line(target, said, headrace, monkeypatch):
    module, _, name = target.partition(":")
    what = "call of make" if name == "make" else f"import of {module}"
    said = f"headrace: '{target}': the {what} fails with {said}"
    code, out, err = headrace("graph", target)
    assert (code, out, err) == (2, "", f"{said}; HEADRACE_DEBUG=1 shows the traceback\n")
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    code, _, err = headrace("graph", target)
    assert (code, "Traceback (most recent call last)" in err) == (2, True)
    assert err.splitlines()[-1] == said


def test_any_other_failure_ends_with_1_and_one_line(headrace, monkeypatch):
    monkeypatch.setattr("service.cli.check.as_facts", lambda _topology: {}["key"])
    code, _, err = headrace("graph", "flow:topology", "--json")
    said = "headrace: KeyError: 'key'; HEADRACE_DEBUG=1 shows the traceback\n"
    assert (code, err) == (1, said)


def test_graph_shows_the_topology_as_text_chart_and_json(headrace):
    code, out, err = headrace("graph", "flow:topology")
    assert headrace("graph", "flow:make")[1] == out, "a function that returns it"
    assert (code, err) == (0, "")
    text, _, chart = out.partition("\n\n")
    assert text.splitlines() == [
        "topology flow  (at-least-once)",
        "  source flow",
        "    -> parse  (function)",
        "      -> split  (fan-out)",
        "        -> rows  (DiscardSink, every 10 rows or 2 s)",
        "      -> ask  (async, 8 at once)",
        "        -> asked  (DiscardSink, every 8000 rows or 5 s)",
        "  dead letters -> flow.dead",
    ]
    assert chart == headrace("graph", "flow:topology", "--mermaid")[1]
    nodes = dict(re.findall(r'^  (\w+)\[\(?"(.+?)"\)?\]$', chart, re.MULTILINE))
    edges = re.findall(r"^  (\w+) --> (\w+)$", chart, re.MULTILINE)
    assert [(nodes[a], nodes[b]) for a, b in edges] == [
        ("flow", "parse"), ("parse", "split"), ("parse", "ask"),
        ("split", "rows"), ("ask", "asked"),
    ]  # fmt: skip
    (line,) = headrace("graph", "flow:topology", "--json")[1].splitlines()
    facts = json.loads(line)
    assert facts["sources"] == [{"topic": "flow", "records_per_second": None, "to": ["parse"]}]
    assert {step["name"]: step["kind"] for step in facts["steps"]} == {
        "parse": "function", "split": "fan-out", "ask": "async", "rows": "sink", "asked": "sink",
    }  # fmt: skip
    assert facts["dead_letters"] == "flow.dead"


def test_users_module_is_found_without_shadowing_packages(headrace, folder):
    (folder / "service").mkdir()
    (folder / "service" / "__init__.py").write_text("raise AssertionError\n")
    assert headrace("graph", "flow:topology")[0] == 0


def test_an_error_is_one_line_and_hides_secrets():
    KafkaException = type("KafkaException", (Exception,), {})  # noqa: N806 - its own name
    failure = SimpleNamespace(str=lambda: "Broker transport failure")
    assert describe(KafkaException(failure)) == "KafkaException: Broker transport failure"
    assert describe(KafkaUnavailable("for x", "why\nnot")).count("\n") == 0
    assert describe(KeyError("x")) == "KeyError: 'x'"
    assert describe(RuntimeError()) == "RuntimeError"
    full = OSError(28, "No space left on device", "/tmp/x")  # noqa: S108 - nothing is written
    said = r"OSError: .*No space left on device: '/tmp/x'; /tmp/x: [\d,.]+ MiB free of [\d,.]+ MiB"
    assert re.fullmatch(said, describe(full))
    assert describe(OSError(28, "No space left on device", 3)).endswith("device: 3")
    noted = ValueError("no table")
    noted.add_note("open() of bolt 'join'")
    assert describe(noted) == "ValueError: no table | open() of bolt 'join'"
    assert describe(BadConfig("f", "k", "1", "2")) == "f: k: found 1, expected 2"
    assert len(describe(RuntimeError("x" * 5000))) == 1000
    mask.learn([CANARY])
    assert describe(RuntimeError(f"with {CANARY}")) == "RuntimeError: with ***"


def test_closed_standard_output_ends_without_a_traceback(folder):
    command = [sys.executable, "-m", "headrace", "graph", "flow:topology"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
        process.wait(seconds(30))


def test_help_comes_quickly():
    before = os.times()
    run_python("from headrace.__main__ import main; main()", "--help")
    cpu = sum(os.times()[2:4]) - sum(before[2:4])
    assert cpu < slack(1.5)  # about 0.3; a busy machine must not fail it


@pytest.mark.parametrize(
    ("line", "words", "code", "said"),
    [
        ('"no.such.property" = 1', [], 78, "no.such.property"),
        ('"enable.auto.commit" = true', [], 78, "found True, expected no such key: it is always"),
        ('"fetch.min.bytes" = "many"', [], 78, "fetch.min.bytes"),
        ('[pipeline]\nengine = "local"', ["--engine", "spark"], 2, "that are exactly-once"),
    ],
)
def test_run_is_refused_before_anything_is_opened(headrace, folder, line, words, code, said):
    (folder / "service.toml").write_text(
        f'[zookeeper]\nhosts = "a:1"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n{line}\n'
    )
    found, _, err = headrace("run", "flow:topology", "--config", "service.toml", *words)
    (told,) = [each for each in err.splitlines() if each.startswith("headrace: ")]
    assert (found, said in told, "expected " in told) == (code, True, code == 78)


def test_unanswered_questions_are_errors_in_words(monkeypatch):
    monkeypatch.setattr(common, "ASK_SECONDS", 0.01)
    with pytest.raises(KafkaUnavailable, match=r"no answer in 0\.01 seconds"):
        common.answer(Future())
    with pytest.raises(StoreUnavailable, match=r"no answer in 0\.01 seconds; it may be"):
        common.done(Future(), "a move")


def test_tables_outside_a_terminal_are_found_by_grep(monkeypatch):
    text = "no such currency: XAF, in a text that is longer than a terminal is wide, " * 3
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    common.answers().print(common.table_of(("letter", ">n"), [("0:17", 1), (text, None)]))
    assert text.strip() in sys.stdout.getvalue()


def test_steps_are_lines_where_no_terminal_shows_a_live_one():
    said = io.StringIO()
    for lines in (False, True):
        progress = RunProgress(Console(file=said), lines=lines)
        for done in range(3):
            progress.step("publishing", done, 3)
        progress.step("starting")
    lines = [line.split(" s  ")[1] for line in said.getvalue().splitlines()]
    assert lines == ["publishing", "starting"]


SCRIPT = """
from headrace import Topology
from headrace.sinks import DiscardSink, KafkaDeadLetters
orders = Topology("orders")
orders.source("orders").into(DiscardSink())
orders.dead_letters.into(KafkaDeadLetters("orders.dead"))
if {guard}:
    orders.run()
"""
UNGUARDED = "found 'no name', expected a variable of the file that Python runs"


@pytest.mark.parametrize(
    ("guard", "code", "said"),
    [
        ("__name__ == '__main__'", 78, "nowhere.toml: (file): found no such file"),
        ("True", 2, UNGUARDED),  # it is imported once more, by its name
    ],
)
def test_script_takes_the_options_of_run(guard, code, said, folder, capsys, monkeypatch):
    (folder / "script.py").write_text(SCRIPT.format(guard=guard))
    monkeypatch.setattr(sys, "argv", ["script.py", "--config", "nowhere.toml"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path("script.py", run_name="__main__")
    assert ended.value.code == code
    assert said in capsys.readouterr().err


def test_new_project_has_a_configuration_and_passes_its_test(folder, headrace, monkeypatch):
    project = folder / "sensor-readings"
    project.mkdir()
    code, out, _ = headrace("init", "sensor-readings")
    assert code == 0
    assert "python pipeline.py --embedded" in out
    written = {path.name: path.read_text() for path in project.iterdir()}
    assert set(written) == {
        "Dockerfile", "README.md", "pipeline.py", "requirements-dev.txt", "requirements.txt",
        "service.toml", "test_pipeline.py",
    }  # fmt: skip
    assert not [name for name, text in written.items() if re.search(r"\{[a-z]+\}", text)]
    assert written["requirements.txt"] == f"headrace[delta]=={version('headrace')}\n"
    assert str(load(project / "service.toml").storage.warehouse).endswith("warehouse")
    monkeypatch.syspath_prepend(project)
    tests = runpy.run_path(str(project / "test_pipeline.py"))
    cases = [case for name, case in tests.items() if name.startswith("test_")]
    for case in cases:
        case()
    assert len(cases) == 2
    topology = tests["topology"]
    assert (topology.name, topology.sources[0].topic) == ("sensor-readings", "sensor-readings")


def test_init_writes_over_nothing(folder, headrace):
    (folder / "mine").mkdir()
    (folder / "mine/notes.txt").write_text("mine")
    code, _, err = headrace("init", "mine")
    assert (code, [each.name for each in (folder / "mine").iterdir()]) == (2, ["notes.txt"])
    assert "expected none, or an empty folder" in words_of(err)
