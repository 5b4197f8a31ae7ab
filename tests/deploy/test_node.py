"""The chart on a real Kubernetes of one node: each file of tests runs inside a node of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.chart import ROOT
from tests.deploy.tools import TOOLS, tool
from tests.support.patience import seconds

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

IMAGES = TOOLS / "images.tar"
INSIDE = sorted(Path(__file__).parent.glob("node_*.py"))


@pytest.mark.parametrize(
    "tests",
    [path for path in INSIDE if path.stem != "node_world"],
    ids=lambda path: path.stem.removeprefix("node_"),
)
def test_on_a_node(tests, tmp_path):
    tool("kube")
    assert IMAGES.is_file(), f"there is no {IMAGES}: run deploy/image.sh"
    pytest_of_node = [sys.executable, "-m", "pytest", tests, "-m", "deep", "-x"]
    options = ["-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inside'}"]
    done = subprocess.run(
        [ROOT / "deploy/node.sh", IMAGES, *pytest_of_node, *options],
        cwd=ROOT,
        env={**os.environ, "NODE_LOGS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds(580),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"=+ \d+ passed in ", done.stdout), done.stdout  # and none was left out
