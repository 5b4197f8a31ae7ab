"""The benchmark of the acker runs, and its last line is what its readers expect."""

import json
import subprocess
import sys


def test_the_acker_suite_ends_with_its_figures_as_one_json_object():
    ended = subprocess.run(
        [
            sys.executable, "-m", "benchmarks", "acker",
            "--trees", "8000", "--in-flight", "50000", "--rounds", "1",
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert figures["suite"] == "acker"
    assert figures["in_flight"] == 50_000
    assert 19 <= figures["bytes_per_tree"] <= 20
    variants = {"batch_1000", "batch_4000", "single", "dictionary"}
    assert set(figures["ns_per_tree"]) == variants
    assert all(value > 0 for value in figures["ns_per_tree"].values())
    assert figures["single_to_dictionary"] > 0


def test_the_dictionary_acker_keeps_the_same_rules():
    from benchmarks.dictionary_acker import DictionaryAcker  # noqa: PLC0415

    trees = DictionaryAcker()
    for root in range(4):
        trees.begin(root, 10 + root)
    trees.init(0, 5)
    trees.ack(0, 5)
    trees.ack(1, 5)
    trees.init(1, 5)
    trees.fail(2)
    trees.init(2, 0)
    trees.init(3, 5)
    trees.fail(3)
    trees.ack(3, 5)
    assert (trees.acked, trees.failed, trees.ignored) == ([10, 11], [12, 13], 1)
