"""What a run holds in memory: the JVM's heap after a collection, and both processes' pages."""

import gc
from dataclasses import dataclass
from typing import Any, Self

from benchmarks.measured import resident_mb
from sinks.spark.driver import SparkDriver

# What one collection has found is let go by threads of Spark's, and falls to the next one.
_COLLECTIONS = 3


@dataclass(frozen=True, slots=True)
class Footprint:
    """Megabytes at one moment."""

    heap_mb: float  # that Java objects take which are in use
    jvm_mb: float  # resident: with the heap's free pages, code, threads
    python_mb: float  # resident

    @classmethod
    def of(cls, spark: SparkDriver) -> Self:
        """Collect what is garbage on both sides, and look. Takes a second at the most."""
        gc.collect()  # what Python has forgotten of Java's objects is garbage there only then
        heap_mb, pid = spark.run(_collected, group="collect")
        return cls(heap_mb, resident_mb(pid), resident_mb())


def _collected(session: Any) -> tuple[float, int]:
    """The heap in use after a collection, and which process the JVM is."""
    java = session._jvm.java.lang  # noqa: SLF001
    for _ in range(_COLLECTIONS):
        java.System.gc()
    runtime = java.Runtime.getRuntime()
    used: int = runtime.totalMemory() - runtime.freeMemory()
    return used / 1e6, int(java.ProcessHandle.current().pid())
