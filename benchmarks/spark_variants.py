"""The variants of suite spark: orders parsed, their users looked up, totals, small ones dropped.

All write the same rows of nine columns into a Delta table that is there and empty. `structured`
is Structured Streaming. The others are Headrace, as it is deployed, with the topologies of
`spark_topologies.py`: on the local engine the bolts run in Python, pyarrow writes the files, and
Spark's JVM commits them; on the spark engine executors do all but the commit.
"""

from collections.abc import Callable
from functools import partial

from benchmarks.job import Figures, Job
from benchmarks.kinds import DELTA, Kind
from benchmarks.measured import run_headrace
from benchmarks.place import place
from benchmarks.processes import tree_seconds
from benchmarks.spark_topologies import MAKE, MODULE, make_functions, make_vectorised
from benchmarks.structured import structured
from headrace import Topology

LARGE, SMALL = 1_000_000, 200_000  # records of a transaction of the spark engine


def filled(topology: Topology, job: Job, kind: Kind) -> Figures:
    """Measure from the first partition's opening until everything is committed.

    By then the JVM runs, if one is needed, and the table is there. The processor time is that of
    Python and the JVM.
    """
    with place(job, kind) as there:
        found = run_headrace(
            topology,
            job,
            storage={"warehouse": there.warehouse},
            before=there.prepare,
            cpu=tree_seconds,
        )
        return {**found, **there.contents()}


def on_executors(job: Job, name: str, records: int = LARGE) -> Figures:
    """The same for a topology that the spark engine runs, at most so many records at a time.

    Python workers start with the first task, so their start is measured.
    """
    with place(job, DELTA) as there:
        found = run_headrace(
            MAKE[name](),
            job,
            pipeline={"engine": "spark"},
            storage={"warehouse": there.warehouse},
            spark={"transaction_records": records},
            before=there.prepare,
            cpu=tree_seconds,
            wired=there.wired(f"{MODULE}:{name}"),
        )
        return {**found, **there.contents()}


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "structured": partial(structured, kind=DELTA),
    "local_vectorised": lambda job: filled(make_vectorised(), job, DELTA),
    "local_functions": lambda job: filled(make_functions(), job, DELTA),
    "spark_vectorised": partial(on_executors, name="vectorised"),
    "spark_vectorised_200k": partial(on_executors, name="vectorised", records=SMALL),
    "spark_functions": partial(on_executors, name="functions"),
}
