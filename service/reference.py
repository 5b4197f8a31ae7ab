"""Writes what is generated in `docs/`: `python -m service.reference`, in a checkout.

The text between `<!-- metrics -->` and `<!-- end -->` comes from the catalogue, that after
`<!-- tests: N -->` from the tests whose docstrings say that they hold promise N.
"""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

from service.metrics import CATALOGUE

ROOT = Path(__file__).resolve().parent.parent
METRICS = Path("docs/reference/metrics.md")
PROMISES = Path("docs/promises.md")

_BLOCK = re.compile(r"(<!-- ([a-z]+)(?:: (\d+))? -->\n).*?(<!-- end -->)", re.DOTALL)
_NAMED = re.compile(r"[Pp]romises? ((?:\d+(?:, | and )?)+)")


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
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted((root / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            numbers = " ".join(_NAMED.findall(ast.get_docstring(node) or ""))
            for number in sorted({int(each) for each in re.findall(r"\d+", numbers)}):
                place = path.relative_to(root / "tests").as_posix()
                found[number].append(f"- `{place}`: `{node.name}`")
    return found


def generated(text: str, root: Path = ROOT) -> str:
    """A page with its generated parts written anew."""
    tests = promise_tests(root)

    def block(match: re.Match[str]) -> str:
        start, kind, number, end = match.groups()
        body = metrics_table() if kind == "metrics" else "\n".join(tests[int(number)])
        return f"{start}\n{body or '- none'}\n\n{end}"

    return _BLOCK.sub(block, text)


def main() -> int:
    """Write the pages."""
    for page in (METRICS, PROMISES):
        path = ROOT / page
        path.write_text(generated(path.read_text(encoding="utf-8")), encoding="utf-8")
        sys.stdout.write(f"{page}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
