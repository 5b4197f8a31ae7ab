"""The dashboards, as far as that is known without Grafana and Prometheus.

`make deep` has Prometheus parse and answer every expression.
"""

import re
from itertools import combinations

import pytest

from tests.support.prometheus import (
    DASHBOARDS,
    expressions,
    filled_in,
    known_series,
    named_series,
    panels,
    read,
)

CHOSEN = 'job=~"$job", instance=~"$instance"'
each = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


@each
def test_whoever_looks_chooses_prometheus_job_and_instance(path):
    dashboard = read(path)
    assert dashboard["uid"] == path.stem, "its address"
    assert not {"id", "__inputs"} & dashboard.keys()
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert {"job", "instance"} < set(variables)
    for panel in panels(dashboard):
        for place in (panel, *panel["targets"]):
            assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    used = {
        name for _, expr in expressions(dashboard) for name in re.findall(r"\$([a-z]+)\b", expr)
    }
    assert used == set(variables) - {"datasource"}


@each
def test_expressions_and_variables_name_known_series_of_chosen_replicas(path):
    dashboard = read(path)
    asked = [
        (each["name"], each["query"]["query"])
        for each in dashboard["templating"]["list"]
        if each["type"] == "query"
    ]
    for title, expr in (*asked, *expressions(dashboard)):
        named = named_series(expr)
        assert named, title
        assert named - known_series() == set(), title
    for title, expr in expressions(dashboard):
        assert expr.count(CHOSEN) == len(re.findall(r"\bheadrace_\w+\{", expr)), title
        assert "$" not in filled_in(expr), title


@each
def test_every_panel_has_a_place_and_says_what_it_shows_and_in_which_unit(path):
    shown, placed = panels(read(path)), read(path)["panels"]
    assert len({panel["title"] for panel in shown}) == len(shown)
    for panel in shown:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
    assert len({panel["id"] for panel in placed}) == len(placed)
    for one, other in combinations([panel["gridPos"] for panel in placed], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in placed)


def test_there_is_one_for_each_question():
    names = {f"headrace-{name}" for name in ("overview", "topology", "partitions", "sinks")}
    assert {path.stem for path in DASHBOARDS} == names
    asked = {
        name for path in DASHBOARDS for _, e in expressions(read(path)) for name in named_series(e)
    }
    for room in ("partition", "topology", "sinks", "acker", "service"):
        assert any(name.startswith(f"headrace_{room}_") for name in asked)
    (overview,) = (path for path in DASHBOARDS if path.stem == "headrace-overview")
    rows = [panel["title"] for panel in read(overview)["panels"] if panel["type"] == "row"]
    assert rows[:3] == ["Is it keeping up?", "Is anything stuck?", "What failed, and why?"]
