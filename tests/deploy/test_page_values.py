"""The values that docs/how-to/deploy-with-helm.md shows: the chart takes each block of them."""

import re

import pytest

from deploy.chart import CHART, ROOT
from tests.deploy.tools import manifests, only, rendered

SMALLEST = ROOT / CHART / "ci/configmap-values.yaml"
PAGE = (ROOT / "docs/how-to/deploy-with-helm.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split(":")[0])
def test_the_chart_takes_the_values_of(block):
    (values,) = manifests(block)
    made = rendered({"pipeline": {"files": {}}, **values}, base=SMALLEST)
    assert only(made, "StatefulSet")["spec"]["template"]


def test_there_are_as_many_blocks_as_the_page_has_subjects():
    assert len(BLOCKS) >= 5
