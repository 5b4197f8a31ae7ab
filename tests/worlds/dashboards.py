"""What dashboards, rules and runbooks ask Prometheus for, and what there is to be asked."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.metrics import CATALOGUE
from service.reference import ROOT

FOLDER = ROOT / "deploy/grafana"
DASHBOARDS = sorted(FOLDER.glob("*.json"))
_OF_A_HISTOGRAM = ("_bucket", "_count", "_sum")
# What Grafana puts in: any value will do for one that only looks, if its form is right.
_VARIABLES = {"$__rate_interval": "1m", "$__range": "5m", "$__interval": "30s"}


def known_series() -> set[str]:
    """The names of every series that a replica exposes."""
    names = set()
    for metric in CATALOGUE:
        if metric.kind == "histogram":
            names |= {metric.name, *(metric.name + end for end in _OF_A_HISTOGRAM)}
        else:
            names.add(metric.name + ("_total" if metric.kind == "counter" else ""))
    return names


def named_series(text: str) -> set[str]:
    """The names of ours in an expression or a page."""
    return set(re.findall(r"\bheadrace_(?:partition|topology|acker|sinks|service)_[a-z_]+", text))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Its panels, without the rows that only part them."""
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
