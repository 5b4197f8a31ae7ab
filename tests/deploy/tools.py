"""The tools that look at what operators are given, and Helm's output through them.

Some come with the environment; `make deep` has more, which `deploy/tools.sh` fetches and builds.
"""

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.chart import CHART, ROOT
from tests.support.patience import seconds

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
TOOLS = Path(os.environ.get("HEADRACE_TOOLS") or _CACHE / "headrace/tools")
CI = ROOT / CHART / "ci"
CASES = sorted(path.name.removesuffix("-values.yaml") for path in CI.glob("*-values.yaml"))
SNAPSHOTS = Path(__file__).with_name("snapshots")
_SECONDS = seconds(60.0)

each_case = pytest.mark.parametrize("case", CASES)

Manifest = dict[str, Any]


def tool(name: str) -> str:
    """Return a built tool's path. Without it the test fails: a check that is not made is none."""
    path = TOOLS / "bin" / name
    if not path.is_file():
        pytest.fail(f"there is no {name} in {TOOLS}: run deploy/tools.sh")
    return str(path)


def packaged(name: str) -> str:
    """Return the path of a tool that comes as a wheel."""
    path = Path(sysconfig.get_path("scripts")) / name
    if name == "helm" and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("Helm's wheel is for Linux on x86-64 alone")
    return str(path)


def run(
    program: str, *arguments: str | Path, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )


def values_of(case: str) -> Path:
    return CI / f"{case}-values.yaml"


def template(*arguments: str | Path, chart: Path = ROOT / CHART, helm: str | None = None) -> str:
    done = run(
        helm or packaged("helm"), "template", "orders", chart, "--namespace", "prod", *arguments
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_values(values: Mapping[str, Any], base: Path) -> subprocess.CompletedProcess[str]:
    """Have Helm make manifests from a file and these values over it."""
    arguments = ("orders", ROOT / CHART, "--namespace", "prod", "-f", base, "-f", "-")
    return run(packaged("helm"), "template", *arguments, given=json.dumps(values))  # JSON is YAML


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
    return [each for each in yaml.safe_load_all(text) if each]


def only(found: Sequence[Manifest], kind: str, *, suffix: str = "") -> Manifest:
    (one,) = [
        each for each in found if each["kind"] == kind and each["metadata"]["name"].endswith(suffix)
    ]
    return one


def passes_inside(script: str, needs: str, images: str, tests: Path, folder: Path) -> None:
    """Run a file of tests inside what a script starts; all of them must pass."""
    tool(needs)
    kept = TOOLS / images
    assert kept.is_file(), f"there is no {kept}: run deploy/image.sh"
    options = ["-m", "deep", "-x", "-p", "no:cacheprovider", f"--basetemp={folder / 'inside'}"]
    done = subprocess.run(
        [ROOT / "deploy" / script, kept, sys.executable, "-m", "pytest", tests, *options],
        cwd=ROOT,
        env={**os.environ, "NODE_LOGS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds(580),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"=+ \d+ passed in ", done.stdout), done.stdout  # and none was left out
