import json
import re
from pathlib import Path

import pytest

from deploy.chart import ROOT
from tests.deploy.tools import manifests, passes_inside, run, tool
from tests.support.prometheus import DASHBOARDS

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

FILE = ROOT / "docker-compose.yml"
COMPOSE = ROOT / "deploy/compose"


@pytest.fixture(scope="module")
def config():
    done = run(tool("docker-compose"), "--file", FILE, "--profile=*", "config", "--format=json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_that_it_mounts_is_there_and_read_only(config):
    mounts = [mount for each in config["services"].values() for mount in each.get("volumes", [])]
    bound = [mount for mount in mounts if mount["type"] == "bind"]
    assert bound
    for mount in bound:
        assert Path(mount["source"]).exists(), mount
        assert mount["read_only"], mount


def test_nothing_listens_but_on_this_machine(config):
    ports = [port for each in config["services"].values() for port in each.get("ports", [])]
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_everything_that_runs_on_has_a_health_check(config):
    lasting = {name for name, each in config["services"].items() if name != "publish"}
    assert lasting == {name for name, each in config["services"].items() if
                       "test" in each.get("healthcheck", {})}  # fmt: skip


def test_grafana_gets_every_dashboard_and_prometheus(config):
    grafana = config["services"]["grafana"]
    mounted = {mount["target"]: Path(mount.get("source", "")) for mount in grafana["volumes"]}
    provisioning = mounted["/etc/grafana/provisioning"]
    (sources,) = manifests((provisioning / "datasources/prometheus.yml").read_text("utf-8"))
    (source,) = sources["datasources"]
    (job,) = manifests((COMPOSE / "prometheus.yml").read_text("utf-8"))
    assert source["type"] == "prometheus"
    assert source["url"].removeprefix("http://").split(":")[0] in config["services"]
    assert [each["job_name"] for each in job["scrape_configs"]] == ["headrace"]
    (providers,) = manifests((provisioning / "dashboards/headrace.yml").read_text("utf-8"))
    folder = mounted[providers["providers"][0]["options"]["path"]]
    assert sorted(folder.glob("*.json")) == DASHBOARDS
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert folder / home.name in DASHBOARDS


def test_stand_in_images_have_the_files_names_and_versions(config):
    script = (ROOT / "deploy/image.sh").read_text(encoding="utf-8")
    found = re.search(r"for each in (.*:.*); do", script)
    made = {each.removeprefix("library/") for each in found[1].split()}
    named = {each["image"] for each in config["services"].values()}
    assert made == {each for each in named if not each.startswith(("headrace", "grafana"))}


def test_on_an_engine(tmp_path):
    tests = Path(__file__).with_name("engine_compose.py")
    passes_inside("engine.sh", "docker-compose", "compose.tar", tests, tmp_path)
