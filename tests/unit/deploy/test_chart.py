import json
import re
import tomllib

import jsonschema
import pytest

from deploy.chart import CHART, ROOT, BadValues, copies, defaults, present, readme, values, write
from service.config.settings import Config, PipelineConfig

FOLDER = ROOT / CHART
VALUES = (FOLDER / "values.yaml").read_text(encoding="utf-8")
SCHEMA = json.loads((FOLDER / "values.schema.json").read_text(encoding="utf-8"))
HELPERS = (FOLDER / "templates/_helpers.tpl").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_readme_lists_the_values_as_they_are():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert page == readme(page, VALUES), "run `python -m deploy.chart`"
    for value in values(VALUES):
        assert f"| `{'.'.join(value.path)}` |" in page


def test_a_value_without_a_comment_or_that_is_no_json_is_refused():
    assert [value.path for value in values("# What.\na:\n  # It is.\n  b: 1\n")] == [("a", "b")]
    with pytest.raises(BadValues, match=r"values.yaml:2: no comment above a\.b"):
        list(values("a:\n  b: 1\n"))
    with pytest.raises(BadValues, match=r"values.yaml:2: not JSON: 'yes'"):
        list(values("# It is.\na: yes\n"))
    with pytest.raises(BadValues, match=r"values.yaml:1: not `key: JSON`"):
        list(values("- a\n"))


def test_dashboards_and_rules_in_the_chart_are_those_of_deploy():
    assert present() == copies(), "run `python -m deploy.chart`"


def test_dashboards_and_rules_are_told_from_what_lies_beside_them(tmp_path):
    for name, text in {
        "deploy/grafana/overview.json": '{"panels": []}',
        "deploy/grafana/provisioning.json": "{}",
        "deploy/prometheus/alerts.yaml": "# Why.\ngroups:\n  - name: a\n",
        "deploy/prometheus/alerts.test.yaml": "rule_files: [alerts.yaml]\ntests: []\n",
        "deploy/prometheus/prometheus.yml": "scrape_configs: []\n",
        f"{CHART}/files/rules/old.yaml": "groups: []\n",
        f"{CHART}/files/rules/.gitkeep": "",
        f"{CHART}/values.yaml": "# What.\na: 1\n",
        f"{CHART}/README.md": "<!-- values --><!-- end -->\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert present(tmp_path) != copies(tmp_path)
    write(tmp_path)
    files = tmp_path / CHART / "files"
    assert present(tmp_path) == copies(tmp_path)
    assert {str(path.relative_to(files)) for path in copies(tmp_path)} == {
        "dashboards/overview.json",
        "rules/alerts.yaml",
    }
    assert "| `a` | `1` | What. |" in (tmp_path / CHART / "README.md").read_text(encoding="utf-8")


def test_values_need_only_a_topology():
    given = defaults(VALUES)
    with pytest.raises(jsonschema.ValidationError, match=r"does not match"):
        jsonschema.validate(given, SCHEMA)
    jsonschema.validate({**given, "topology": "orders:topology"}, SCHEMA)


def leaves(schema, path=()):
    for key, inner in schema["properties"].items():
        if (*path, key) in DEFAULTS or "properties" not in inner:
            yield (*path, key)
        else:
            yield from leaves(inner, (*path, key))


DEFAULTS = {value.path for value in values(VALUES)}


WRONG = [
    {"replicas": 2}, {"topology": "orders"}, {"image": {"digest": "abc"}}, {"port": 80},
    {"kafka": {"password": "in the clear"}}, {"config": {"http": {"port": 9095}}},
    {"config": {"pipelines": {}}}, {"autoscaling": {"minReplicas": 0}},
    {"probes": {"startup": {"path": "health"}}}, {"topologySpread": [{"topologyKey": "zone"}]},
    {"commonLabels": {"version": 1}},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_the_schema_refuses(wrong):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"topology": "orders:topology", **wrong}, SCHEMA)


def test_the_schema_has_the_values_and_the_services_sections_but_http():
    assert set(leaves(SCHEMA)) == DEFAULTS | {("global",)}
    assert set(SCHEMA["properties"]["config"]["properties"]) == set(Config.model_fields) - {"http"}


def test_chart_and_service_have_one_version_and_default_drain():
    drain = PipelineConfig().drain_seconds
    assert f'dig "pipeline" "drain_seconds" {drain:.0f} .Values.config' in HELPERS
    assert defaults(VALUES)["existingConfig"]["drainSeconds"] == drain
    chart = (FOLDER / "Chart.yaml").read_text(encoding="utf-8")
    assert f"\nappVersion: {PROJECT['project']['version']}\n" in chart


def locked(name):
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for match in re.finditer(r"^([\w.-]+)==(\S+).*\\\n((?:    --hash.*\n)+)", text, re.MULTILINE):
        found.setdefault(match[1], set()).update(re.findall(r"sha256:\w{64}", match[3]))
        found[match[1]].add(match[2])
    return found


@pytest.mark.parametrize("lock", ["run.lock", "spark.lock", "build.lock", "examples.lock"])
def test_images_and_a_first_run_install_what_the_tests_ran_on(lock):
    tested, installed = locked("dev.lock"), locked(lock)
    assert installed
    assert {name: tested.get(name) for name in installed} == installed, "run `make lock`"


def test_the_images_have_every_dependency_and_the_extras_for_all():
    extras = PROJECT["project"]["optional-dependencies"]
    slim = [*PROJECT["project"]["dependencies"]]
    for extra in ("delta", "iceberg", "postgres", "tracing"):
        slim += extras[extra]
    assert {re.split(r"[\[<>=]", each)[0] for each in slim} <= locked("run.lock").keys()
    assert not {"pyspark", "py4j"} & locked("run.lock").keys()
    assert locked("spark.lock").keys() == {"pyspark", "py4j"}
    assert extras["all"] == ["headrace[delta,iceberg,postgres,spark]"]
    for name in ("run.lock", "examples.lock"):
        assert not {"pytest", "mypy", "ruff"} & locked(name).keys()


def test_the_image_is_built_from_every_room_and_little_else():
    rooms = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = re.findall(
        r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$",
        (ROOT / "Dockerfile").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in ignore
    sources = {source for line in copied for source in line.split()}
    assert set(rooms) <= sources
    assert {line[1:] for line in ignore if line.startswith("!")} == {
        "deploy/image" if source.startswith("deploy/image/") else source for source in sources
    }
