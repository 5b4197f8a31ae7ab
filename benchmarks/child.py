"""Runs a variant and prints its figures as JSON: python -m benchmarks.child JOB.

Without a job it runs those that come as lines on its standard input, until that ends.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable

import msgspec

from benchmarks.job import Figures, Job
from benchmarks.sampling import Sampler


def main() -> None:
    """Run one job, or all that come."""
    if len(sys.argv) > 1:
        print(json.dumps(_figures(sys.argv[1])))
    else:
        _run_all()


def _figures(text: str | bytes) -> Figures:
    """Run a variant, with a sampler beside it if a profile is wanted."""
    job = msgspec.json.decode(text, type=Job)
    variants: dict[str, Callable[[Job], Figures]] = importlib.import_module(job.module).VARIANTS
    if job.profiled:
        with Sampler() as sampler:
            figures = variants[job.variant](job)
        span = (figures[name] for name in ("began_at", "ended_at") if name in figures)
        figures["profile"] = sampler.profile(*span)
    else:
        figures = variants[job.variant](job)
    return figures


def _run_all() -> None:
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what a variant prints must not come between the answers
        try:
            for line in sys.stdin.buffer:
                print(json.dumps(_figures(line)), file=answers, flush=True)
        finally:
            if "benchmarks.place" in sys.modules:
                importlib.import_module("benchmarks.place").end_shared()


if __name__ == "__main__":
    main()
