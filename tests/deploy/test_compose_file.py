import json

import pytest

from deploy.chart import ROOT
from service.config.settings import load
from tests.deploy.tools import packaged, run

FILE = ROOT / "docker-compose.yml"
SPECIFICATION = ("--builtin-schema", "vendor.compose-spec", "--output-format=json", "--verbose")


def test_it_keeps_to_the_specification_of_compose_where_a_key_that_is_none_is_found(tmp_path):
    spoilt = tmp_path / "docker-compose.yml"
    text = FILE.read_text(encoding="utf-8").replace("healthcheck:", "healthchecks:", 1)
    spoilt.write_text(text, encoding="utf-8")
    found = json.loads(run(packaged("check-jsonschema"), *SPECIFICATION, FILE, spoilt).stdout)
    assert found["successes"] == [str(FILE)], found
    assert {error["filename"] for error in found["errors"]} == {str(spoilt)}


@pytest.mark.parametrize(
    ("name", "warehouse"), [("service", "/data/warehouse"), ("spark", "/data/warehouse/spark")]
)
def test_the_service_takes_its_configuration(name, warehouse):
    config = load(ROOT / f"deploy/compose/{name}.toml")
    assert config.storage.warehouse == warehouse
    assert bool(config.spark.conf) == (name == "spark")
