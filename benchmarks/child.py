"""Run one variant of a suite and print its figures as JSON: python -m benchmarks.child JOB."""

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec

TIMEOUT_SECONDS = 300.0  # of a variant
Figures = dict[str, Any]  # a variant's report; numbers, but for what its suite knows of


class Job(msgspec.Struct, frozen=True):
    """A variant's order. `module` has a table `VARIANTS` with the variant's name."""

    module: str
    variant: str
    kafka: str
    zookeeper: str
    topic: str
    records: int  # all that the topic holds
    pipeline: str  # unique, so no run finds another's offsets
    options: dict[str, float] = {}
    endpoint: str = ""  # of the object store that the table lies in; none: on a local disk


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    variants: dict[str, Callable[[Job], Figures]] = importlib.import_module(job.module).VARIANTS
    print(json.dumps(variants[job.variant](job)))


if __name__ == "__main__":
    main()
