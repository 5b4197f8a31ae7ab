"""The chart on a real Kubernetes of one node: each file of tests runs inside a node of its own."""

from pathlib import Path

import pytest

from tests.deploy.tools import passes_inside

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

INSIDE = sorted(Path(__file__).parent.glob("node_*.py"))


@pytest.mark.parametrize(
    "tests",
    [path for path in INSIDE if path.stem != "node_world"],
    ids=lambda path: path.stem.removeprefix("node_"),
)
def test_on_a_node(tests, tmp_path):
    passes_inside("node.sh", "kube", "images.tar", tests, tmp_path)
