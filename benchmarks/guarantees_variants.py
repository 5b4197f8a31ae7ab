"""The variants of suite guarantees: suite spark's vectorised bolts into Delta, by guarantee."""

from collections.abc import Callable

from benchmarks.job import Figures, Job
from benchmarks.kinds import DELTA
from benchmarks.spark_topologies import make_vectorised
from benchmarks.spark_variants import filled

VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "at_least_once": lambda job: filled(make_vectorised("at-least-once"), job, DELTA),
    "exactly_once": lambda job: filled(make_vectorised(), job, DELTA),
}
