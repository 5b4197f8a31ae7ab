"""Writes what the Helm chart has from elsewhere anew: `python -m deploy.chart`.

The table of its README.md comes from the comments of values.yaml; dashboards and alert rules are
copies of `deploy/grafana` and `deploy/prometheus`, because a chart is packed from its own folder.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHART = Path("helm/headrace")
_LINE = re.compile(r"(?P<indent> *)(?P<key>[\w.-]+):(?: (?P<literal>\S.*))?")
_BEGIN, _END = "<!-- values -->", "<!-- end -->"
_WIDEST = 60  # a longer default is looked up in values.yaml


class BadValues(ValueError):
    """values.yaml has a line that is not in its form: JSON leaves, each with a comment."""


@dataclass(frozen=True, slots=True)
class Value:
    """A leaf of values.yaml: the keys that lead to it, its default, and what it says."""

    path: tuple[str, ...]
    default: Any
    what: str


def values(text: str) -> Iterator[Value]:
    """Read values.yaml in the order of its lines. Raises BadValues, naming the line."""
    parents: list[str] = []
    said: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            said = []
            continue
        if line.lstrip().startswith("#"):
            said.append(line.strip().removeprefix("#").strip())
            continue
        match = _LINE.fullmatch(line)
        if match is None or len(match["indent"]) % 2 or len(match["indent"]) // 2 > len(parents):
            raise BadValues(f"values.yaml:{number}: not `key: JSON` in steps of two: {line!r}")
        parents = [*parents[: len(match["indent"]) // 2], match["key"]]
        if match["literal"] is not None:
            if not said:
                raise BadValues(f"values.yaml:{number}: no comment above {'.'.join(parents)}")
            yield Value(tuple(parents), _json(match["literal"], number), " ".join(said))
        said = []


def _json(literal: str, number: int) -> Any:
    try:
        return json.loads(literal)
    except ValueError as error:
        raise BadValues(f"values.yaml:{number}: not JSON: {literal!r}") from error


def defaults(text: str) -> dict[str, Any]:
    """Return values.yaml as a tree."""
    tree: dict[str, Any] = {}
    for value in values(text):
        branch = tree
        for key in value.path[:-1]:
            branch = branch.setdefault(key, {})
        branch[value.path[-1]] = value.default
    return tree


def table(text: str) -> str:
    """Return the table of README.md."""
    lines = ["| value | default | what |", "| --- | --- | --- |"]
    for value in values(text):
        default = json.dumps(value.default, ensure_ascii=False)
        shown = f"`{default}`" if len(default) <= _WIDEST else "see values.yaml"
        lines.append(
            f"| `{'.'.join(value.path)}` | {shown} | {value.what.replace('|', '&#124;')} |"
        )
    return "\n".join(lines)


def readme(page: str, text: str) -> str:
    """Return the chart's README.md with its table put in."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{table(text)}\n\n{_END}{after}"


def copies(root: Path = ROOT) -> Mapping[Path, bytes]:
    """Return what must lie in the chart's `files/`: dashboards, and files of alert rules."""
    found = {}
    for path in sorted((root / "deploy/grafana").rglob("*.json")):
        if "panels" in json.loads(path.read_bytes()):
            found[root / CHART / "files/dashboards" / path.name] = path.read_bytes()
    for path in sorted((root / "deploy/prometheus").rglob("*.y*ml")):
        # Neither promtool's tests nor Prometheus' own configuration begin with groups.
        if re.search(r"^groups:", path.read_text(encoding="utf-8"), re.MULTILINE):
            found[root / CHART / "files/rules" / path.name] = path.read_bytes()
    return found


def present(root: Path = ROOT) -> Mapping[Path, bytes]:
    """Return what lies there."""
    files = (root / CHART / "files").rglob("*")
    return {path: path.read_bytes() for path in files if path.is_file() and path.name != ".gitkeep"}


def write(root: Path = ROOT) -> None:
    """Write the README's table and the copies; remove copies of what is gone."""
    text = (root / CHART / "values.yaml").read_text(encoding="utf-8")
    page = root / CHART / "README.md"
    page.write_text(readme(page.read_text(encoding="utf-8"), text), encoding="utf-8")
    wanted = copies(root)
    for path in present(root).keys() - wanted.keys():
        path.unlink()
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    write()
