"""No bytes from outside become code: where objects are unpickled is told here, with why."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("headrace", "service", "transactions", "sinks", "topology", "partition", "acker")
# Each of these reads what another process of the same run has written, and nothing else.
UNPICKLED = {
    "service/spark_engine/task.py": "tasks of the driver, their results, and rows with a digest",
    "sinks/spark/executors.py": "what tasks hand back to the driver that has started them",
}
_LOADERS = {"load", "loads", "Unpickler"}
_MODULES = {"pickle", "cloudpickle", "marshal", "dill", "shelve", "yaml"}


def calls(room: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call in a room, and the file that it stands in."""
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                yield path.relative_to(ROOT).as_posix(), node


def unpickles(call: ast.Call) -> bool:
    """Whether it makes objects of a pickle, or of another format that can run code."""
    name = call.func
    return (
        isinstance(name, ast.Attribute)
        and name.attr in _LOADERS
        and isinstance(name.value, ast.Name)
        and name.value.id in _MODULES
    )


def test_objects_are_unpickled_only_where_their_writer_is_of_the_same_run() -> None:
    found = {path for room in ROOMS for path, call in calls(room) if unpickles(call)}
    assert found == set(UNPICKLED)


def test_no_text_is_evaluated_and_no_shell_is_asked() -> None:
    for room in ROOMS:
        for path, call in calls(room):
            name = call.func
            assert not (isinstance(name, ast.Name) and name.id in {"eval", "exec", "compile"}), path
            for keyword in call.keywords:
                assert not (keyword.arg == "shell" and ast.unparse(keyword.value) == "True"), path


def test_loaders_are_not_hidden_by_an_import_of_their_own() -> None:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
                    names = {each.name for each in node.names}
                    assert not names & _LOADERS, path
