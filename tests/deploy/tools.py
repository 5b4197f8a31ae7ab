"""The tools that `deploy/tools.sh` fetches, and Helm's output through them."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.chart import CHART, ROOT

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
TOOLS = Path(os.environ.get("HEADRACE_TOOLS") or _CACHE / "headrace/tools")
SCHEMAS = f"{TOOLS}/schemas/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
_SECONDS = 60.0

Manifest = dict[str, Any]


def tool(name: str) -> str:
    """Return a tool's path. Without it the test fails: a check that is not made says nothing."""
    for path in (TOOLS / "bin" / name, TOOLS / "venv/bin" / name):
        if path.is_file():
            return str(path)
    pytest.fail(f"there is no {name} in {TOOLS}: run deploy/tools.sh")


def run(
    name: str, *arguments: str | Path, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool(name), *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )


def template(*arguments: str | Path, chart: Path = ROOT / CHART) -> str:
    """Return what Helm makes of the chart in the namespace `prod`."""
    done = run("helm", "template", "orders", chart, "--namespace", "prod", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_values(values: Mapping[str, Any], base: Path) -> subprocess.CompletedProcess[str]:
    """Have Helm make manifests from a file and these values over it."""
    arguments = ("orders", ROOT / CHART, "--namespace", "prod", "-f", base, "-f", "-")
    return run("helm", "template", *arguments, given=json.dumps(values))  # JSON is YAML


def refusal(values: Mapping[str, Any], *, base: Path) -> str:
    """Return why Helm makes nothing of these values, over those of a file."""
    done = with_values(values, base)
    assert done.returncode != 0, done.stdout
    return done.stderr


def rendered(values: Mapping[str, Any], *, base: Path) -> Sequence[Manifest]:
    """Return the manifests for these values, over those of a file."""
    done = with_values(values, base)
    assert done.returncode == 0, done.stderr
    return manifests(done.stdout)


def manifests(text: str) -> Sequence[Manifest]:
    """Read YAML documents."""
    read = "filter(None, yaml.safe_load_all(sys.stdin))"
    script = f"import json, sys, yaml; json.dump([*{read}], sys.stdout)"
    done = run("python", "-c", script, given=text)
    assert done.returncode == 0, done.stderr
    found: list[Manifest] = json.loads(done.stdout)
    return found


def only(found: Sequence[Manifest], kind: str, *, suffix: str = "") -> Manifest:
    """Return the manifest of a kind whose name ends so."""
    (one,) = [
        each for each in found if each["kind"] == kind and each["metadata"]["name"].endswith(suffix)
    ]
    return one
