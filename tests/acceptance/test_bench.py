"""The benchmark runs, and its last line is what its readers expect."""

import json
import subprocess
import sys

import pytest

VARIANTS = {"raw", "raw_json", "noop", "functions", "vectorised"}


@pytest.mark.acceptance
def test_the_hot_path_suite_ends_with_its_figures_as_one_json_object():
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", "hot-path", "--records", "1", "--rounds", "1"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert figures["suite"] == "hot-path"
    assert figures["records"] == 336_776
    assert set(figures["per_second"]) == set(figures["cpu_us"]) == VARIANTS
    assert set(figures["ratio"]) == {"noop", "functions", "vectorised"}
    assert all(value > 0 for value in figures["ratio"].values())
