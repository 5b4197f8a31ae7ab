"""Counts of the product's code that only fall: files, lines, names, layers, docstrings, cycles.

Lower a limit with each change that lets it be lower. A count is met by better code, never by
packing.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("acker", "headrace", "partition", "service", "sinks", "topology", "transactions")
QUESTION = re.compile(r"(What|How|Where|Who|Whose|Why|Tell|Say|Learn (that|what)|So that)\b")
WIDTH = 100
SHORT, LONG = 60, 600  # lines of a file
PARAMETERS = 8  # of a constructor

LIMITS = {
    "files": 195,
    "lines": 45_707,
    "files under 60 lines": 6,
    "files over 600 lines": 0,
    "lines over 100 characters": 0,
    "entries of service": 16,
    "class names twice": 0,
    "module names twice": 4,
    "docstrings that ask": 0,
    "constructors over 8 parameters": 1,
    "pass-through methods": 53,
    "methods of one statement": 401,
    "import cycles": 0,
    "lines of tests": 68_789,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A file of the product."""

    path: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]  # of the whole tree

    @property
    def size(self) -> int:
        return self.text.count("\n")

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def modules() -> tuple[Module, ...]:
    paths = sorted(chain.from_iterable((ROOT / each).rglob("*.py") for each in PACKAGES))
    texts = [(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]
    trees = [(path, text, ast.parse(text)) for path, text in texts]
    return tuple(Module(path, text, tree, tuple(ast.walk(tree))) for path, text, tree in trees)


def nodes_of(kind: type | tuple[type, ...]) -> Iterator[tuple[Module, ast.AST]]:
    for module in modules():
        yield from ((module, node) for node in module.nodes if isinstance(node, kind))


def methods() -> Iterator[tuple[str, ast.ClassDef, Function]]:
    for module, node in nodes_of(ast.ClassDef):
        for part in node.body:
            if isinstance(part, Function):
                yield f"{module.path}:{part.lineno} {node.name}.{part.name}", node, part


def body_of(function: Function) -> list[ast.stmt]:
    """Return the statements behind the docstring."""
    return function.body[1:] if ast.get_docstring(function) else function.body


def twice(places: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {' '.join(found)}" for name, found in places.items() if len(found) > 1]


def files() -> list[str]:
    return [module.path for module in modules()]


def lines() -> list[str]:
    return ["line"] * sum(module.size for module in modules())


def short_files() -> list[str]:
    own = [each for each in modules() if not each.path.endswith("__init__.py")]
    return [each.path for each in own if each.size < SHORT]


def long_files() -> list[str]:
    return [each.path for each in modules() if each.size > LONG]


def wide_lines() -> list[str]:
    return [
        f"{module.path}:{number}"
        for module in modules()
        for number, line in enumerate(module.text.splitlines(), 1)
        if len(line) > WIDTH
    ]


def service_entries() -> list[str]:
    return [each.name for each in (ROOT / "service").iterdir() if each.name != "__pycache__"]


def class_names() -> list[str]:
    places = defaultdict(list)
    for module, node in nodes_of(ast.ClassDef):
        if not node.name.startswith("_"):
            places[node.name].append(module.path)
    return twice(places)


def module_names() -> list[str]:
    places = defaultdict(list)
    for path in files():
        if not path.endswith("__init__.py"):
            places[Path(path).stem].append(path)
    return twice(places)


def asking_docstrings() -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = ((module, node, ast.get_docstring(node) or "") for module, node in nodes_of(kinds))
    return [
        f"{module.path}:{getattr(node, 'lineno', 1)} {text.splitlines()[0]}"
        for module, node, text in found
        if QUESTION.match(text)
    ]


def large_constructors() -> list[str]:
    """Name classes of too many parameters; a dataclass counts where it has behaviour, too."""
    found = []
    for module, node in nodes_of(ast.ClassDef):
        own = [each for each in node.body if isinstance(each, Function)]
        made = next((each.args for each in own if each.name == "__init__"), None)
        size = len(made.args + made.kwonlyargs) - 1 if made else 0
        public = [each for each in own if not each.name.startswith("__")]
        if any("dataclass" in ast.unparse(each) for each in node.decorator_list) and public[3:]:
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            size = sum(each.value is None for each in fields)
        if size > PARAMETERS:
            found.append(f"{module.path}:{node.lineno} {node.name}: {size}")
    return found


def pass_through_methods() -> list[str]:
    """Name methods that only read a member of a member, or call it with their own arguments."""
    found = []
    for name, _, method in methods():
        body = body_of(method)
        if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
            continue
        value, given = body[0].value, []
        if isinstance(value, ast.Call):
            value, given = value.func, [*value.args, *(each.value for each in value.keywords)]
        names = {each.arg for each in method.args.args + method.args.kwonlyargs}
        is_own = all(isinstance(each, ast.Name) and each.id in names for each in given)
        chain_ = ast.unparse(value) if isinstance(value, ast.Attribute) else ""
        if is_own and chain_.startswith("self.") and chain_.count(".") > 1:
            found.append(name)
    return found


def one_statement_methods() -> list[str]:
    """Name methods of one statement; neither contracts nor what Python itself calls count."""
    found = []
    for name, _, method in methods():
        body = body_of(method)
        is_one = len(body) == 1 and isinstance(body[0], ast.Return | ast.Expr)
        if is_one and not method.name.startswith("__") and ast.unparse(body[0]) != "...":
            found.append(name)
    return found


def import_cycles() -> list[str]:
    """Name groups of modules that import each other when they are loaded."""
    known = {module.name: module for module in modules()}
    imported: dict[str, set[str]] = {name: set() for name in known}
    for name, module in known.items():
        for node in module.tree.body:
            if isinstance(node, ast.Import):
                imported[name] |= {each.name for each in node.names} & known.keys()
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{each.name}" for each in node.names} & known.keys()
                imported[name] |= inner or ({node.module} & known.keys())
    left = True
    while left:  # take away what nobody in a cycle can be: it imports, or is imported by, nothing
        used = set(chain.from_iterable(imported.values()))
        left = [name for name in imported if not imported[name] or name not in used]
        for name in left:
            del imported[name]
        imported = {name: each & imported.keys() for name, each in imported.items()}
    return sorted(imported)


def lines_of_tests() -> list[str]:
    return ["line"] * sum(path.read_text().count("\n") for path in (ROOT / "tests").rglob("*.py"))


COUNTS: dict[str, Callable[[], list[str]]] = {
    "files": files,
    "lines": lines,
    "files under 60 lines": short_files,
    "files over 600 lines": long_files,
    "lines over 100 characters": wide_lines,
    "entries of service": service_entries,
    "class names twice": class_names,
    "module names twice": module_names,
    "docstrings that ask": asking_docstrings,
    "constructors over 8 parameters": large_constructors,
    "pass-through methods": pass_through_methods,
    "methods of one statement": one_statement_methods,
    "import cycles": import_cycles,
    "lines of tests": lines_of_tests,
}


@pytest.mark.parametrize("name", LIMITS)
def test_count_stays_below_its_limit(name):
    found = COUNTS[name]()
    assert len(found) <= LIMITS[name], "\n".join([f"{len(found)} {name}:", *dict.fromkeys(found)])
