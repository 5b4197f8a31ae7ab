"""What Headrace is made of: a bill that its schema takes, and no licence that is not allowed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from license_expression import get_spdx_licensing

from deploy.dependencies import ALLOWED, REQUIREMENTS, ROOT, dependencies
from deploy.sbom import PAGE, bill, page
from service.jars.lock import read_lock
from tests.support.patience import seconds


@pytest.fixture(scope="module")
def found():
    return dependencies()


def test_the_bill_is_what_its_schema_demands(found):
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill(found)) is None


def test_bill_has_every_locked_package_and_jar(found):
    parts = {each["purl"]: each for each in json.loads(bill(found))["components"]}
    for jar in read_lock().jars:
        group, artifact, version = jar.coordinate
        part = parts[f"pkg:maven/{group}/{artifact}@{version}"]
        assert {"alg": "SHA-256", "content": jar.sha256} in part["hashes"]
    locked = named(*REQUIREMENTS.values())
    packages = {each["name"] for each in parts.values() if each["purl"].startswith("pkg:pypi/")}
    assert locked - packages == {"colorama", "httpx2-jsfetch", "tzdata"}  # not on Linux
    assert all(each["hashes"] and each["licenses"] for each in parts.values())


def named(*locks: Path) -> set[str]:
    text = "\n".join(lock.read_text("utf-8") for lock in locks)
    return set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))


def test_the_slim_image_has_neither_spark_nor_a_jar(tmp_path):
    command = [sys.executable, "-m", "deploy.sbom", "--slim", tmp_path / "slim.json"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=seconds(60))
    text = (tmp_path / "slim.json").read_text("utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    parts = json.loads(text)["components"]
    assert {each["purl"].partition("/")[0] for each in parts} == {"pkg:pypi"}
    names = {each["name"] for each in parts}
    assert not names & {"pyspark", "py4j"}
    assert named(REQUIREMENTS["slim"]) - names == {"colorama", "httpx2-jsfetch", "tzdata"}


def test_every_licence_is_an_expression_of_allowed_ones(found):
    licensing = get_spdx_licensing()
    for each in found:
        parsed = licensing.parse(each.licence, validate=True)
        chosen = {str(key) for key in licensing.license_keys(parsed)}
        assert chosen <= ALLOWED, f"{each.name} is under {each.licence}"


def test_the_page_of_licences_is_in_step_with_the_locks(found):
    assert PAGE.read_text("utf-8") == page(found), "run python -m deploy.sbom --page"


def test_the_image_has_the_sets_of_jars_that_the_bill_says(found):
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    (named,) = re.findall(r"for jars in \(([^)]*)\)", dockerfile)
    sets = set(re.findall(r'"([\w-]+)"', named))
    shipped = {(each.group, each.name) for each in found if each.kind == "jar" and each.image}
    assert shipped == {
        jar.coordinate[:2] for jar in read_lock().jars if jar.set_name in sets
    }  # fmt: skip
