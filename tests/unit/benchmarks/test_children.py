"""Variants run in processes of their own, or all in one; either way their figures come back."""

import os
from contextlib import closing

import pytest

from benchmarks.children import Together, run_alone
from benchmarks.job import Job

FAILED = r"variant fail failed:\n(.|\n)*ValueError: no such luck"


def job(variant, **more):
    module = "tests.unit.benchmarks.sample_variants"
    return Job(module, variant, "", "", topic="", records=200, pipeline="", **more)


def test_a_variant_in_a_process_of_its_own_gives_its_figures():
    seen = []
    first, second = run_alone(job("count"), seen.append), run_alone(job("count"))
    assert first["records"] == second["records"] == 200
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    assert seen


def test_one_process_runs_one_variant_after_the_other_sampled_or_not():
    with closing(Together()) as together:
        seen = []
        first = together.run(job("count"), seen.append)
        second = together.run(job("count", profiled=True))
        assert first["records"] == second["records"] == 200
        assert first["pid"] == second["pid"] != os.getpid()
        assert second["profile"]["samples"]
        assert seen
    with pytest.raises(ProcessLookupError):
        os.kill(first["pid"], 0)


def test_a_variant_that_fails_ends_the_bench_with_what_it_wrote():
    with pytest.raises(SystemExit, match=FAILED):
        run_alone(job("fail"))
    with closing(Together()) as together, pytest.raises(SystemExit, match=FAILED):
        together.run(job("fail"))
