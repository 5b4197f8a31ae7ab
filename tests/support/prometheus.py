"""A real Prometheus and its promtool, for tests that check what operators are given.

They are taken from PATH, or else, once, from Debian's package, into the environment: nothing is
installed.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.reference import ROOT
from service.devservers.process import free_ports
from service.observability.metrics import CATALOGUE
from tests.support.patience import seconds, until

DEBIAN = "prometheus=2.42.*"  # its libraries are linked into it
_KEPT = Path(sys.prefix) / "prometheus-2.42"


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is not None:
        return found
    kept = _KEPT / "usr/bin" / name
    if not kept.exists():
        _fetch()
    return str(kept)


def _fetch() -> None:
    if shutil.which("apt-get") is None:
        pytest.fail("put prometheus and promtool on PATH; without apt-get none can be fetched")
    folder = _KEPT.with_name(f"{_KEPT.name}.{os.getpid()}")
    folder.mkdir()
    try:
        _download(folder)
        (package,) = folder.glob("prometheus_*.deb")
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=folder, check=True)
        folder.replace(_KEPT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(folder: Path) -> None:
    command = ["apt-get", "download", DEBIAN]
    if subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode:
        subprocess.run(["apt-get", "update"], check=True, capture_output=True)
        subprocess.run(command, cwd=folder, check=True)


def promtool(*words: str | Path) -> str:
    """What promtool says; fails with it unless all is well."""
    ran = subprocess.run(
        [tool("promtool"), *map(str, words)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


class Prometheus:
    """One that scrapes some addresses every second, under the job `headrace`."""

    def __init__(self, folder: Path, targets: list[str], rules: Path) -> None:
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._folder = folder
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "headrace", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        command = [
            tool("prometheus"),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self.address}",
        ]
        with (self._folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until("Prometheus is ready", self._is_ready, 60, self.log)
            yield
        finally:
            process.terminate()
            process.wait(seconds(30))

    def log(self) -> str:
        return (self._folder / "prometheus.log").read_text()

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=seconds(30)) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            pytest.fail(f"{query}: {error.read().decode()}")

    def series(self, expr: str) -> int:
        return len(self.ask("query", query=expr)["result"])

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=seconds(5)):
                return True
        except OSError:
            return False


FOLDER = ROOT / "deploy/grafana"
DASHBOARDS = sorted(FOLDER.glob("*.json"))
_OF_A_HISTOGRAM = ("_bucket", "_count", "_sum")
# What Grafana puts in: any value will do for one that only looks, if its form is right.
_VARIABLES = {"$__rate_interval": "1m", "$__range": "5m", "$__interval": "30s"}


def known_series() -> set[str]:
    names = set()
    for metric in CATALOGUE:
        if metric.kind == "histogram":
            names |= {metric.name, *(metric.name + end for end in _OF_A_HISTOGRAM)}
        else:
            names.add(metric.name + ("_total" if metric.kind == "counter" else ""))
    return names


def named_series(text: str) -> set[str]:
    return set(re.findall(r"\bheadrace_(?:partition|topology|acker|sinks|service)_[a-z_]+", text))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title of the panel and expression, of every one."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def filled_in(expr: str) -> str:
    """An expression as Grafana sends it, with every variable at All."""
    for variable, value in _VARIABLES.items():
        expr = expr.replace(variable, value)
    return re.sub(r"\$[a-z]+\b", ".*", expr)
