import json

import pytest

from tests.support.prometheus import DASHBOARDS, expressions, filled_in, promtool, read
from tests.unit.deploy.test_alerts import ALERTS, PLAYED, RULES

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]


def test_promtool_accepts_the_rules():
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", RULES)


def test_every_alert_fires_when_it_should_and_only_then():
    assert "SUCCESS" in promtool("test", "rules", PLAYED)


def test_a_rule_that_would_not_fire_fails_its_test(tmp_path):
    for name, each in ALERTS.items():
        never = RULES.read_text().replace(f"expr: '{each['expr']}'", "expr: 'vector(0) > 1'")
        (tmp_path / RULES.name).write_text(never)
        (tmp_path / PLAYED.name).write_text(PLAYED.read_text())
        with pytest.raises(AssertionError, match=name):
            promtool("test", "rules", tmp_path / PLAYED.name)


def test_promtool_parses_every_expression_of_every_dashboard(tmp_path):
    asked = [filled_in(expr) for path in DASHBOARDS for _, expr in expressions(read(path))]
    rules = [{"record": f"asked:{number}", "expr": expr} for number, expr in enumerate(asked)]
    file = tmp_path / "asked.yml"
    file.write_text(json.dumps({"groups": [{"name": "asked", "rules": rules}]}))  # JSON is YAML
    assert f"{len(asked)} rules found" in promtool("check", "rules", file)
