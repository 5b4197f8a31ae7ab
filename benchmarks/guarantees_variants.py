"""The variants of suite guarantees: suite tables' vectorised bolts into Delta, by guarantee."""

from collections.abc import Callable
from functools import partial

from benchmarks.job import Figures, Job
from benchmarks.tables_variants import local

VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "at_least_once": partial(local, flow="vectorised", reliability="at-least-once"),
    "exactly_once": partial(local, flow="vectorised"),
}
