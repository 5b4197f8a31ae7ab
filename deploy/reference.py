"""Writes what is generated in `docs/`: `python -m deploy.reference`, in a checkout.

The text between `<!-- metrics -->` and `<!-- end -->` comes from the catalogue, that after
`<!-- configuration -->` from the classes of the configuration, that after
`<!-- tests: N -->` from the tests whose docstrings say that they hold promise N, and that
after `<!-- storm: N -->` from those that say so of entry N of Storm's faults, or from the
decision that says why the entry has none.
"""

import ast
import re
import sys
import types
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from service.config.connections import Section
from service.config.settings import Config
from service.config.sources import PREFIX
from service.observability.metrics import CATALOGUE

ROOT = Path(__file__).resolve().parent.parent
METRICS = Path("docs/reference/metrics.md")
CONFIGURATION = Path("docs/reference/configuration.md")
PROMISES = Path("docs/promises.md")
STORM = Path("docs/storm.md")
WITHOUT_TESTS = Path("docs/decisions/0016-tests-for-storms-fifty-five-faults.md")

_BLOCK = re.compile(r"(<!-- ([a-z]+)(?:: (\d+))? -->\n).*?(<!-- end -->)", re.DOTALL)
_NUMBERS = r"((?:\d+(?:, | and )?)+)(?!\.?\d)"
_PROMISE = re.compile(rf"[Pp]romises? {_NUMBERS}")
_FAULT = re.compile(rf"Storm {_NUMBERS}")  # not the version of Storm, as in 1.2.3


def metrics_table() -> str:
    """Every metric of the catalogue, by the name that a scrape shows."""
    lines = ["| metric | kind | labels | what |", "| --- | --- | --- | --- |"]
    for metric in CATALOGUE:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines)


def promise_tests(root: Path = ROOT) -> dict[int, list[str]]:
    """For each promise the tests that hold it, as Markdown list items in order."""
    return _tests_that_say(_PROMISE, root)


def storm_tests(root: Path = ROOT) -> dict[int, list[str]]:
    """For each entry of Storm's faults the tests that hold it, as Markdown list items."""
    return _tests_that_say(_FAULT, root)


def storm_without_tests(root: Path = ROOT) -> set[int]:
    """The entries of Storm's faults of which a decision says why they have no test."""
    page = (root / WITHOUT_TESTS).read_text(encoding="utf-8")
    return {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}


def _tests_that_say(what: re.Pattern[str], root: Path) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    for place, docstring in _documented_tests(root):
        numbers = " ".join(what.findall(docstring))
        for number in sorted({int(each) for each in re.findall(r"\d+", numbers)}):
            found[number].append(place)
    return found


@cache
def _documented_tests(root: Path) -> list[tuple[str, str]]:
    """The tests with a docstring, as Markdown list items in order, and their docstrings."""
    return [
        (f"- `{path.relative_to(root / 'tests').as_posix()}`: `{node.name}`", docstring)
        for path in sorted((root / "tests").rglob("test_*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if (docstring := ast.get_docstring(node))
    ]


def generated(text: str, root: Path = ROOT) -> str:
    """A page with its generated parts written anew."""
    promises, faults = promise_tests(root), storm_tests(root)
    link = f"- none: [0016]({WITHOUT_TESTS.relative_to('docs').as_posix()}) says why"
    for number in storm_without_tests(root):
        faults[number].append(link)

    def block(match: re.Match[str]) -> str:
        start, kind, number, end = match.groups()
        if kind == "metrics":
            body = metrics_table()
        elif kind == "configuration":
            body = configuration_table()
        else:
            body = "\n".join((faults if kind == "storm" else promises)[int(number)])
        return f"{start}\n{body or '- none'}\n\n{end}"

    return _BLOCK.sub(block, text)


_WORDS: dict[Any, str] = {
    bool: "`true` or `false`",
    int: "whole number",
    float: "number",
    str: "text",
    SecretStr: "text that is shown nowhere",
    Path: "a file",
}


def configuration_table() -> str:
    """The keys of all sections, in the order of the code."""
    lines = ["| key | variable | takes | default |", "| --- | --- | --- | --- |"]
    for section, key, field in _fields():
        variable = f"`{PREFIX}{section.upper()}__{key.upper()}`"
        takes = _takes(field.annotation, field.metadata)
        lines.append(f"| `[{section}] {key}` | {variable} | {takes} | {_default(field)} |")
    return "\n".join(lines)


def _fields() -> Iterator[tuple[str, str, FieldInfo]]:
    for section, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            for key, inner in kind.model_fields.items():
                yield section, key, inner


def _takes(kind: Any, metadata: list[Any]) -> str:
    """A type and its limits, in words."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *limits = get_args(kind)
        return _takes(inner, [*metadata, *(each for limit in limits for each in _parts(limit))])
    if origin in (Union, types.UnionType):
        kinds = (each for each in get_args(kind) if each is not type(None))
        return ", or ".join(dict.fromkeys(_takes(each, metadata) for each in kinds))
    if origin is Literal:
        return ", ".join(f'`"{each}"`' for each in get_args(kind))
    if origin is dict:
        return "a table of properties"
    return f"{_WORDS.get(kind, 'a table, see above')}{_limits(metadata)}"


def _parts(limit: Any) -> list[Any]:
    return list(limit.metadata) if isinstance(limit, FieldInfo) else [limit]


def _limits(metadata: list[Any]) -> str:
    said = {
        name: getattr(each, name)
        for each in metadata
        for name in ("gt", "ge", "le")
        if getattr(each, name, None) is not None
    }
    if "ge" in said and "le" in said:
        return f" from {said['ge']} to {said['le']}"
    words = {"gt": "above", "ge": "at least", "le": "at most"}
    return "".join(f" {words[name]} {limit}" for name, limit in said.items())


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "required"
    if default is None or default == {}:
        return "absent"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"


def main() -> int:
    """Write the pages."""
    for page in (METRICS, CONFIGURATION, PROMISES, STORM):
        path = ROOT / page
        path.write_text(generated(path.read_text(encoding="utf-8")), encoding="utf-8")
        sys.stdout.write(f"{page}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
