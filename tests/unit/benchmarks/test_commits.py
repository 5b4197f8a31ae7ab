"""Suite commits: when the memory is looked at, and what is told of it."""

import json
from types import SimpleNamespace

import pytest

from benchmarks import commits, commits_variants
from benchmarks.commits_variants import COMMIT_RECORDS, VARIANTS, Marks, early
from benchmarks.footprint import Footprint


def figures(**changed):
    marks = {
        "early_commits": 101, "early_heap_mb": 60.0, "early_jvm_mb": 500.0,
        "early_python_mb": 200.0, "end_commits": 320, "end_heap_mb": 63.0,
        "end_jvm_mb": 600.0, "end_python_mb": 190.0,
    }  # fmt: skip
    return {"records": 320_000, "per_second": 5_000.0, "open_seconds": 1.0} | marks | changed


@pytest.fixture
def bench(monkeypatch, fake_bench):
    fake = fake_bench({})
    monkeypatch.setattr(fake, "run", lambda *_job: figures())
    monkeypatch.setattr(fake, "publish", lambda *_topic, partitions: partitions)
    return fake


def snapshot(committed, commits):
    return SimpleNamespace(
        sinks=[SimpleNamespace(batches_written=commits)],
        partitions=[SimpleNamespace(committed=committed)],
    )


@pytest.fixture
def looks(monkeypatch):
    """Marks over a run of 300 commits, whose memory grows by a megabyte with each look."""
    taken = []

    def of(spark):
        taken.append(spark)
        return Footprint(10.0 + len(taken), 20.0 + len(taken), 30.0 + len(taken))

    monkeypatch.setattr(commits_variants.Footprint, "of", of)
    return Marks("spark", 300 * COMMIT_RECORDS)


def test_every_variant_of_the_suite_is_there():
    assert tuple(VARIANTS) == commits.VARIANTS


def test_the_growth_of_each_part_is_held_against_a_tenth(bench):
    facts = commits.run(bench).json
    assert facts["records"] == commits.COMMITS * COMMIT_RECORDS
    assert facts["commits"] == {"local": [101, 320]}
    assert facts["per_second"] == {"local": 5.0}
    assert facts["held"]["local"]["jvm_mb"] == [500.0, 600.0]
    assert facts["growth"] == {"local": {"heap_mb": 1.05, "jvm_mb": 1.2, "python_mb": 0.95}}
    assert {name: goal["met"] for name, goal in facts["goals"].items()} == {
        "local: growth of JVM's heap": True,
        "local: growth of JVM resident": False,
        "local: growth of Python resident": True,
    }
    json.dumps(facts)


def test_the_table_names_the_commits_that_were_counted(bench):
    (table,) = commits.run(bench).tables
    assert table.columns == ("of", "after 101", "after 320", "growth")
    assert table.rows[0] == ("JVM's heap", "60.0", "63.0", "1.050")


def test_the_memory_is_looked_at_after_a_hundred_commits_and_when_all_is_committed(looks):
    for commits_made in (0, 99, 102, 103, 299):
        looks(None, snapshot(commits_made * COMMIT_RECORDS, commits_made))
    assert looks.found == {
        "early_commits": 102, "early_heap_mb": 11.0, "early_jvm_mb": 21.0, "early_python_mb": 31.0
    }  # fmt: skip
    for _ in range(2):
        looks(None, snapshot(300 * COMMIT_RECORDS, 300))
    assert looks.found["end_commits"] == 300
    assert looks.found["end_heap_mb"] == 12.0


@pytest.mark.parametrize(("commits_made", "first"), [(320, 100), (300, 100), (40, 13), (1, 1)])
def test_a_short_run_is_looked_at_after_a_third(commits_made, first):
    assert early(commits_made * COMMIT_RECORDS) == first
