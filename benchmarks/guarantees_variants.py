"""The variants of suite guarantees: suite spark's vectorised bolts into Delta, by guarantee."""

from collections.abc import Callable
from functools import partial

from benchmarks.job import Figures, Job
from benchmarks.kinds import DELTA
from benchmarks.tables_variants import local
from headrace.sinks import DeltaSink

VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "at_least_once": partial(local, sink=DeltaSink, kind=DELTA, reliability="at-least-once"),
    "exactly_once": partial(local, sink=DeltaSink, kind=DELTA),
}
