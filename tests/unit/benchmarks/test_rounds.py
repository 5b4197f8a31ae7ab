"""A bench's rounds: which variant runs when and where, and which of them under the sampler."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks import bench as benches
from benchmarks.bench import Bench
from benchmarks.options import Options


class Jobs(list):
    """Notes the jobs that are run, and where; measures nothing."""

    def alone(self, job, _meanwhile=None):
        self.append(("alone", job))
        return {"records": job.records, "profile": {"samples": 1}}

    def run(self, job, _meanwhile=None):
        self.append(("together", job))
        return {"records": job.records, "profile": {"samples": 1}}

    def close(self):
        pass


@pytest.fixture
def jobs(monkeypatch):
    found = Jobs()
    monkeypatch.setattr(benches, "run_alone", found.alone)
    monkeypatch.setattr(benches, "Together", lambda: found)
    return found


def rounds(options, **asked):
    with Bench(Console(quiet=True), options) as bench:
        server = SimpleNamespace(address="somewhere")
        bench._servers = SimpleNamespace(kafka=server, zookeeper=server)
        runs = bench.rounds("module", ("a", "b", "c"), "topic", 10, **asked)
        return runs, bench.profiles


def test_the_order_is_turned_each_round_and_each_run_is_a_pipeline_of_its_own(jobs):
    runs, _profiles = rounds(Options(), rounds=3)
    assert [job.variant for _where, job in jobs] == [*"abc", *"bca", *"cab"]
    assert {where for where, _job in jobs} == {"alone"}
    assert len({job.pipeline for _where, job in jobs}) == 9
    assert {name: len(found) for name, found in runs.items()} == {"a": 3, "b": 3, "c": 3}


def test_a_variant_whose_table_is_in_an_object_store_is_told_where(jobs):
    rounds(Options(), rounds=1, endpoints={"b": "http://store"})
    assert [job.endpoint for _where, job in jobs] == ["", "http://store", ""]


def test_a_profile_is_taken_in_a_run_of_its_own_that_does_not_count(jobs):
    runs, profiles = rounds(Options(profiled=True), rounds=1, profile=["b"])
    assert [(job.variant, job.profiled) for _where, job in jobs] == [
        ("a", False), ("b", False), ("c", False), ("b", True),
    ]  # fmt: skip
    assert {name: len(found) for name, found in runs.items()} == {"a": 1, "b": 1, "c": 1}
    assert list(profiles) == ["b"]


def test_where_all_run_together_a_profile_takes_no_run_of_its_own(jobs):
    _runs, profiles = rounds(Options(profiled=True, together=True), rounds=2, profile=["b"])
    assert [(job.variant, job.profiled) for _where, job in jobs] == [
        ("a", False), ("b", True), ("c", False), ("b", False), ("c", False), ("a", False),
    ]  # fmt: skip
    assert {(where, job.together) for where, job in jobs} == {("together", True)}
    assert list(profiles) == ["b"]
