import ast
from collections.abc import Iterator
from pathlib import Path


def marks_of(path: Path) -> dict[str, set[str]]:
    """The marks of each test of a file, its module's among them; not those of parameters."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    named: dict[str, set[str]] = {}

    def marks(node: ast.expr) -> Iterator[str]:
        match node:
            case ast.Attribute(value=ast.Attribute(attr="mark"), attr=mark):
                yield mark
            case ast.Call(func=called):
                yield from marks(called)
            case ast.List(elts=each) | ast.Tuple(elts=each):
                for one in each:
                    yield from marks(one)
            case ast.Name(id=name):
                yield from named.get(name, ())

    for each in body:
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                named[name] = set(marks(value))
    return {
        each.name: named.get("pytestmark", set()).union(*map(marks, each.decorator_list))
        for each in body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and each.name.startswith("test_")
    }
