"""No bytes from outside become code: where objects are unpickled is told here, with why."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("headrace", "service", "transactions", "sinks", "topology", "partition", "acker")
# Each of these reads what another process of the same run has written, and nothing else.
UNPICKLED = {
    "service/spark_engine/task.py": "tasks of the driver, their results, and rows with a digest",
    "sinks/spark/executors.py": "what tasks hand back to the driver that has started them",
}
_LOADERS = {"load", "loads", "Unpickler"}
_MODULES = {"pickle", "cloudpickle", "marshal", "dill", "shelve", "yaml"}
# A file without any of these names need not be parsed.
_NAMED = re.compile(rf"(?<![.\w])(eval|exec|compile|shell|{'|'.join(_MODULES)})\b")


def nodes():
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        if _NAMED.search(text := path.read_text("utf-8")):
            for node in ast.walk(ast.parse(text)):
                yield path.relative_to(ROOT).as_posix(), node


def test_nothing_is_evaluated_and_only_what_the_same_run_wrote_is_unpickled():
    found = set()
    for path, node in nodes():
        match node:
            case ast.Call(func=ast.Name(id="eval" | "exec" | "compile")):
                pytest.fail(f"{path}:{node.lineno} evaluates a text")
            case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                pytest.fail(f"{path}:{node.lineno} asks a shell")
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
                found |= {path} if module in _MODULES and name in _LOADERS else set()
            case ast.ImportFrom(module=module) if module in _MODULES:
                assert not {each.name for each in node.names} & _LOADERS, f"hidden in {path}"
    assert found == set(UNPICKLED)
