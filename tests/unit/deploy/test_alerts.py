"""Alert rules, their own tests and their runbooks, as far as that is known without Prometheus.

`make deep` has promtool check and play them.
"""

import re
from pathlib import Path

import pytest

from deploy.reference import ROOT
from tests.support.prometheus import known_series, named_series

RULES = ROOT / "deploy/prometheus/headrace-alerts.yaml"
PLAYED = ROOT / "deploy/prometheus/headrace-alerts.test.yaml"
RUNBOOKS = ROOT / "docs/runbooks"
_RULE = re.compile(
    r"      - alert: (?P<name>\w+)\n"
    r"        expr: '(?P<expr>.*)'\n"
    r"        for: \d+m\n"
    r"        labels:\n"
    r"          severity: (?P<severity>\w+)\n"
    r"        annotations:\n"
    r"          summary: '(?P<summary>.+)'\n"
    r"          description: '(?P<description>.+)'\n"
    r"          runbook_url: (?P<runbook>\S+)\n"
)
ALERTS = {each["name"]: each for each in _RULE.finditer(RULES.read_text(encoding="utf-8"))}
WANTED = (
    "HeadracePartitionStuck", "HeadraceLagGrowing", "HeadraceCommitOld", "HeadraceDeadLetters",
    "HeadraceDataLoss", "HeadraceFenced", "HeadraceSinkFailing", "HeadraceBackpressure",
)  # fmt: skip


def test_every_rule_is_written_in_full():
    text = RULES.read_text(encoding="utf-8")
    assert text.count("- alert:") == len(ALERTS)
    assert set(ALERTS) >= set(WANTED)
    assert {each["severity"] for each in ALERTS.values()} <= {"critical", "warning"}


@pytest.mark.parametrize("name", ALERTS)
def test_a_rule_of_known_series_has_a_runbook_that_names_it(name):
    named = named_series(ALERTS[name]["expr"])
    assert named or name == "HeadraceReplicaDown"
    page = ROOT / ALERTS[name]["runbook"]
    assert page.parent == RUNBOOKS
    text = page.read_text(encoding="utf-8")
    assert f"Alert: `{name}`." in text
    for part in ("What it means", "What you see", "What to do", "When to escalate"):
        assert f"\n## {part}\n" in text
    assert re.search(r"^\$ headrace ", text, re.MULTILINE), "no command to give"
    assert (named | named_series(text)) - known_series() == set()


def test_every_runbook_is_some_rule_s_and_is_in_the_index():
    pages = {page for page in RUNBOOKS.glob("*.md") if page.name != "README.md"}
    assert {ROOT / each["runbook"] for each in ALERTS.values()} == pages
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    for name, each in ALERTS.items():
        assert f"| `{name}` | [" in index
        assert f"]({Path(each['runbook']).name}) |" in index


@pytest.mark.parametrize("name", ALERTS)
def test_a_rule_is_played_where_it_fires_and_where_it_does_not(name):
    played = PLAYED.read_text(encoding="utf-8").split("  - name: ")[1:]
    of_rule = [each for each in played if f"- alertname: {name}\n" in each]
    assert any("exp_annotations:" in each for each in of_rule)
    assert any("exp_alerts: []" in each for each in of_rule)
