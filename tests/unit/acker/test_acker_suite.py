"""The benchmark of the acker runs, and its last line is what its readers expect."""

import json
import subprocess
import sys

from tests.support.patience import seconds


def test_the_acker_suite_ends_with_its_figures_as_one_json_object():
    ended = subprocess.run(
        [
            sys.executable, "-m", "benchmarks", "acker",
            "--trees", "8000", "--in-flight", "50000", "--rounds", "1",
        ],
        capture_output=True, text=True, timeout=seconds(60), check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert figures["suite"] == "acker"
    assert figures["in_flight"] == 50_000
    assert 19 <= figures["bytes_per_tree"] <= 20
    assert set(figures["ns_per_tree"]) == {"batch_1000", "batch_4000"}
    assert all(value > 0 for value in figures["ns_per_tree"].values())
