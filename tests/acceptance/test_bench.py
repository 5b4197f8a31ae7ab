"""Every suite of measurements runs, and its last line is one JSON object with its goals."""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from benchmarks.__main__ import SUITES
from benchmarks.publishing import publish
from tests.support.committed_messages import committed_messages
from tests.support.patience import seconds

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

EACH_CHANGE = "acker"  # the others run at night
PAGE = Path(__file__).resolve().parents[2] / "docs/benchmarks.md"
SMALL = (
    "--records", "40000", "--rounds", "1", "--slow-seconds", "0.5", "--trees", "8000",
    "--in-flight", "50000",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == EACH_CHANGE else pytest.mark.nightly)
        for name in SUITES
    ],
)
def test_suite_ends_with_its_figures_as_a_json_object(tmp_path, name):
    page = tmp_path / "benchmarks.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, *SMALL, "--report", str(page)],
        capture_output=True,
        text=True,
        timeout=seconds(600),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout.splitlines()[-1])
    assert facts["suite"] == name
    assert name == "acker" or facts["goals"]
    assert page.read_text(encoding="utf-8") != PAGE.read_text(encoding="utf-8")


def test_records_are_published_to_the_partitions_in_turn(kafka):
    name = f"published-{uuid.uuid4().hex[:8]}"
    publish(kafka, name, b"%d".__mod__, 10_007, partitions=3)
    records = committed_messages(kafka.address, name)
    assert len(records) == 10_007
    assert all(int(r.value()) == 3 * r.offset() + r.partition() for r in records)
