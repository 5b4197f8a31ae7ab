"""Runs one variant and prints its figures as JSON: python -m benchmarks.child JOB."""

import importlib
import json
import sys
from collections.abc import Callable

import msgspec

from benchmarks.job import Figures, Job
from benchmarks.sampling import Sampler


def main() -> None:
    """Run the variant, with a sampler beside it if a profile is wanted."""
    job = msgspec.json.decode(sys.argv[1], type=Job)
    variants: dict[str, Callable[[Job], Figures]] = importlib.import_module(job.module).VARIANTS
    if job.profiled:
        with Sampler() as sampler:
            figures = variants[job.variant](job)
        span = (figures[name] for name in ("began_at", "ended_at") if name in figures)
        figures["profile"] = sampler.profile(*span)
    else:
        figures = variants[job.variant](job)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
