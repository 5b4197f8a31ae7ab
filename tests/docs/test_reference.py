import ast
import re
from pathlib import Path

import pytest
import typer.main

import headrace
import headrace.payloads
import headrace.sinks
import headrace.testing
from deploy.reference import (
    CONFIGURATION,
    METRICS,
    PROMISES,
    STORM,
    configuration_table,
    generated,
    storm_tests,
    storm_without_tests,
)
from partition.kafka.librdkafka import DEFAULTS, FORCED
from service.cli.main import app
from service.config.settings import Config, Section
from service.config.sources import OTHER_VARIABLES
from service.observability.metrics import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("headrace", "service", "transactions", "sinks", "topology", "partition", "acker")
LEVELS = ("debug", "info", "warning", "error", "exception")


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def modules():
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def test_the_metrics_page_is_the_catalogue():
    page = read(METRICS)
    assert page == generated(page), "run `python -m deploy.reference`"
    named = set(re.findall(r"^\| `(headrace_\w+)`", page, re.MULTILINE))
    assert {name.removesuffix("_total") for name in named} == {each.name for each in CATALOGUE}


def test_the_table_of_every_key_is_that_of_the_code():
    page = read(CONFIGURATION)
    assert page == generated(page), "run `python -m deploy.reference`"
    listed = set(re.findall(r"^\| `\[(\w+)\] (\w+)` \|", page, re.MULTILINE))
    assert listed == {(section, key) for section, key, _ in sections()}


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("[pipeline] engine", '`"local"`, `"spark"`'),
        ("[retries] jitter", "number from 0 to 1"),
        ("[http] port", "whole number from 0 to 65535"),
        ("[dead_letters] max_ratio", "number from 0 to 1"),
        ("[zookeeper] password", "text that is shown nowhere"),
        ("[spark] conf", "a table of properties"),
    ],
)
def test_what_a_key_takes_is_said_with_its_limits(row, what):
    [line] = [line for line in configuration_table().splitlines() if f"`{row}`" in line]
    assert f" | {what} | " in line


def sections():
    for section, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            for key, inner in kind.model_fields.items():
                yield section, key, inner.get_default(call_default_factory=True)


def test_the_configuration_page_names_every_key_with_its_default():
    page = read("docs/reference/configuration.md")
    for section in Config.model_fields:
        assert f"\n## `[{section}]`\n" in page
    parts = re.findall(r"^## `\[(\w+)\]`\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    documented = {
        (section, key): default.strip("`")
        for section, text in parts
        for key, default in re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE)
    }
    keys = {(section, key): default for section, key, default in sections()}
    assert set(documented) == set(keys)
    for place, default in keys.items():
        if isinstance(default, bool | int | float | str):
            shown = f'"{default}"' if isinstance(default, str) else str(default)
            shown = shown.lower() if isinstance(default, bool) else shown
            assert documented[place] == shown, place
        else:  # absent, required or empty: said in words
            assert re.fullmatch(r"[a-z' ]+", documented[place]), place


def test_configuration_page_names_kafka_defaults():
    page = read("docs/reference/configuration.md")
    for name, value in DEFAULTS.items():
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        assert re.search(rf"^\| `{re.escape(name)}` \| `{shown}`", page, re.MULTILINE), name
    for name in (*FORCED, *OTHER_VARIABLES):
        assert f"`{name}`" in page


def commands():
    waiting = [("headrace", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        subcommands = getattr(command, "commands", {})
        waiting += [(f"{name} {each}", inner) for each, inner in subcommands.items()]
        if not subcommands:
            yield name, [opt for each in command.params for opt in each.opts if opt[0] == "-"]


def test_the_command_line_page_names_every_command_and_option():
    page = read("docs/reference/command-line.md")
    part = r"^## `(headrace[a-z -]+?)(?: MODULE:TOPOLOGY| NAME)?`\n(.*?)(?=^## )"
    parts = dict(re.findall(part, page, re.DOTALL | re.MULTILINE))
    found = {name: set(options) - {"--help"} for name, options in commands()}
    documented = {
        name: set(re.findall(r"^\| `(--[a-z-]+)", text, re.MULTILINE))
        for name, text in parts.items()
    }
    assert documented == found


def test_the_logs_page_names_every_event():
    page = read("docs/reference/logs.md")
    listed = {
        event
        for line in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
        for event in re.findall(r"`(\w+)`", line)
    }
    source = "\n".join(path.read_text(encoding="utf-8") for path in modules())
    assert {event for event in listed if f'"{event}"' not in source} == set()
    logged = {
        call.args[0].value
        for path in modules()
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in LEVELS
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in ("log", "_log")
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }
    assert logged - listed == set()


@pytest.mark.parametrize("surface", [headrace, headrace.payloads, headrace.sinks, headrace.testing])
def test_the_python_page_names_everything_public(surface):
    page = read("docs/reference/python-api.md")
    missing = [name for name in surface.__all__ if not re.search(rf"`{name}\b", page)]
    assert missing == []


@pytest.mark.parametrize("page", [PROMISES, STORM], ids=lambda page: page.stem)
def test_every_test_named_on_a_page_exists(page):
    named = re.findall(r"^- `([\w/]+\.py)`: `(test_\w+)`$", read(page), re.MULTILINE)
    assert named
    missing = [
        f"{path}: {name}"
        for path, name in named
        if not (ROOT / "tests" / path).is_file() or f"def {name}(" not in read(f"tests/{path}")
    ]
    assert missing == [], "run `python -m deploy.reference`"


def test_the_promises_are_numbered_as_in_the_tests():
    numbers = [int(n) for n in re.findall(r"^## (\d+)\. ", read("docs/promises.md"), re.MULTILINE)]
    assert numbers == list(range(1, 17))


def test_each_storm_fault_has_a_test_or_a_decision():
    tests, decided = set(storm_tests()), storm_without_tests()
    assert tests | decided == set(range(1, 56))
    assert tests & decided == set(), "an entry with a test needs no row in decision 0016"


def test_storms_faults_are_all_on_their_page():
    page = read(STORM)
    numbers = [int(n) for n in re.findall(r"^### (\d+)\. ", page, re.MULTILINE)]
    assert numbers == list(range(1, 56))
    assert [int(n) for n in re.findall(r"<!-- storm: (\d+) -->", page)] == numbers
    assert "- none\n" not in page, "run `python -m deploy.reference`"


@pytest.mark.parametrize(
    ("docstring", "numbers"),
    [
        ("Storm 8 and 13: no default.", {8, 13}),
        ("Promise 5, Storm 46: no ghost.", {46}),
        ("Storm 1, Storm 2.", {1, 2}),
        ("Storm's delay; Storm 1.2.3 did so, and Storm 0.9 too.", set()),
    ],
)
def test_storm_versions_name_no_fault(docstring, numbers, tmp_path):
    (tmp_path / "tests").mkdir()
    text = f'def test_it():\n    """{docstring}"""\n'
    (tmp_path / "tests" / "test_it.py").write_text(text, encoding="utf-8")
    assert set(storm_tests(tmp_path)) == numbers


def pages():
    found = [*ROOT.glob("*.md")]
    for folder in ("docs", "examples"):
        found += (ROOT / folder).rglob("*.md")
    return sorted(found)


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(place), f"{page}: {target}"
